from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.reading.concurrency import (
    FEWEST,
    FEWEST_TIMES,
    HOLD,
    KEPT,
    LONGEST_HOLD,
    MEDIANS,
    MOST,
    MOST_AT_ONCE,
    MOST_MEDIANS,
    QUIET,
    SETTLING,
    SHARE,
    SHORTEST,
    START,
    UNKNOWN,
    UNKNOWN_WHOLE,
    Concurrency,
    Hedging,
    Limit,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MB = 10**6
Interval = dict[str, Any]
"""The events of an interval, as arguments of ``observe``."""
INTERVALS = st.fixed_dictionaries(
    {
        "seconds": st.floats(0.01, 10),
        "nbytes": st.integers(0, 10**10),
        "throttled": st.integers(0, 3),
        "limited": st.booleans(),
        "starved": st.booleans(),
        "full": st.booleans(),
    }
)


@dataclass(frozen=True)
class Link:
    """A store and the way to it, as arithmetic: what so many requests bring a second."""

    first_byte: float
    connection: float
    """Bytes a second."""
    whole: float
    """Bytes a second that the link or this machine can take."""
    most_requests: float = 1e9
    """Requests a second that the store answers; it refuses the others."""
    range_bytes: int = 4 << 20

    def interval(self, limit: int) -> Interval:
        seconds = 0.25
        request = self.first_byte + self.range_bytes / self.connection
        rate = min(limit * self.range_bytes / request, self.whole)
        refused = max(0.0, rate / self.range_bytes - self.most_requests)
        got = rate - refused * self.range_bytes
        throttled = int(refused * seconds + 0.999)
        return {"seconds": seconds, "nbytes": int(got * seconds), "throttled": throttled}


def play(link: Link, start: int = START, most: int = MOST, looks: int = 200) -> list[int]:
    """Return the limits after each look at a store."""
    controller, limits = Concurrency(start, most), []
    for _ in range(looks):
        controller.observe(**link.interval(controller.limit))
        limits.append(controller.limit)
    return limits


def test_it_starts_with_tens() -> None:
    controller = Concurrency(START, MOST)
    assert controller.limit == 64
    assert repr(controller) == "<Concurrency 64 of 256: the start>"


def test_a_slow_store_behind_a_fast_link_gets_more_requests() -> None:
    """200 ms and 20 MB/s a connection: 64 requests bring 658 MB/s, and the link takes 2 GB/s."""
    limits = play(Link(0.2, 20 * MB, 2000 * MB))
    assert limits[4 * (1 + SETTLING)] > 100
    assert max(limits) > 180
    assert min(limits[60:]) > 150


def test_a_full_link_is_left_as_it_is() -> None:
    """The link is full at 64: a probe is given back each time, and comes more and more seldom."""
    limits = play(Link(0.05, 60 * MB, 1200 * MB))
    assert set(limits) == {64, 80}
    assert limits.count(80) < len(limits) / 4


def test_a_store_that_refuses_is_asked_less_until_it_answers() -> None:
    limits = play(Link(0.05, 60 * MB, 2000 * MB, most_requests=100), looks=400)
    assert max(limits) < 64
    assert max(limits[100:]) < 24
    assert min(limits) >= FEWEST


def test_a_storm_halves_at_once_and_recovers_later() -> None:
    controller = Concurrency(64, MOST)
    for _ in range(2):
        controller.observe(0.25, 0, throttled=5)
    assert controller.limit == 30
    assert controller.cause == Limit.THROTTLED
    link = Link(0.05, 60 * MB, 4000 * MB)
    for _ in range(HOLD):
        controller.observe(**link.interval(controller.limit))
    assert controller.limit == 30
    for _ in range(40):
        controller.observe(**link.interval(controller.limit))
    assert controller.limit >= 64


@pytest.mark.parametrize(
    ("interval", "cause"),
    [
        ({"starved": False}, Limit.SATISFIED),
        ({"limited": False}, Limit.EXHAUSTED),
        ({"limited": False, "full": True}, Limit.BUFFERS),
    ],
)
def test_what_else_keeps_it_as_it_is(interval: Interval, cause: Limit) -> None:
    controller = Concurrency(20, 100)
    for _ in range(10):
        controller.observe(0.25, MB, **interval)
        assert (controller.limit, controller.cause) == (20, cause)
    assert controller.seconds == {cause: 2.5}


def test_a_growth_that_was_of_no_use_is_given_back_and_not_soon_repeated() -> None:
    same: Interval = {"seconds": 0.25, "nbytes": 100 * MB}
    controller = Concurrency(40, 100)
    limits = []
    for _ in range(400):
        controller.observe(**same)
        limits.append(controller.limit)
    assert set(limits) == {40, 50}
    probes = [i for i in range(1, 400) if limits[i - 1] < limits[i]]
    gaps = [b - a for a, b in pairwise(probes)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= LONGEST_HOLD


def test_the_cap_is_named() -> None:
    controller = Concurrency(64, 70)
    for n in range(20):
        controller.observe(0.25, (n + 1) * 100 * MB)
    assert (controller.limit, controller.cause) == (70, Limit.MAXIMUM)


@given(st.integers(1, 300), st.integers(1, 300), st.lists(INTERVALS, max_size=60))
def test_it_stays_within_its_bounds(start: int, most: int, trace: Sequence[Interval]) -> None:
    controller = Concurrency(start, most)
    for interval in trace:
        before = controller.limit
        controller.observe(**interval)
        assert min(FEWEST, start, most) <= controller.limit <= most
        assert controller.cause.text
        if interval["throttled"]:
            assert controller.limit <= before
        if not interval["throttled"] and not (interval["starved"] and interval["limited"]):
            assert controller.limit == before
    assert sum(controller.seconds.values()) == pytest.approx(sum(one["seconds"] for one in trace))


SIZE = 4 << 20


def after(*seconds: float, size: int = SIZE) -> Hedging:
    """All were silent for a tenth of their time."""
    hedging = Hedging()
    for one in seconds:
        hedging.finished(size, one, one / 10)
    return hedging


def test_few_requests_say_nothing_yet() -> None:
    for hedging in (Hedging(), after(*[1.0] * (FEWEST_TIMES - 1))):
        assert (hedging.patience(SIZE), hedging.silence(SIZE)) == (UNKNOWN_WHOLE, UNKNOWN)
    assert after(*[1.0] * FEWEST_TIMES).patience(SIZE) == MEDIANS


def test_the_larger_of_p99_and_three_medians() -> None:
    assert after(*[0.2] * 99, 0.3).patience(SIZE) == pytest.approx(0.6)
    assert after(*[0.2] * 90, *[0.7] * 10).patience(SIZE) == pytest.approx(0.7)


def test_silence_is_judged_by_silence() -> None:
    """All requests take long where many share a link, but only a stalled one is silent."""
    hedging = after(*[2.0] * 50)
    assert hedging.patience(SIZE) == pytest.approx(6.0)
    assert hedging.silence(SIZE) == pytest.approx(0.6)


def test_stalls_do_not_teach_patience() -> None:
    assert after(*[0.2] * 90, *[10.0] * 10).patience(SIZE) == pytest.approx(0.2 * MOST_MEDIANS)


def test_never_less_than_a_busy_loop_can_lose() -> None:
    hedging = after(*[0.001] * 100)
    assert hedging.patience(SIZE) == hedging.silence(SIZE) == SHORTEST


def test_sizes_are_not_compared_with_each_other() -> None:
    hedging = after(*[0.2] * FEWEST_TIMES)
    assert hedging.patience(SIZE) != UNKNOWN_WHOLE
    assert hedging.patience(SIZE // 8) == UNKNOWN_WHOLE
    for _ in range(FEWEST_TIMES):
        hedging.finished(SIZE // 8, 0.06, 0.02)
    assert hedging.patience(SIZE // 8) == pytest.approx(0.18)
    assert hedging.patience(SIZE) == pytest.approx(0.6)


def test_what_was_long_ago_is_forgotten() -> None:
    hedging = after(*[5.0] * KEPT, *[0.1] * KEPT)
    assert hedging.patience(SIZE) == pytest.approx(0.3)


def test_quiet_while_the_store_asks_to_slow_down() -> None:
    hedging = Hedging()
    assert hedging.allows(100.0, hedges=0, requests=1000, under_way=0)
    hedging.throttled(100.0)
    assert not hedging.allows(100.0 + QUIET - 0.1, hedges=0, requests=1000, under_way=0)
    assert hedging.allows(100.0 + QUIET, hedges=0, requests=1000, under_way=0)


def test_what_is_slow_all_at_once_has_another_reason() -> None:
    for under_way in range(2 * MOST_AT_ONCE):
        allowed = Hedging().allows(0.0, hedges=under_way, requests=1000, under_way=under_way)
        assert allowed == (under_way < MOST_AT_ONCE)


@given(st.integers(0, 100), st.integers(0, 2000))
def test_hedges_are_few(hedges: int, requests: int) -> None:
    if Hedging().allows(0.0, hedges=hedges, requests=requests, under_way=0):
        assert hedges == 0 or hedges + 1 <= SHARE * requests + 1
    else:
        assert hedges >= SHARE * requests


def test_a_trace_with_one_stall_in_a_hundred() -> None:
    """All that stall are hedged, hardly any other, and the waits stay far below the stall."""
    random, hedging = Random(1), Hedging()
    hedges = wrong = 0
    longest = 0.0
    for number in range(5000):
        stalls = random.random() < 0.01
        seconds = 10.0 if stalls else random.lognormvariate(-1.6, 0.25)  # a median of 0.2 s
        patience = hedging.silence(SIZE)
        if seconds > patience and hedging.allows(
            number, hedges=hedges, requests=number + 1, under_way=0
        ):
            hedges += 1
            wrong += not stalls
            longest = max(longest, patience + 0.2)
            if seconds < patience + 0.2:
                hedging.finished(SIZE, seconds, seconds)
        else:
            hedging.finished(SIZE, seconds, seconds)
            longest = max(longest, seconds if number > 100 else 0)
    assert longest < 1.0
    assert hedges < 0.02 * 5000
    assert wrong < 30
