from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreError, StoreUnavailable
from streamrec.stores import local_store as local
from streamrec.stores.blocking import write_object
from streamrec.stores.local_store import LocalStore, PartFile, path_of
from tests.stores.conformance import (
    DATA,
    Backend,
    Bench,
    ListingConformance,
    StoreConformance,
    WritingConformance,
    filled,
    read,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from streamrec.stores.base.protocol import ObjectInfo


WRITES = """
import sys, streamrec as sr
writer = sr.TFRecordWriter(sys.argv[1])
writer.write(bytes(3 << 20))
writer.flush()
print("written", flush=True)
sys.stdin.read()
"""


@contextmanager
def writing(url: object, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that stops in the middle of a shard."""
    command = [sys.executable, "-c", WRITES, str(url)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"written\n"
            yield process
        finally:
            process.kill()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class TestKilled:
    def test_what_a_killed_writer_left_goes_with_the_next_of_the_name(self, tmp_path: Path) -> None:
        with writing(tmp_path / "x") as killed, writing(tmp_path / "x"):
            killed.kill()
            killed.wait()
            assert names(tmp_path) == [".x.1.part", ".x.part"]
        write_object(f"{tmp_path}/other", b"of another name")
        assert names(tmp_path) == [".x.1.part", ".x.part", "other"]
        write_object(f"{tmp_path}/x", b"whole")
        assert names(tmp_path) == ["other", "x"]
        assert (tmp_path / "x").read_bytes() == b"whole"

    def test_a_living_writer_in_another_process_keeps_its_file(self, tmp_path: Path) -> None:
        with writing(tmp_path / "x"):
            write_object(f"{tmp_path}/x", b"whole")
            assert names(tmp_path) == [".x.part", "x"]
            assert (tmp_path / ".x.part").stat().st_size == (3 << 20) + 16

    def test_of_an_upload_nothing_is_left(self, tmp_path: Path) -> None:
        with writing("memory://bucket/x", TMPDIR=str(tmp_path)) as killed:
            killed.kill()
            killed.wait()
        assert names(tmp_path) == []


def test_the_object_survives_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are on the disk before the name, and the name before the commit ends."""
    synced: list[tuple[bool, list[str]]] = []

    def fsync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), names(tmp_path)))

    monkeypatch.setattr(os, "fsync", fsync)
    write_object(f"{tmp_path}/x", b"whole")
    assert synced == [(False, [".x.part"]), (True, ["x"])]


class TestSeveralWriters:
    def test_each_has_a_file_of_its_own(self, tmp_path: Path) -> None:
        writers = [PartFile(tmp_path / "x") for _ in range(3)]
        assert names(tmp_path) == [".x.1.part", ".x.2.part", ".x.part"]
        for number, writer in enumerate(writers):
            writer.write(b"%d" % number)
        writers[1].commit()
        assert (tmp_path / "x").read_bytes() == b"1"
        writers[0].discard()
        writers[2].commit()
        assert (tmp_path / "x").read_bytes() == b"2"
        assert names(tmp_path) == ["x"]

    def test_one_that_is_done_leaves_that_of_the_next_alone(self, tmp_path: Path) -> None:
        first = PartFile(tmp_path / "x")
        first.commit()
        second = PartFile(tmp_path / "x")
        first.discard()
        assert names(tmp_path) == [".x.part", "x"]
        second.discard()
        assert names(tmp_path) == ["x"]


