"""Processes without a home, temporary files, a working directory, or open descriptors."""

from __future__ import annotations

import logging
import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import streamrec as sr
from streamrec import demo, surroundings
from streamrec.config.cache_and_audit import CacheSettings
from streamrec.datasets.external_shuffle import LEAST_MEMORY, ExternalShuffle
from streamrec.errors import ConfigError
from streamrec.feeder.engine.engine import Engine
from streamrec.flow.child_process import child_environment
from streamrec.stores.blocking import write_object
from streamrec.stores.cache.piece_cache import open_cache
from streamrec.streams import start
from streamrec.values.columns import BytesColumn


@pytest.mark.parametrize("enabled", [True, False])
def test_the_interpreters_lock(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: enabled, raising=False)
    assert surroundings.has_gil() is enabled


def test_the_interpreter_of_this_process() -> None:
    assert surroundings.has_interpreter()


EMBEDDED = {"empty": "", "nothing": None, "a program": "/bin/true", "gone": "/nowhere/python3"}


@pytest.mark.parametrize("program", EMBEDDED.values(), ids=EMBEDDED)
def test_a_program_that_embeds_python(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    assert not surroundings.has_interpreter()


def test_a_link_to_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainer").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "trainer"))
    assert surroundings.has_interpreter()


@pytest.mark.parametrize(("module", "expected"), [("eventlet.green.thread", False), ("pydevd", 1)])
def test_threads_that_others_start(
    module: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_thread(*_: object) -> int:
        return 0

    start_thread.__module__ = module
    monkeypatch.setattr("_thread.start_new_thread", start_thread)
    assert surroundings.has_threads() == expected


def test_a_frozen_program_has_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not surroundings.has_interpreter()


def test_a_wrapped_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = tmp_path / ".Python3-wrapped"
    wrapped.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapped))
    assert surroundings.has_interpreter()


@pytest.mark.parametrize("program", EMBEDDED.values(), ids=EMBEDDED)
def test_a_thread_reads_in_a_program_that_embeds_python(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_many([b"1", b"2", b"3"])
    monkeypatch.setattr(start, "has_gil", lambda: True)
    monkeypatch.setattr(sys, "executable", program)
    # With a shuffle the process would read from the first batch on.
    stream = sr.open(tmp_path / "a.tfrecord", batch_size=1, shuffle=True)
    says = "a thread reads.* set it to the path of one"
    with pytest.warns(UserWarning, match=says) as warned, stream:
        assert len(list(stream)) == 3
    assert [each.filename for each in warned] == [__file__]


def test_an_engine_process_that_was_asked_for_needs_an_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(ConfigError, match=r"cannot start None as the engine process: sys\.exec"):
        Engine.spawn()


def test_interpreters_that_do_not_say_it_have_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "_is_gil_enabled", raising=False)
    assert surroundings.has_gil()


def test_the_cores_of_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7})
    assert surroundings.allowed_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert surroundings.allowed_cores() == 12


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process's user have no entry in the user database, and no HOME."""

    def unknown(number: int) -> NoReturn:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.fixture
def no_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no directory for temporary files be writable."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)


