from __future__ import annotations

import asyncio
import errno
import gc
import mmap
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import FeederDraining
from streamrec.flow import pool
from streamrec.flow.pool import (
    HUGE,
    LATELY,
    Abandoned,
    Account,
    BatchMemory,
    DecodedMemory,
    Pool,
    Prefaulter,
    size_class,
)
from streamrec.values.aligned import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import numpy.typing as npt


def test_the_next_batch_never_waits() -> None:
    memory = DecodedMemory(100)
    first, _ = memory.open(), memory.open()
    first.admit(90)
    first.admit(500)
    assert memory.in_use == first.held == 590


def test_others_wait_until_they_fit() -> None:
    memory = DecodedMemory(100)
    first, second, third = memory.open(), memory.open(), memory.open()
    first.admit(61)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(second.admit, 40)
        third.admit(10)  # it fits, and the one before it does not
        assert not waiting.done()
        first.settle(50)
        waiting.result()
    assert memory.in_use == 50 + 40 + 10


def test_a_batch_that_becomes_the_next_one_goes_on() -> None:
    memory = DecodedMemory(100)
    first, second = memory.open(), memory.open()
    first.admit(80)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(second.admit, 70)
        first.deliver()
        waiting.result()
    assert memory.in_use == 150  # the consumer has the first one


def test_a_delivered_batch_counts_until_the_next_one_is() -> None:
    memory = DecodedMemory(100)
    batches = [memory.open() for _ in range(3)]
    for batch in batches:
        batch.admit(10)
        batch.deliver()
        assert memory.in_use == 10
    assert repr(memory) == "<DecodedMemory 10 of 100 bytes, 0 wait>"


def test_batches_that_nobody_waits_for_are_abandoned() -> None:
    memory = DecodedMemory(10)
    first, second = memory.open(), memory.open()
    first.admit(10)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(second.admit, 1)
        memory.close()
        with pytest.raises(Abandoned):
            waiting.result()
    with pytest.raises(Abandoned):
        memory.check()
    assert memory.in_use == 10


def test_what_is_beyond_the_capacity_is_borrowed_once() -> None:
    borrowed: list[tuple[int, int]] = []
    here = threading.get_ident()
    memory = DecodedMemory(100, lambda more: borrowed.append((more, threading.get_ident())))
    for size in (70, 140, 120, 150):
        batch = memory.open()
        batch.admit(size)
        batch.deliver()
    assert borrowed == [(110, here), (50, here), (10, here)]
    assert memory.capacity == 270


def test_a_loan_that_is_refused_fails_the_batch() -> None:
    def refuse(_: int) -> None:
        raise FeederDraining("no")

    memory = DecodedMemory(100, refuse)
    with pytest.raises(FeederDraining):
        memory.open().admit(101)
    assert memory.capacity == 100


KIB, MIB = 1 << 10, 1 << 20
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
        if pool._madvise()(memory.ctypes.data, 1, pool.POPULATE_WRITE):
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
    monkeypatch.setattr(pool, "_madvise", lambda: None)
    prefaulter, memory = started(), mapped(MIB)
    done(prefaulter.prefault(memory))
    assert not memory.any()
    prefaulter.close()


def test_a_refusal_by_the_system_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def refuse(*request: int) -> int:
        asked.append(request)
        return -1

    monkeypatch.setattr(pool, "_madvise", lambda: refuse)
    prefaulter, memory = started(), mapped(3 * pool.STEP)
    done(prefaulter.prefault(memory))
    assert asked == [(memory.ctypes.data, pool.STEP, pool.POPULATE_WRITE)]
    prefaulter.close()


def test_after_the_end_nothing_is_touched_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end, touched = threading.Event(), threading.Event(), []

    def populate(memory: object) -> None:
        touched.append(memory)
        begun.set()
        may_end.wait()

    monkeypatch.setattr(pool, "_populate", populate)
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


UNIT = 4 * KIB  # the smallest piece


def new_pool() -> tuple[Pool, list[None]]:
    releases: list[None] = []
    return Pool(lambda: releases.append(None)), releases


def acquire(pool: Pool, size: int) -> npt.NDArray[np.uint8]:
    return pool.acquire(size, Account())