@pytest.fixture
def before_lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Something that happens right before the next lock is asked for."""
    lock = fcntl.flock

    def once(happens: Callable[[], object]) -> None:
        def locked(file: Any, operation: int) -> None:
            monkeypatch.setattr(fcntl, "flock", lock)
            happens()
            lock(file, operation)

        monkeypatch.setattr(fcntl, "flock", locked)

    return once


class TestRaces:
    def test_a_file_that_is_removed_before_it_is_locked(
        self, tmp_path: Path, before_lock: Callable[[Callable[[], object]], None]
    ) -> None:
        before_lock((tmp_path / ".x.part").unlink)
        writer = PartFile(tmp_path / "x")
        assert names(tmp_path) == [".x.part"]
        writer.write(b"whole")
        writer.commit()
        assert (tmp_path / "x").read_bytes() == b"whole"

    def test_a_file_that_is_published_while_it_is_looked_at(
        self, tmp_path: Path, before_lock: Callable[[Callable[[], object]], None]
    ) -> None:
        first = PartFile(tmp_path / "x")
        first.write(b"first")
        before_lock(first.commit)
        second = PartFile(tmp_path / "x")
        assert (tmp_path / "x").read_bytes() == b"first"
        second.commit()
        assert names(tmp_path) == ["x"]


def test_where_there_are_no_locks_no_file_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    first = PartFile(tmp_path / "x")
    write_object(f"{tmp_path}/x", b"second")
    assert names(tmp_path) == [".x.part", "x"]
    first.commit()
    assert names(tmp_path) == ["x"]


def test_a_working_directory_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="x: the working directory was deleted; change to"):
        write_object("x", b"one")
    write_object(f"{tmp_path}/x", b"one")
    assert (tmp_path / "x").read_bytes() == b"one"


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class LocalConformance(StoreConformance, ListingConformance, WritingConformance):
    head = ""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            yield Bench(
                LocalStore(),
                url=lambda name: f"{self.head}{tmp_path}/{name}",
                put=lambda name, data: put(tmp_path / name, data),
            )

        return make


class TestPlainPath(LocalConformance):
    pass


class TestFileUrl(LocalConformance):
    head = "file://"


@asynchronous
async def test_relative_paths_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "a/x", DATA)
    put(tmp_path / "y", DATA)
    store = LocalStore()
    assert sorted([info.url async for info in store.list("")]) == ["a/x", "y"]
    assert [info.url async for info in store.list("a/")] == ["a/x"]
    assert (await read(store, "a/x", 1, 3))[0] == DATA[1:3]


@asynchronous
async def test_directories_off_the_prefix_are_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train-1/a", "train-2", "other/deep/b"):
        put(tmp_path / name, b"x")
    scanned: list[str] = []
    scan = local._scan

    def record(directory: str, *rest: Any) -> tuple[list[ObjectInfo], list[str]]:
        scanned.append(directory)
        return scan(directory, *rest)

    monkeypatch.setattr(local, "_scan", record)
    found = [info.url async for info in LocalStore().list(f"{tmp_path}/train-")]
    assert sorted(found) == [f"{tmp_path}/train-1/a", f"{tmp_path}/train-2"]
    assert scanned == [f"{tmp_path}/", f"{tmp_path}/train-1/"]


@asynchronous
async def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    put(tmp_path / "real/x", b"x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/linked").symlink_to(tmp_path / "real")
    (tmp_path / "real/loop").symlink_to(tmp_path / "data")
    (tmp_path / "data/dangling").symlink_to(tmp_path / "nowhere")
    found = [info.url async for info in LocalStore().list(f"{tmp_path}/data/")]
    # A link that leads nowhere is told where it is read.
    assert sorted(found) == [f"{tmp_path}/data/dangling", f"{tmp_path}/data/linked/x"]


@asynchronous
async def test_directory_is_no_object(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"\*\.tfrecord"):
        await read(LocalStore(), str(tmp_path), 0, 1)


@asynchronous
async def test_file_as_directory(tmp_path: Path) -> None:
    put(tmp_path / "x", b"x")
    assert [info async for info in LocalStore().list(f"{tmp_path}/x/")] == []
    with pytest.raises(ObjectNotFound):
        await read(LocalStore(), f"{tmp_path}/x/y", 0, 1)


@asynchronous
async def test_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    put(path, DATA)
    async with LocalStore().open_range(str(path), 0, len(DATA)) as body:
        os.truncate(path, 10)
        view = memoryview(bytearray(100))
        received: list[int] = []
        with pytest.raises(StoreUnavailable, match="ends 10230 bytes before"):
            await body.fill(view, received.append)
        assert received == [10]


@asynchronous
async def test_the_last_byte_closes_the_file(tmp_path: Path) -> None:
    put(tmp_path / "x", DATA)
    async with LocalStore().open_range(f"{tmp_path}/x", 0, 10) as body:
        view = memoryview(bytearray(7))
        assert (await filled(body, view), body._file.closed) == (7, False)
        assert (await filled(body, view), body._file.closed) == (3, True)
        assert await filled(body, view) == 0


@asynchronous
async def test_its_threads_end_with_it(tmp_path: Path) -> None:
    put(tmp_path / "x", DATA)
    store = LocalStore()
    assert (await read(store, f"{tmp_path}/x", 0, 5))[0] == DATA[:5]
    threads = store._threads._threads
    assert len(threads) == 1
    await store.aclose()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(13, "Permission denied"), AccessDenied),
        (OSError(5, "Input/output error"), StoreUnavailable),
    ],
)
@asynchronous
async def test_system_errors(
    monkeypatch: pytest.MonkeyPatch, error: OSError, kind: type[StoreError]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("streamrec.stores.local_store.os.stat", fail)
    with pytest.raises(kind) as caught:
        [info async for info in LocalStore().list("/data/")]
    assert caught.value.url == "/data/"


@asynchronous
async def test_failed_read(tmp_path: Path) -> None:
    class FailingFile:
        def readinto(self, view: memoryview) -> int:
            raise OSError(5, "Input/output error")

        def close(self) -> None: ...

    put(tmp_path / "x", DATA)
    async with LocalStore().open_range(f"{tmp_path}/x", 0, 10) as body:
        file, body._file = body._file, FailingFile()  # type: ignore[assignment]
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            await filled(body, memoryview(bytearray(1)))
        body._file = file


@asynchronous
async def test_file_is_closed_when_its_head_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    put(tmp_path / "x", DATA)
    monkeypatch.setattr(local, "_describe", fail)
    with pytest.raises(StoreUnavailable):  # and no ResourceWarning
        await read(LocalStore(), f"{tmp_path}/x", 0, 1)


def test_names_that_no_file_can_have() -> None:
    with pytest.raises(ConfigError, match=r"cannot be the name of a file; correct it"):
        next(sr.open("a\0b", {}, batch_size=1, engine="thread"))
    for name in ("a\ud800b", "file:///data/a\0b"):
        with pytest.raises(ConfigError, match=r"cannot be the name of a file; correct it"):
            path_of(name)


def test_paths_are_not_decoded() -> None:
    assert path_of("file:///a%20b/~x") == "/a%20b/~x"
    assert path_of("~/x") == "~/x"


@pytest.mark.parametrize("name", ["/nowhere/none.tfrecord", "none.tfrecord"])
@asynchronous
async def test_a_missing_file_names_the_directory_only_where_it_matters(name: str) -> None:
    with pytest.raises(ObjectNotFound) as caught:
        async with LocalStore().open_range(name, 0, 1):
            pass
    assert (str(Path.cwd()) in str(caught.value)) == (not name.startswith("/"))
