"""A clone in which nothing was built: it works, and says once how slow it is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from streamrec.kernel.choice import VARIABLE
from tests.by_day import at_night
from tests.feeder.operate.test_daemon import PROGRAM as DAEMON
from tests.pipeline.small_datasets import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., AbstractContextManager[subprocess.Popen[str]]]

ROOT = Path(__file__).parents[2]
LATE = 60.0
"""Seconds after which a process hangs."""
READ = """
import logging, sys
import streamrec as sr
logging.basicConfig()
with sr.open(sys.argv[1], engine=sys.argv[2], batch_size=2) as stream:
    print(sum(map(len, stream)))
"""
WARNING = "UserWarning: the kernel in C "
UNSET = {VARIABLE, "PYTHONPATH"}  # what is in the working directory is imported


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clone = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "streamrec", clone / "streamrec", ignore=ignored)
    shutil.copy(ROOT / "setup.py", clone)
    return clone


@pytest.fixture
def start(clone: Path) -> Start:
    """Return a function that starts Python in the clone, and kills it after its ``with`` block."""

    @contextmanager
    def run(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        kept = {name: os.environ[name] for name in os.environ if name not in UNSET}
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=clone,
            env=kept | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    return run


@pytest.fixture
def shard(tmp_path: Path) -> str:
    return write(tmp_path, ((10,) * 5,)).replace("*", "00000")


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_a_stream_says_it_once(engine: str, start: Start, shard: str) -> None:
    with start("-c", READ, shard, engine) as process:
        out, err = process.communicate(timeout=LATE)
    assert (process.returncode, out) == (0, "5\n")
    assert err.count(WARNING) == 1
    assert "pip install -e ." in err
    assert "engine process" not in err


@pytest.mark.parametrize("engine", [at_night("process"), "thread"])
def test_a_clone_that_hides_a_package_with_the_kernel_says_so_once(
    engine: str, start: Start, shard: str, tmp_path: Path
) -> None:
    kernel = tmp_path / "site" / "streamrec" / "kernel"
    kernel.mkdir(parents=True)
    (kernel / "_native.abi3.so").touch()
    with start("-c", READ, shard, engine, PYTHONPATH=str(tmp_path / "site")) as process:
        out, err = process.communicate(timeout=LATE)
    assert (process.returncode, out) == (0, "5\n")
    assert err.count("UserWarning: the kernel in C is not beside the sources at") == 1
    assert err.count(f"before the package at {kernel.parent}, which has it") == 1
    assert "take it off PYTHONPATH" in err


def test_the_daemon_says_it_once(start: Start, shard: str) -> None:
    with start("-c", DAEMON, shard) as process:
        assert _stream(process.stdout).readline().startswith("tcp://")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LATE) == 0
        assert _stream(process.stderr).read().count(WARNING) == 1


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@pytest.mark.parametrize("verb", ["cat", at_night("info"), at_night("verify")])
def test_the_command_line_says_it_once(verb: str, start: Start, shard: str) -> None:
    with start("-m", "streamrec", verb, shard) as process:
        out, err = process.communicate(timeout=LATE)
    assert err.count(WARNING) == 1
    assert WARNING not in out


def test_to_import_the_package_says_nothing(start: Start) -> None:
    with start("-c", "import streamrec") as process:
        assert process.communicate(timeout=LATE) == ("", "")


@pytest.mark.parametrize("engine", ["process", at_night("thread")])
def test_who_asked_for_it_is_told_nothing(engine: str, start: Start, shard: str) -> None:
    with start("-c", READ, shard, engine, **{VARIABLE: "python"}) as process:
        assert process.communicate(timeout=LATE) == ("5\n", "")