def test_memory_comes_back_with_its_last_view() -> None:
    pool, releases = new_pool()
    array = acquire(pool, 100)
    view = array[10:20].data[2:]
    tail = array[50:]
    del array
    assert (pool.in_use, len(releases)) == (UNIT, 0)
    del view
    assert (pool.in_use, len(releases)) == (UNIT, 0)
    del tail
    assert (pool.in_use, pool.idle, len(releases)) == (0, UNIT, 1)


def test_memory_is_used_again() -> None:
    pool, _ = new_pool()
    first = acquire(pool, 1 << 16)
    address = first.ctypes.data
    del first
    second = acquire(pool, 1 << 16)
    assert second.ctypes.data == address
    assert pool.idle == 0


def test_only_the_same_size_is_used_again() -> None:
    pool, _ = new_pool()
    array = acquire(pool, UNIT)
    del array
    other = acquire(pool, 2 * UNIT)
    assert (len(other), pool.idle, pool.in_use) == (2 * UNIT, UNIT, 2 * UNIT)
    assert pool.most_in_use == 2 * UNIT


def test_an_idle_piece_that_is_larger_is_taken_where_it_may_be() -> None:
    pool, _ = new_pool()
    account = Account()
    pieces = [pool.acquire(size, account) for size in (2 * UNIT, 3 * UNIT, 8 * UNIT)]
    address = pieces[1].ctypes.data
    del pieces
    taken = pool.acquire(2 * UNIT + 1, account, most=8 * UNIT)
    assert (taken.ctypes.data, len(taken)) == (address, 2 * UNIT + 1)
    assert account.in_use == pool.in_use == 3 * UNIT, "what is taken is charged"
    other = pool.acquire(4 * UNIT, account, most=7 * UNIT)
    assert account.in_use == 7 * UNIT
    assert pool.idle == 10 * UNIT, "the one of eight was too large"
    assert len(other) == 4 * UNIT


def test_an_idle_piece_of_the_very_size_comes_first() -> None:
    pool, _ = new_pool()
    pieces = [acquire(pool, size) for size in (8 * UNIT, 2 * UNIT)]
    del pieces
    taken = pool.acquire(2 * UNIT, Account(), most=8 * UNIT)
    assert (pool.in_use, pool.idle, len(taken)) == (2 * UNIT, 8 * UNIT, 2 * UNIT)


def test_two_leases_never_share_memory() -> None:
    pool, _ = new_pool()
    one, two = acquire(pool, 64), acquire(pool, 64)
    one[:] = 1
    two[:] = 2
    assert one.sum() == 64
    assert not np.shares_memory(one, two)


def test_trim_frees_what_is_idle_longest() -> None:
    pool, _ = new_pool()
    small, large, again = (acquire(pool, size) for size in (UNIT, 4 * UNIT, 4 * UNIT))
    del small
    del large
    del again
    pool.trim(9 * UNIT - 1)
    assert pool.idle == 8 * UNIT, "the small piece came back first"
    pool.trim(4 * UNIT)
    assert pool.idle == 4 * UNIT
    pool.trim(0)
    assert pool.idle == 0
    assert repr(pool) == "<Pool 0 bytes in use, 0 idle>"


def test_an_empty_piece() -> None:
    pool, releases = new_pool()
    assert len(acquire(pool, 0)) == 0
    assert len(releases) == 1


def test_a_release_in_another_thread() -> None:
    pool, releases = new_pool()
    held = [acquire(pool, 10)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert (pool.in_use, len(releases)) == (0, 1)


def test_memory_in_a_reference_cycle_comes_back_by_collection() -> None:
    pool, _ = new_pool()
    cycle: list[object] = [acquire(pool, 10)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.in_use == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50_000)), max_size=60))
def test_what_is_in_use_is_what_is_held_by_each(steps: list[tuple[bool, int]]) -> None:
    pool, _ = new_pool()
    accounts = Account(), Account()
    held: list[tuple[int, npt.NDArray[np.uint8]]] = []
    for more, size in steps:
        if more:
            held.append((size % 2, pool.acquire(size, accounts[size % 2])))
        elif held:
            held.pop(size % len(held))
        owned = [sum(size_class(len(a)) for who, a in held if who == n) for n in range(2)]
        assert [account.in_use for account in accounts] == owned
        assert pool.in_use == sum(owned)


