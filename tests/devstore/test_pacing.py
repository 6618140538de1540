from __future__ import annotations

import asyncio
import heapq
import types
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.devstore.pacing import (
    BURST_SECONDS,
    SLACK_SECONDS,
    UNPACED_SLICE,
    Jitter,
    Pace,
    RequestRate,
    SharedLink,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence


def admitted(rate: float, arrivals: list[float]) -> int:
    times = iter(arrivals)
    limit = RequestRate(rate, lambda: next(times))
    return sum(limit.admit() for _ in arrivals)


@given(st.floats(1, 5000), st.floats(1.0, 3.0))
def test_what_is_admitted_is_the_rate(rate: float, excess: float) -> None:
    arrivals = [n / (rate * excess) for n in range(int(10 * rate * excess))]
    most = max(2.0, rate * BURST_SECONDS)
    assert 10 * rate - 2 <= admitted(rate, arrivals) <= 10 * rate + most


def test_a_burst_is_a_tenth_of_a_second() -> None:
    assert admitted(80.0, [5.0] * 50) == 8
    assert admitted(80.0, [5.0] * 50 + [5.125] * 50) == 16
    assert admitted(80.0, [5.0] * 50 + [99.0] * 50) == 16


@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0])
def test_a_slow_store_admits_two_at_once(rate: float) -> None:
    assert admitted(rate, [0.0] * 5) == 2


def draws(deviation: float, seed: int = 0, number: int = 20_000) -> list[float]:
    jitter = Jitter(deviation, seed)
    return [jitter.draw(0.05) for _ in range(number)]


@pytest.mark.parametrize("deviation", [0.1, 0.3, 1.0])
def test_mean_and_deviation_are_as_asked(deviation: float) -> None:
    seconds = draws(deviation)
    assert fmean(seconds) == pytest.approx(0.05, rel=0.02)
    assert stdev(seconds) == pytest.approx(0.05 * deviation, rel=0.05)
    assert min(seconds) > 0


@given(st.floats(0, 100), st.integers())
def test_without_jitter_each_latency_is_the_mean(mean: float, seed: int) -> None:
    assert Jitter(0.0, seed).draw(mean) == mean


def test_latencies_follow_the_seed() -> None:
    assert draws(0.3, seed=1, number=9) == draws(0.3, seed=1, number=9)
    assert draws(0.3, seed=1, number=9) != draws(0.3, seed=2, number=9)


class FakeTime:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


async def send(pace: Pace, size: int) -> list[int]:
    """Send a body in the slices that the pace wants; their sizes."""
    slices = []
    while size:
        slices.append(min(pace.slice, size))
        await pace.wait(slices[-1])
        size -= slices[-1]
    return slices


@given(st.integers(1, 50_000_000), st.floats(1e5, 1e10))
def test_a_body_takes_its_size_over_the_rate(size: int, rate: float) -> None:
    time = FakeTime()
    asyncio.run(send(Pace(rate, time.clock, time.sleep), size))
    assert time.now - 1000.0 == pytest.approx(size / rate, rel=1e-6, abs=1e-6)


def test_slices_begin_small_and_double_to_ten_milliseconds() -> None:
    time = FakeTime()
    slices = asyncio.run(send(Pace(60e6, time.clock, time.sleep), 3_000_000))
    kib = 1024
    assert slices[:6] == [16 * kib, 16 * kib, 32 * kib, 64 * kib, 128 * kib, 256 * kib]
    assert max(slices) == 600_000


def test_a_slow_connection_still_sends_slices_worth_a_write() -> None:
    time = FakeTime()
    assert set(asyncio.run(send(Pace(1000.0, time.clock, time.sleep), 1 << 16))) == {16 << 10}


def test_a_slice_is_never_larger_than_without_a_cap() -> None:
    time = FakeTime()
    assert max(asyncio.run(send(Pace(1e12, time.clock, time.sleep), 1 << 24))) == UNPACED_SLICE


def test_without_a_cap_nothing_waits() -> None:
    time = FakeTime()
    slices = asyncio.run(send(Pace(None, time.clock, time.sleep), 5 << 20))
    assert slices == [UNPACED_SLICE] * 5
    assert not time.naps


def test_a_short_delay_is_caught_up() -> None:
    time = FakeTime()
    pace = Pace(1e6, time.clock, time.sleep)
    time.now += SLACK_SECONDS / 2
    asyncio.run(send(pace, 1_000_000))
    assert time.now == pytest.approx(1001.0)


def test_a_reader_that_stopped_gains_the_slack_only() -> None:
    time = FakeTime()
    pace = Pace(1e6, time.clock, time.sleep)
    time.now += 10
    asyncio.run(send(pace, 1_000_000))
    assert time.now == pytest.approx(1011.0 - SLACK_SECONDS)


@types.coroutine
def nap(seconds: float) -> Generator[float]:
    yield seconds


def ends(link: SharedLink, rate: float | None, bodies: Sequence[tuple[float, int]]) -> list[float]:
    """Send bodies of (start, size) over a link, all at once, and return the times of their ends."""
    now = 0.0
    finished = [0.0] * len(bodies)

    async def body(number: int, size: int) -> None:
        await nap(bodies[number][0])
        await send(Pace(rate, lambda: now, nap, link), size)
        finished[number] = now

    running = [body(number, size) for number, (_, size) in enumerate(bodies)]
    waking = [(0.0, number) for number in range(len(bodies))]
    while waking:
        now, number = heapq.heappop(waking)
        try:
            heapq.heappush(waking, (now + running[number].send(None), number))
        except StopIteration:
            continue
    return finished


@given(st.lists(st.integers(1, 20_000_000), min_size=1, max_size=20), st.floats(1e6, 1e10))
def test_bodies_take_their_sum_over_the_rate_of_their_link(sizes: list[int], rate: float) -> None:
    last = max(ends(SharedLink(rate), None, [(0.0, size) for size in sizes]))
    assert last == pytest.approx(sum(sizes) / rate, rel=1e-6, abs=1e-6)


@given(st.integers(1, 30), st.floats(1e7, 1e9), st.floats(1e7, 1e9))
@example(bodies=14, rate=432_794_000.0, connection=43_279_400.0)
def test_the_smaller_of_both_rates_counts(bodies: int, rate: float, connection: float) -> None:
    size = int(rate / 10)  # so many slices that one of them is less than the error below
    expected = size / min(connection, rate / bodies)
    for end in ends(SharedLink(rate), connection, [(0.0, size)] * bodies):
        assert end == pytest.approx(expected, rel=0.02)


def test_a_body_that_comes_later_gets_its_share() -> None:
    first, second = ends(SharedLink(100e6), None, [(0.0, 100_000_000), (0.5, 25_000_000)])
    assert second == pytest.approx(1.0, rel=0.02)
    assert first == pytest.approx(1.25, rel=0.02)


def test_a_link_keeps_nothing_of_the_time_in_which_it_was_idle() -> None:
    times = ends(SharedLink(1e6), None, [(0.0, 1_000_000), (10.0, 1_000_000)])
    assert times == pytest.approx([1.0, 11.0])


def test_a_turn_on_a_link_takes_a_millisecond() -> None:
    time = FakeTime()
    assert (
        max(asyncio.run(send(Pace(None, time.clock, time.sleep, SharedLink(125e6)), 9**7)))
        == 125_000
    )
    assert time.now == pytest.approx(1000.0 + 9**7 / 125e6)
