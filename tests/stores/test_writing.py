from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.stores.base.new_object import GuardedObject, SpooledObject
from streamrec.stores.base.part_upload import PartUpload
from streamrec.stores.folder import Folder
from streamrec.stores.local.local_store import PartFile
from streamrec.stores.stored_files import find_files
from streamrec.stores.writing import new_object, write_object

if TYPE_CHECKING:
    from pathlib import Path

S3 = {"key": "test", "secret": "test", "endpoint_url": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("scheme", "spooled", "kind"),
    [
        ("s3://b/x", False, PartUpload),
        ("s3://b/x", True, SpooledObject),
        ("memory://b/x", False, SpooledObject),
    ],
)
def test_what_an_object_is_written_to(scheme: str, spooled: bool, kind: type) -> None:
    options: dict[str, Any] = S3 if scheme.startswith("s3") else {}
    target = new_object(scheme, options, spooled=spooled)
    assert isinstance(target, GuardedObject)
    assert type(target.target) is kind
    target.discard()


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_local_object_appears_whole(form: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a b"
    url = form.format(str(path).replace(" ", "%20") if form != "{}" else path)
    with pytest.raises(ObjectNotFound, match="create it first"):
        write_object(url, b"data")
    target = new_object(url, {}, make_directory=True)
    assert isinstance(target, GuardedObject)
    assert isinstance(target.target, PartFile)
    target.write(b"da")
    target.discard()
    assert list(path.parent.iterdir()) == []
    write_object(url, b"data")
    assert path.read_bytes() == b"data"


def test_an_object_of_another_filesystem() -> None:
    write_object("memory://targets/deep/x", b"data", make_directory=True)
    assert fsspec.filesystem("memory").cat_file("/targets/deep/x") == b"data"


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises(ConfigError, match="nothing"):
        write_object("nothing://x/y", b"data")


def test_a_scheme_in_capitals_names_the_same_file(tmp_path: Path) -> None:
    write_object(f"FILE://{tmp_path}/a%20b", b"x")
    assert (tmp_path / "a b").read_bytes() == b"x"
    Folder(f"File://{tmp_path}/", {}).write("y", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b", "y"]
    assert [file.path for file in find_files(f"FILE://{tmp_path}/y", {})] == [f"{tmp_path}/y"]