@given(st.integers(0, 1 << 40))
def test_size_classes_hold_what_is_asked_for_and_little_more(size: int) -> None:
    taken = size_class(size)
    assert size <= taken <= size + size // 8 + UNIT
    assert size_class(taken) == taken
    assert size_class(size + 1) >= taken


@pytest.mark.parametrize("size", [1, MIB, 4 * MIB, 8 * MIB + 5])
def test_memory_of_every_kind_can_be_filled(size: int) -> None:
    pool, _ = new_pool()
    array = acquire(pool, size)
    array[:] = 7
    assert len(array) == size
    assert int(array[0]) == int(array[-1]) == 7
    assert array.flags.writeable
    assert array.flags.c_contiguous


@given(st.integers(0, 5 << 20))
def test_memory_begins_at_a_cache_line(size: int) -> None:
    memory = Pool(lambda: None).acquire(size, Account())
    assert memory.ctypes.data % ALIGNMENT == 0


class TestBatchMemory:
    def test_memory_is_used_again_when_nobody_refers_to_it(self) -> None:
        memory = BatchMemory()
        first = memory.allocate(1 << 20)
        other = memory.allocate(1 << 20)
        assert not np.shares_memory(first, other)
        address = first.ctypes.data
        del first
        assert memory.allocate((1 << 20) - 99).ctypes.data == address

    def test_a_view_of_it_is_a_reference(self) -> None:
        memory = BatchMemory()
        view = memory.allocate(1 << 20)[5:9].view(np.int32)
        view[0] = 7
        memory.allocate(1 << 20)[:] = 255
        assert view[0] == 7

    @given(st.lists(st.integers(1, 1 << 14), min_size=1, max_size=30))
    def test_with_what_is_held_it_is_no_more_than_was_held_at_once(self, sizes: list[int]) -> None:
        memory, held, most = BatchMemory(), [], 0
        for size in sizes:
            array = memory.allocate(size)
            assert len(array) == size
            assert array.flags.writeable
            most = max(most, memory._pool.in_use)
            assert memory._pool.in_use + memory._pool.idle <= most
            if size % 3 == 0:
                held.append(array)
            del array

    def test_what_a_burst_has_freed_is_taken_by_the_next(self) -> None:
        memory = BatchMemory()
        addresses = set()
        for _ in range(3):
            burst = [memory.allocate(MIB) for _ in range(5)]
            addresses |= {array.ctypes.data for array in burst}
            del burst
            addresses |= {memory.allocate(MIB).ctypes.data for _ in range(5)}
        assert len(addresses) == 5

    def test_what_was_held_long_ago_is_given_back(self) -> None:
        memory = BatchMemory()
        burst = [memory.allocate(MIB) for _ in range(5)]
        del burst
        for _ in range(2 * LATELY):
            memory.allocate(MIB)
        assert (memory._pool.in_use, memory._pool.idle) == (0, MIB)

    def test_its_state_in_one_line(self) -> None:
        assert repr(BatchMemory()) == "<BatchMemory 0 bytes in use, 0 idle>"


def test_a_closed_pool_keeps_nothing_and_tells_nobody() -> None:
    told: list[int] = []
    pool, account = Pool(lambda: told.append(1)), Account()
    first, second = pool.acquire(5000, account), pool.acquire(5000, account)
    del first
    assert pool.idle
    assert told == [1]
    pool.close()
    assert not pool.idle
    del second
    assert (pool.in_use, pool.idle, account.in_use, told) == (0, 0, 0, [1])


@pytest.mark.parametrize("size", [UNIT, HUGE])
def test_where_the_system_has_none_nobody_is_charged(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    def refuse_numpy(*_: object) -> None:
        raise MemoryError("Unable to allocate")

    pool, releases = new_pool()
    account = Account()
    with monkeypatch.context() as patched:
        patched.setattr("streamrec.flow.pool.mmap.mmap", refuse)
        patched.setattr("streamrec.flow.pool.np.empty", refuse_numpy)
        with pytest.raises(MemoryError, match=r"allocate"):
            pool.acquire(size, account)
    assert (pool.in_use, account.in_use, releases) == (0, 0, [])
    assert len(pool.acquire(size, account)) == size


def test_where_the_kernel_has_no_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class PlainMap(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("streamrec.flow.pool.mmap.mmap", PlainMap)
    pool, _ = new_pool()
    memory = pool.acquire(HUGE, Account())
    memory[:] = 1
    assert len(memory) == HUGE
