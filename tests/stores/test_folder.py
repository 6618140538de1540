from __future__ import annotations

import os
from pathlib import Path
from threading import Barrier
from typing import Any

import fsspec
import pytest

from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreError
from streamrec.stores.base.new_object import GuardedObject, PartUpload, SpooledObject
from streamrec.stores.blocking import WRITES_AT_ONCE as AT_ONCE
from streamrec.stores.folder import Folder, new_object, write_object
from streamrec.stores.local.local_store import PartFile
from streamrec.stores.stored_files import find_files

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


@pytest.fixture(params=["path", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    (tmp_path / "a b").mkdir()
    places = {
        "path": f"{tmp_path}/a b/",
        "file": f"{tmp_path.as_uri()}/a%20b/",
        "memory": f"memory://{tmp_path.name}/a b/",
    }
    return Folder(places[request.param], {})


def test_objects_come_and_go(folder: Folder) -> None:
    assert folder.sizes() == {}
    assert folder.read("x") is None
    folder.write("x", b"one")
    folder.write(".y", b"")
    assert folder.sizes() == {"x": 3, ".y": 0}
    folder.publish({"x": ".y"}, {"x": 3})
    folder.remove("x")  # which a store still has
    assert folder.read(".y") == b"one"
    assert folder.sizes() == {".y": 3}
    folder.remove(".y", "never")
    assert folder.sizes() == {}


def test_deeper_objects_are_left_out(folder: Folder) -> None:
    folder.write("x", b"one")
    deeper = Folder(folder.url("deep/"), {})
    if "memory" in folder.url(""):
        deeper.write("y", b"two")
    else:
        Path(deeper.url("")).mkdir()
    assert folder.sizes() == {"x": 3}


def test_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Folder("", {})
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir("deeper")
    folder.write("x", b"one")
    assert (folder.sizes(), folder.read("x")) == ({"x": 3}, b"one")
    assert folder.url("x") == f"{tmp_path}/x"


def test_a_missing_directory_is_made_when_told(tmp_path: Path) -> None:
    folder = Folder(f"{tmp_path}/new/deeper/", {})
    folder.make()
    folder.make()
    assert folder.sizes() == {}


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound, match="create it first"):
        Folder(f"{tmp_path}/no/", {}).sizes()


@pytest.mark.parametrize(
    ("error", "kind"), [(KeyError, StoreError), (PermissionError, AccessDenied)]
)
def test_a_filesystem_s_errors(
    error: type[Exception], kind: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error("gone")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "rm_file", fail)
    with pytest.raises(kind) as caught:
        Folder("memory://b/", {}).remove("x")
    assert caught.value.url == "memory://b/x"


def test_objects_of_a_store_are_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files, together = type(fsspec.filesystem("memory")), Barrier(AT_ONCE)
    copy = files.cp_file

    def wait_and_copy(*args: Any, **kwargs: Any) -> None:
        together.wait(60)
        copy(*args, **kwargs)

    monkeypatch.setattr(files, "cp_file", wait_and_copy)
    folder = Folder("memory://at-once/", {})
    for number in range(AT_ONCE):
        folder.write(f"old-{number}", b"%d" % number)
    old = [f"old-{number}" for number in range(AT_ONCE)]
    folder.publish({name: name.replace("old", "new") for name in old}, folder.sizes())
    folder.remove(*old)
    assert folder.sizes() == {f"new-{number}": 1 for number in range(AT_ONCE)}
    assert folder.read("new-3") == b"3"
    folder.remove(*folder.sizes())


def test_calls_that_do_not_depend_on_each_other(folder: Folder) -> None:
    assert folder.at_once() == []
    assert folder.at_once(lambda: 1) == [1]
    assert folder.at_once(lambda: 1, lambda: 2) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        folder.at_once(lambda: 1, lambda: 1 // 0)


def test_directories_that_were_made_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    folder = Folder(f"{tmp_path}/old/new/deeper/", {})
    folder.make()
    folder.write("x", b"one")
    folder.unmake()
    assert folder.read("x") == b"one"
    folder.remove("x")
    folder.unmake()
    folder.unmake()
    assert list(tmp_path.rglob("*")) == [tmp_path / "old"]


def test_a_working_directory_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for place in ("", "out/"):
        with pytest.raises(ConfigError, match="the working directory was deleted; change to"):
            Folder(place, {})
    assert Folder(f"{tmp_path}/", {}).sizes() == {}


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(StoreError, match="x: this is a FIFO, a device or a socket; name"):
        Folder(f"{tmp_path}/", {}).read("x")


def test_a_fifo_that_the_environment_names_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "x")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "x"))
    with pytest.raises(ConfigError, match="AWS_CONFIG_FILE"):
        new_object("s3://bucket/x", S3)


def test_only_files_are_objects(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"one")
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    assert Folder(f"{tmp_path}/", {}).sizes() == {"x": 3, "link": 3}
