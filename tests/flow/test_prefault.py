from __future__ import annotations

import asyncio
import mmap
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec.flow import prefault
from streamrec.flow.prefault import Prefaulter

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

MIB = 1 << 20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that is asked")


def mapped(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE), np.uint8)


def faults_of_writing(memory: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    import resource

    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    memory[:: mmap.PAGESIZE] = 1
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def started() -> Prefaulter:
    prefaulter = Prefaulter()
    asyncio.run(prefaulter.start())
    return prefaulter


def done(future: Future[None] | None) -> None:
    assert future is not None
    future.result()


@on_linux
def test_who_writes_finds_the_pages_there() -> None:
    prefaulter, size = started(), 5 * MIB + mmap.PAGESIZE
    # On a machine that is short of memory the kernel may take pages away at once: then once more.
    faults = -1
    for _ in range(5):
        untouched, memory = mapped(size), mapped(size)
        done(prefaulter.prefault(memory))
        if prefault._madvise()(memory.ctypes.data, 1, prefault.POPULATE_WRITE):
            pytest.skip("this kernel is older than Linux 5.14")
        assert faults_of_writing(untouched) > 0
        if not (faults := faults_of_writing(memory)):
            break
    assert faults == 0
    prefaulter.close()


def test_what_is_written_meanwhile_stays() -> None:
    prefaulter = started()
    pieces = [mapped(2 * MIB) for _ in range(8)]
    futures = [prefaulter.prefault(piece) for piece in pieces]
    for number, piece in enumerate(pieces):
        piece[:] = number + 1
    for future in futures:
        done(future)
    assert [set(np.unique(piece)) for piece in pieces] == [{n + 1} for n in range(8)]
    prefaulter.close()


def test_memory_of_a_system_that_knows_no_such_thing_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefault, "_madvise", lambda: None)
    prefaulter, memory = started(), mapped(MIB)
    done(prefaulter.prefault(memory))
    assert not memory.any()
    prefaulter.close()


def test_a_refusal_by_the_system_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def refuse(*request: int) -> int:
        asked.append(request)
        return -1

    monkeypatch.setattr(prefault, "_madvise", lambda: refuse)
    prefaulter, memory = started(), mapped(3 * prefault.STEP)
    done(prefaulter.prefault(memory))
    assert asked == [(memory.ctypes.data, prefault.STEP, prefault.POPULATE_WRITE)]
    prefaulter.close()


def test_after_the_end_nothing_is_touched_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end, touched = threading.Event(), threading.Event(), []

    def populate(memory: object) -> None:
        touched.append(memory)
        begun.set()
        may_end.wait()

    monkeypatch.setattr(prefault, "_populate", populate)
    prefaulter, first, second = started(), mapped(4096), mapped(4096)
    running, waiting = prefaulter.prefault(first), prefaulter.prefault(second)
    assert running is not None
    assert waiting is not None
    begun.wait()
    prefaulter.close()
    may_end.set()
    done(running)
    assert waiting.cancelled()
    assert prefaulter.prefault(second) is None
    assert len(touched) == 1


def test_nobody_waits_for_its_thread_to_start(
    started_threads: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    starters: set[str] = set()
    start = threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        starters.add(threading.current_thread().name)
        start(thread)

    prefaulter, memory = Prefaulter(), mapped(4096)
    assert prefaulter.prefault(memory) is None
    assert not started_threads()
    monkeypatch.setattr(threading.Thread, "start", noting)
    asyncio.run(prefaulter.start())
    assert threading.current_thread().name not in starters
    done(prefaulter.prefault(memory))
    prefaulter.close()
