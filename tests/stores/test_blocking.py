from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import fsspec
import pytest

from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreError
from streamrec.stores.base.new_object import GuardedObject, PartUpload, SpooledObject
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.blocking import WRITES_AT_ONCE as AT_ONCE
from streamrec.stores.blocking import BlockingStores, Folder, new_object, write_object
from streamrec.stores.local_store import PartFile
from streamrec.stores.stored_files import find_files


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name in ("a", "b", "deep/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return f"{tmp_path}/"


def test_objects_are_listed_read_and_deleted(folder: str) -> None:
    stores = BlockingStores({})
    assert {info.url for info in stores.list_objects(folder, recursive=False)} == {
        f"{folder}a",
        f"{folder}b",
    }
    assert (stores.has_any(f"{folder}deep/"), stores.has_any(f"{folder}none/")) == (True, False)
    assert [info.url for info in stores.match(f"{folder}?")] == [f"{folder}a", f"{folder}b"]
    assert stores.match(f"{folder}none*") == []
    [one, missing] = stores.read_all([ObjectInfo(f"{folder}a", 1), ObjectInfo(f"{folder}no", 1)])
    assert one[0].tobytes() == b"a"
    assert isinstance(missing, ObjectNotFound)
    stores.publish({f"{folder}a": f"{folder}b"}, {f"{folder}a": 1})
    assert stores.read(ObjectInfo(f"{folder}b"), 0, 9)[0].tobytes() == b"a"
    stores.delete([f"{folder}b", f"{folder}no"])
    assert [info.url for info in stores.list_objects(folder)] == [f"{folder}deep/c"]


def test_threads_that_call_at_once_open_one_bridge(folder: str) -> None:
    stores, together = BlockingStores({}), Barrier(4)

    def call() -> int:
        together.wait(60)
        stores.list_objects(folder)
        return id(stores._opened)

    with ThreadPoolExecutor(4) as threads:
        assert len({each.result() for each in [threads.submit(call) for _ in range(4)]}) == 1


def test_a_pickle_holds_no_connection(folder: str) -> None:
    stores = BlockingStores({})
    assert stores.has_any(folder)
    other = pickle.loads(pickle.dumps(stores))
    assert other._opened is None
    assert other.has_any(folder)


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
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    (tmp_path / "a b").mkdir()
    places = {
        "path": f"{tmp_path}/a b/",
        "file": f"{tmp_path.as_uri()}/a%20b/",
        "memory": f"memory://{tmp_path.name}/a b/",
    }
    return Folder(places[request.param], {})


def test_objects_come_and_go(directory: Folder) -> None:
    assert directory.sizes() == {}
    assert directory.read("x") is None
    directory.write("x", b"one")
    directory.write(".y", b"")
    assert directory.sizes() == {"x": 3, ".y": 0}
    directory.publish({"x": ".y"}, {"x": 3})
    directory.remove("x")  # which a store still has
    assert directory.read(".y") == b"one"
    assert directory.sizes() == {".y": 3}
    directory.remove(".y", "never")
    assert directory.sizes() == {}


def test_deeper_objects_are_left_out(directory: Folder) -> None:
    directory.write("x", b"one")
    deeper = Folder(directory.url("deep/"), {})
    if "memory" in directory.url(""):
        deeper.write("y", b"two")
    else:
        Path(deeper.url("")).mkdir()
    assert directory.sizes() == {"x": 3}


def test_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = Folder("", {})
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir("deeper")
    directory.write("x", b"one")
    assert (directory.sizes(), directory.read("x")) == ({"x": 3}, b"one")
    assert directory.url("x") == f"{tmp_path}/x"


def test_a_missing_directory_is_made_when_told(tmp_path: Path) -> None:
    directory = Folder(f"{tmp_path}/new/deeper/", {})
    directory.make()
    directory.make()
    assert directory.sizes() == {}


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
    directory = Folder("memory://at-once/", {})
    for number in range(AT_ONCE):
        directory.write(f"old-{number}", b"%d" % number)
    old = [f"old-{number}" for number in range(AT_ONCE)]
    directory.publish({name: name.replace("old", "new") for name in old}, directory.sizes())
    directory.remove(*old)
    assert directory.sizes() == {f"new-{number}": 1 for number in range(AT_ONCE)}
    assert directory.read("new-3") == b"3"
    directory.remove(*directory.sizes())


def test_calls_that_do_not_depend_on_each_other(directory: Folder) -> None:
    assert directory.at_once() == []
    assert directory.at_once(lambda: 1) == [1]
    assert directory.at_once(lambda: 1, lambda: 2) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        directory.at_once(lambda: 1, lambda: 1 // 0)


def test_directories_that_were_made_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    directory = Folder(f"{tmp_path}/old/new/deeper/", {})
    directory.make()
    directory.write("x", b"one")
    directory.unmake()
    assert directory.read("x") == b"one"
    directory.remove("x")
    directory.unmake()
    directory.unmake()
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
