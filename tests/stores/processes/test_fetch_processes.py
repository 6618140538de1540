"""Fetch processes as the system sees them; what they read is tested elsewhere."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError, ObjectChanged, StoreUnavailable
from streamrec.flow.child_process import HELPERS
from streamrec.stores.processes import fetch_processes as module
from streamrec.stores.processes.fetch_processes import (
    FetchProcess,
    FetchProcesses,
    error_of,
    failure_of,
)
from tests.forked_children import in_forked_child
from tests.support import asynchronous, open_fds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECRET = "swordfish"
URLS = ["http://127.0.0.1:1/x"]


@asynccontextmanager
async def running(number: int = 1) -> AsyncIterator[FetchProcesses]:
    processes = FetchProcesses(number, {"headers": {"X-Key": SECRET}}, URLS)
    processes.start()
    try:
        while len(processes.processes) < number:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
        yield processes
    finally:
        await processes.aclose()


def children() -> set[int]:
    paths = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in paths for pid in path.read_text().split()}


def said_by(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_bytes().decode()


@asynchronous
async def test_nothing_is_left_of_them_and_no_argument_is_a_secret() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(open_fds)  # the thread is there
    before, children_before = open_fds(), children()
    async with running(2) as processes:
        memory = processes.share_memory(1 << 20)
        assert memory is not None
        pids = {one.pid for one in processes.processes}
        assert children() - children_before == pids
        for one in processes.processes:
            await one.ready.wait()  # before that its arguments may not be there
        for pid in pids:
            said = said_by(pid, "cmdline") + said_by(pid, "environ")
            assert "streamrec.stores.fetch_process" in said
            assert SECRET not in said
        memory.close()
        del memory  # the mapping has a descriptor, too
        assert repr(processes).startswith("<FetchProcesses [<FetchProcess ")
    await processes.aclose()
    assert children() <= children_before
    assert open_fds() <= before
    assert loop.is_running()


def test_those_that_nobody_closes_end_with_the_loop() -> None:
    before = children()

    async def leave() -> set[int]:
        processes = FetchProcesses(1, {}, URLS)
        processes.start()
        await asyncio.sleep(0)
        return {one.pid for one in processes.processes}

    assert asyncio.run(leave())
    gc.collect()
    assert children() <= before


@asynchronous
async def test_a_fork_leaves_them_to_its_parent() -> None:
    async with running() as processes:
        [process] = processes.processes
        fd = process.packets._sock.fileno()
        os.fstat(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            raise in_forked_child(lambda: os.fstat(fd))
        assert not process.ended.is_set()
        assert process.pid in children()


@asynchronous
async def test_their_cpu_time_is_counted_also_when_they_have_ended() -> None:
    before = HELPERS.total()
    async with running() as processes:
        [process] = processes.processes
        await process.ready.wait()  # it has imported its libraries meanwhile
        taken = HELPERS.total()
        assert taken > before
        assert in_forked_child(lambda: process.pid in HELPERS._seconds) is False
    assert HELPERS.total() >= taken
    assert process.pid not in HELPERS._seconds


PROGRAM = """
import asyncio, os
from streamrec.stores.processes.fetch_processes import FetchProcesses

async def main():
    processes = FetchProcesses(1, {}, [])
    processes.start()
    await asyncio.sleep(0)
    if not os.fork():  # its copies of the sockets outlive the parent
        os.close(1)
        import signal
        signal.alarm(60)
        signal.pause()
    print(processes.processes[0].pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd_open here")
def test_they_end_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        fd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([fd], [], [], 30)[0], "it has ended"
    os.close(fd)


@asynchronous
async def test_where_none_can_be_started_the_stream_reads_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed = asyncio.Event()

    def refuse(_: bytes) -> None:
        has_failed.set()
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module, "_spawn", refuse)
    processes = FetchProcesses(1, {}, URLS)
    processes.start()
    await has_failed.wait()
    assert processes.process_for(URLS[0]) is None
    assert "cannot be started" in caplog.text
    await processes.aclose()


def test_options_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(ConfigError, match="fetch_processes=0"):
        FetchProcesses(1, {"session": object()}, URLS)


def test_where_there_is_no_shared_memory_they_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match="need Linux"):
        FetchProcesses(1, {}, URLS)


def test_errors_arrive_as_they_were() -> None:
    throttled = StoreUnavailable("slow down", url="s3://b/x", retry_after=2.5, throttled=True)
    changed = ObjectChanged("another version", url="s3://b/x", offset=7)
    for error in (throttled, changed):
        found = error_of(failure_of(error))
        assert type(found) is type(error)
        assert vars(found) == vars(error)


@pytest.mark.parametrize(
    ("program", "words"),
    [("import os; os.kill(os.getpid(), 15)", "was ended by SIGTERM"), ("exit(3)", "ended with 3")],
)
def test_how_one_ended_is_told_in_words(program: str, words: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", program])
    child.wait()
    ours, theirs = socket.socketpair()

    async def outcome() -> str:
        process = FetchProcess(child, ours)
        theirs.close()
        await process.ended.wait()
        await process.aclose()
        return process.outcome()

    assert asyncio.run(outcome()) == f"the fetch process {child.pid} {words}"
