from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamrec.errors import FeederDraining
from streamrec.flow.decoded_memory import Abandoned, DecodedMemory


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
