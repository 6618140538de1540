"""The hidden files that objects grow in: none is left behind, and none is taken from its writer."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError
from streamrec.stores.local.part_file import PartFile
from streamrec.stores.writing import write_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
