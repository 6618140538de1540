from __future__ import annotations

import gc
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.flow.pool import BatchMemory, Pool, _rounded


def new_pool() -> tuple[Pool, list[None]]:
    releases: list[None] = []
    return Pool(lambda: releases.append(None)), releases


def test_memory_comes_back_with_its_last_view() -> None:
    pool, releases = new_pool()
    array = pool.acquire(100)
    view = array[10:20].data[2:]
    tail = array[50:]
    del array
    assert (pool.in_use, len(releases)) == (100, 0)
    del view
    assert (pool.in_use, len(releases)) == (100, 0)
    del tail
    assert (pool.in_use, pool.idle, len(releases)) == (0, 100, 1)


def test_memory_is_used_again() -> None:
    pool, _ = new_pool()
    first = pool.acquire(1 << 16)
    address = first.ctypes.data
    del first
    second = pool.acquire(1 << 16)
    assert second.ctypes.data == address
    assert pool.idle == 0


def test_only_the_same_size_is_used_again() -> None:
    pool, _ = new_pool()
    array = pool.acquire(100)
    del array
    other = pool.acquire(200)
    assert (len(other), pool.idle, pool.in_use) == (200, 100, 200)


def test_two_leases_never_share_memory() -> None:
    pool, _ = new_pool()
    one, two = pool.acquire(64), pool.acquire(64)
    one[:] = 1
    two[:] = 2
    assert one.sum() == 64
    assert not np.shares_memory(one, two)


def test_trim_frees_the_largest_first() -> None:
    pool, _ = new_pool()
    held = [pool.acquire(size) for size in (10, 20, 40, 40)]
    held.clear()
    pool.trim(35)
    assert pool.idle == 30
    pool.trim(0)
    assert pool.idle == 0
    assert repr(pool) == "<Pool 0 bytes in use, 0 idle>"


def test_an_empty_piece() -> None:
    pool, releases = new_pool()
    assert len(pool.acquire(0)) == 0
    assert len(releases) == 1


def test_a_release_in_another_thread() -> None:
    pool, releases = new_pool()
    held = [pool.acquire(10)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert (pool.in_use, len(releases)) == (0, 1)


def test_memory_in_a_reference_cycle_comes_back_by_collection() -> None:
    pool, _ = new_pool()
    cycle: list[object] = [pool.acquire(10)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.in_use == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=60))
def test_what_is_in_use_is_what_is_held(steps: list[tuple[bool, int]]) -> None:
    pool, _ = new_pool()
    held = []
    for acquire, size in steps:
        if acquire:
            held.append(pool.acquire(size))
        elif held:
            held.pop(size % len(held))
        assert pool.in_use == sum(map(len, held))


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
    def test_what_waits_is_no_more_than_what_is_held(self, sizes: list[int]) -> None:
        memory, held = BatchMemory(), []
        for size in sizes:
            array = memory.allocate(size)
            assert len(array) == size
            assert array.flags.writeable
            assert memory._pool.idle <= memory._pool.in_use
            if size % 3 == 0:
                held.append(array)
            del array

    @given(st.integers(1, 1 << 40))
    def test_sizes_are_rounded_by_an_eighth_at_most(self, size: int) -> None:
        assert size <= _rounded(size) <= size + max(size // 8, 4096)

    def test_its_state_in_one_line(self) -> None:
        assert repr(BatchMemory()) == "<BatchMemory 0 bytes in use, 0 idle>"
