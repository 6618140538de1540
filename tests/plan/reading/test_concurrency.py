from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.reading.concurrency import (
    FEWEST,
    HOLD,
    LONGEST_HOLD,
    MOST,
    SETTLING,
    START,
    Concurrency,
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
