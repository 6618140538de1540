"""Programs whose main thread ends while another thread reads."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import streamrec as sr

if TYPE_CHECKING:
    from pathlib import Path

BATCHES = 500
PROGRAM = """
import asyncio, sys, threading
import streamrec as sr

source, way, daemon = sys.argv[1:]
begun, features = threading.Event(), {"id": sr.FixedLenFeature((), "int64")}


def read():
    epochs = None if daemon else 1
    stream = sr.open(source, features, batch_size=1, epochs=epochs, engine=ENGINES.get(way))
    stream.report_to(lambda step, _: print("reported", step))
    if way == "loop":
        return asyncio.run(read_in_loop(stream))
    for count, _ in enumerate(stream, 1):
        begun.set()
    print("read", count)


async def read_in_loop(stream):
    count = 0
    async for _ in stream:
        count += 1
        begun.set()
    print("read", count)


def read_one_by_one():
    for count, _ in enumerate(sr.read_records(source), 1):
        begun.set()
    print("read", count)


ENGINES = {"process": "process", "thread": "thread"}
work = read_one_by_one if way == "records" else read
threading.Thread(target=work, daemon=bool(daemon)).start()
begun.wait()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("endings") / "t.tfrecord"
    with sr.TFRecordWriter(path) as writer:
        writer.write_many({"id": number} for number in range(BATCHES))
    return str(path)


def run(source: str, way: str, *, daemon: bool, tmp_path: Path) -> tuple[str, str]:
    command = [sys.executable, "-c", PROGRAM, source, way, "daemon" if daemon else ""]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    return ended.stdout, ended.stderr


@pytest.mark.parametrize("way", ["default", "thread", "process", "loop", "records"])
def test_a_thread_that_is_waited_for_reads_to_the_end(
    source: str, way: str, tmp_path: Path
) -> None:
    out, error = run(source, way, daemon=False, tmp_path=tmp_path)
    reported = "" if way == "records" else f"reported {BATCHES}\n"
    assert (out, error) == (f"read {BATCHES}\n{reported}", "")


@pytest.mark.parametrize("way", ["default", "thread", "process"])
def test_a_daemon_thread_ends_without_a_word(source: str, way: str, tmp_path: Path) -> None:
    """An event loop in it would tell of its own tasks."""
    assert run(source, way, daemon=True, tmp_path=tmp_path)[1] == ""
