from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from streamrec.flow.work_sharing import share_work

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_every_number_once(threads: ThreadPoolExecutor, most: int, count: int) -> None:
    done: list[int] = []
    share_work(threads, most, done.append, count)
    assert sorted(done) == list(range(count))


def test_others_help(threads: ThreadPoolExecutor) -> None:
    # Nobody passes before all four are there.
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        barrier.wait()

    share_work(threads, 3, work, 4)


def test_who_works_in_the_pool_waits_for_nobody(threads: ThreadPoolExecutor) -> None:
    done: list[int] = []
    sharing = [threads.submit(share_work, threads, 3, done.append, 50) for _ in range(9)]
    for future in sharing:
        future.result()
    assert sorted(done) == sorted(list(range(50)) * 9)


def test_the_lowest_failure_is_raised(threads: ThreadPoolExecutor) -> None:
    others_failed = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            others_failed.wait()
        if number < 3:
            others_failed.set()
            raise ValueError(number)

    for _ in range(20):
        others_failed.clear()
        with pytest.raises(ValueError, match=r"^0$"):
            share_work(threads, 2, work, 10)


def test_after_a_failure_nothing_more_is_begun(threads: ThreadPoolExecutor) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number == 4:
            raise ValueError

    with pytest.raises(ValueError):
        share_work(threads, 0, work, 1000)
    assert done == [0, 1, 2, 3, 4]


def test_a_pool_that_is_shut_down(threads: ThreadPoolExecutor) -> None:
    threads.shutdown()
    done: list[int] = []
    share_work(threads, 3, done.append, 5)
    assert done == [0, 1, 2, 3, 4]