@pytest.fixture
def deleted_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the working directory be deleted."""
    here = tmp_path / "gone"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = str(tmp_path / "x.tfrecord")
    with sr.TFRecordWriter(path) as writer:
        writer.write_many(b"%d" % number for number in range(20))
    return path


def records(**settings: object) -> int:
    return sum(len(batch) for batch in sr.open(batch_size=7, **settings))  # type: ignore[call-overload, misc]


class TestHome:
    def test_a_home_that_is_not_a_place(
        self, homeless: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "relative")
        assert surroundings.home() is None

    def test_a_cache_without_a_home_steps_aside(
        self, homeless: None, shard: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "streamrec"):
            assert open_cache(CacheSettings(), {}) is None
        assert "no home directory" in caplog.text
        assert "XDG_CACHE_HOME" in caplog.text
        assert records(source=shard, cache="1GiB", engine="thread") == 20
        assert records(source=shard, cache={"of": "batches"}, engine="thread") == 20

    def test_a_folder_in_a_home_that_is_missing(self, homeless: None) -> None:
        with pytest.raises(ConfigError, match="~/x: this user has no home directory"):
            open_cache(CacheSettings(folder="~/x"), {})


@pytest.mark.usefixtures("no_temporary_files")
class TestTemporaryFiles:
    def test_an_engine_needs_none(self, shard: str) -> None:
        assert records(source=shard, shuffle=True) == 20

    def test_the_last_words_of_an_engine_are_kept(self) -> None:
        engine = Engine.spawn()
        try:
            assert engine.process.stdin
            engine.process.stdin.write(b"not JSON")
            engine.process.stdin.close()
            engine.process.wait(60)  # importing takes long beside other load
            assert "JSONDecodeError" in (engine.diagnosis() or "")
        finally:
            engine.close()

    def test_where_memory_cannot_be_a_file_the_log_is_dropped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "memfd_create")
        with surroundings.scratch_file() as file:
            file.write(b"words")
            file.seek(0)
            assert file.read() == b""

    def test_an_upload_says_what_it_needs(self) -> None:
        with pytest.raises(ConfigError, match=r"upload to memory needs a directory.*TMPDIR"):
            write_object("memory://x/y", b"")

    def test_a_shuffle_that_fits_needs_none(self) -> None:
        with ExternalShuffle(memory=LEAST_MEMORY) as shuffle:
            shuffle.add(BytesColumn.of([b"one", b"two"]))
            assert sum(map(len, shuffle.blocks())) == 2

    def test_a_shuffle_that_does_not_fit_says_what_it_needs(self) -> None:
        large = BytesColumn(np.zeros(LEAST_MEMORY, np.uint8), np.array([0, LEAST_MEMORY]))
        with ExternalShuffle(memory=LEAST_MEMORY) as shuffle:
            with pytest.raises(ConfigError, match=r"more than its memory holds.*TMPDIR"):
                shuffle.add(large)

    def test_the_demo_says_what_it_needs(self) -> None:
        with pytest.raises(ConfigError, match=r"the demo needs a directory.*TMPDIR"):
            demo.run(lambda note: None, lambda *progress: None)


@pytest.mark.usefixtures("deleted_directory")
class TestWorkingDirectory:
    @pytest.mark.parametrize("engine", ["process", "thread"])
    def test_a_stream_needs_none(
        self, shard: str, engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend("")  # as `python -c` has it
        assert records(source=shard, engine=engine) == 20

    def test_a_relative_name(self) -> None:
        with pytest.raises(sr.ObjectNotFound, match="the working directory, which was deleted"):
            records(source="x.tfrecord", engine="thread")

    def test_a_path_that_needs_one(self) -> None:
        with pytest.raises(ConfigError, match="x: the working directory was deleted"):
            surroundings.absolute(Path("x"))


CLOSED = """
import os, sys
for number in {closed}: os.close(number)
import streamrec as sr
for epoch in range(2):
    with sr.open({shard!r}, batch_size=7{settings}) as stream:
        rows = sum(len(batch) for batch in stream)
with sr.TFRecordWriter({written!r}) as writer:
    if 2 in {closed}: os.write(2, b"a library prints")
    writer.write(b"%d" % rows)
os._exit(7)
"""


@pytest.mark.parametrize(
    ("closed", "settings"),
    [((0,), ""), ((0, 1, 2), ""), ((0, 1, 2), ", engine='thread'")],
)
def test_closed_descriptors(
    shard: str, tmp_path: Path, closed: tuple[int, ...], settings: str
) -> None:
    written = str(tmp_path / "written.tfrecord")
    script = CLOSED.format(closed=closed, shard=shard, settings=settings, written=written)
    ended = subprocess.run([sys.executable, "-c", script], check=False, env=child_environment())
    assert ended.returncode == 7
    assert list(sr.read_records(written)) == [b"20"]


@pytest.mark.parametrize("closing", ["<&-", "<&- 2>&-"])
def test_a_command_with_closed_descriptors(shard: str, closing: str) -> None:
    command = f'exec "{sys.executable}" -P -m streamrec info {shard} --json {closing}'
    ended = subprocess.run(
        ["sh", "-c", command], check=False, stdout=subprocess.PIPE, env=child_environment()
    )
    assert ended.returncode == 0
    assert b'"records": 20' in ended.stdout
