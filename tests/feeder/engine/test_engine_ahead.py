from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamrec
from streamrec.errors import ConfigError
from streamrec.feeder.engine import engine as module
from streamrec.feeder.engine.engine import Engine, _ahead, order_for, start_engine
from tests.by_day import at_night
from tests.feeder.engine.test_engine import EXPECTED, all_records, settings
from tests.feeder.support import PATIENCE, gone, until
from tests.support import open_fds

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    _ahead.clear()
    gc.collect()  # what the tests before have left
    before = open_fds()
    yield
    _ahead.clear()
    gc.collect()
    until(lambda: open_fds() <= before)


def waiting() -> int:
    """Return the process that was started ahead."""
    (engine,) = _ahead
    return engine.process.pid


@pytest.mark.parametrize(
    "source", [at_night(""), "/data/x", at_night("file:///data/x"), "nothing://x"]
)
def test_the_next_stream_takes_it(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GOODBYE", PATIENCE)  # on a busy machine it ends late
    start_engine(source)
    pid = waiting()
    with closing(Engine.start(order_for(settings(tmp_path)))) as engine:
        assert engine.process.pid == pid
        assert not _ahead
        assert all_records(engine) == EXPECTED
    assert gone(pid)
    assert engine.process.returncode == 0
    with closing(Engine.start(order_for(settings(tmp_path)))) as other:
        assert other.process.pid != pid
        assert all_records(other) == EXPECTED


def test_a_stream_as_users_open_it(tmp_path: Path) -> None:
    source: Any = settings(tmp_path).source
    streamrec.start_engine("file://")
    pid = waiting()
    with streamrec.open(source, batch_size=4, epochs=1, rank=0, world_size=1) as stream:
        assert [record for batch in stream for record in batch.records.to_list()] == EXPECTED
        assert not _ahead
    assert gone(pid)


def test_there_is_one_at_a_time() -> None:
    start_engine()
    pid = waiting()
    start_engine("s3://bucket/x")
    assert waiting() == pid


def test_one_that_is_not_wanted_ends_at_once() -> None:
    start_engine()
    pid = waiting()
    _ahead.clear()
    gc.collect()
    assert gone(pid)


def test_what_it_would_not_be_told_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_engine()
    first = waiting()
    monkeypatch.setenv("AWS_PROFILE", "another")
    start_engine()
    second = waiting()
    assert second != first
    assert gone(first)
    monkeypatch.chdir(tmp_path)
    with closing(Engine.start(order_for(settings(tmp_path)))) as engine:
        assert engine.process.pid != second
        assert gone(second)
        assert all_records(engine) == EXPECTED


def test_without_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    monkeypatch.chdir(directory)
    directory.rmdir()
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    start_engine()
    pid = waiting()
    with closing(Engine.start(order_for(settings(tmp_path)))) as engine:
        assert engine.process.pid == pid
        assert all_records(engine) == EXPECTED


def test_one_that_died_is_replaced(tmp_path: Path) -> None:
    start_engine()
    pid = waiting()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not _ahead[0].fits)
    with closing(Engine.start(order_for(settings(tmp_path)))) as engine:
        assert engine.process.pid != pid
        assert all_records(engine) == EXPECTED


def test_only_the_scheme_is_an_argument() -> None:
    start_engine("s3://bucket/secret?token=x")
    path = Path(f"/proc/{waiting()}/cmdline")
    until(lambda: bool(path.read_bytes()))
    assert path.read_bytes().split(b"\0")[-2] == b"s3://"


def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(ConfigError, match='engine="thread"'):
        start_engine()
    assert not _ahead


PARENT = """
import os, sys, time
from streamrec.feeder.engine.engine import _ahead, start_engine
start_engine()
holder = 0
if sys.argv[1] == "fork" and not (holder := os.fork()):
    time.sleep(600)
print(_ahead[0].process.pid, holder, flush=True)
if sys.argv[1] != "exit":
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["kill", "fork", "exit"])
def test_dies_with_its_parent(how: str) -> None:
    command = [sys.executable, "-c", PARENT, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, holder = map(int, parent.stdout.readline().split())
        if how != "exit":
            parent.kill()
        try:
            assert parent.wait() == (0 if how == "exit" else -signal.SIGKILL)
            until(lambda: gone(pid))
        finally:
            if holder:
                os.kill(holder, signal.SIGKILL)
        assert parent.stderr is not None
        assert parent.stderr.read() == b""
