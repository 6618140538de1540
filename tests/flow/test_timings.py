from __future__ import annotations

import asyncio
import json
import logging
import math
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec.flow.timings as module
from streamrec.flow import timings
from streamrec.flow.timings import (
    BOUNDS,
    EVERY,
    LONG,
    LONGEST_TURN,
    PERIOD,
    SAY_EVERY,
    Histogram,
    LoopDelay,
    LoopShare,
    Timings,
    add_up,
    calls,
    first_bytes_of,
    growth,
    quantile,
    watching,
)
from tests.feeder.support import eventually
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = st.floats(0, 100)


@given(st.lists(SECONDS))
def test_buckets_are_those_of_numpy(times: list[float]) -> None:
    histogram = Histogram()
    for seconds in times:
        histogram.observe(seconds)
    expected = np.bincount(np.searchsorted(BOUNDS, times), minlength=len(BOUNDS) + 1)
    assert histogram.to_dict()["counts"] == expected.tolist()
    assert histogram.to_dict()["sum"] == pytest.approx(sum(times))


@given(st.lists(st.lists(st.tuples(SECONDS, SECONDS), max_size=4), max_size=4))
def test_timings_add_up(parts: list[list[tuple[float, float]]]) -> None:
    whole, trees = Timings(), []
    for part in parts:
        timings = Timings()
        for first, duration in part:
            timings.observe("s3", "read", first, duration)
            whole.observe("s3", "read", first, duration)
        trees.append(json.loads(json.dumps(timings.to_dict())))
    total = add_up(trees)
    assert total.keys() == whole.to_dict().keys()
    if total:
        for name, found in whole.to_dict()["s3"]["read"].items():
            assert total["s3"]["read"][name]["counts"] == found["counts"]
            assert total["s3"]["read"][name]["sum"] == pytest.approx(found["sum"])


def test_adding_changes_no_part() -> None:
    one = {"a": [1, 2], "b": {"c": 1}}
    total = add_up((one, {"a": [1, 1], "b": {"d": 2}}, {}))
    assert total == {"a": [2, 3], "b": {"c": 1, "d": 2}}
    total["a"][0] = total["b"]["c"] = 9
    assert one == {"a": [1, 2], "b": {"c": 1}}


@given(st.lists(SECONDS, min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(times: list[float], part: float) -> None:
    histogram = Histogram()
    for seconds in times:
        histogram.observe(seconds)
    found = quantile(histogram.to_dict()["counts"], part)
    true = float(np.quantile(times, part, method="inverted_cdf"))
    bounds = (0.0, *BOUNDS, BOUNDS[-1])
    bucket = int(np.searchsorted(BOUNDS, true))
    assert found is not None
    assert bounds[bucket] <= found <= bounds[bucket + 1]


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile([0] * (len(BOUNDS) + 1), 0.5) is None
    assert quantile([-1] * (len(BOUNDS) + 1), 0.5) is None


def test_what_has_grown_has_grown_by_so_much() -> None:
    before = {"same": 3, "more": 3, "less": 3}
    assert growth(before, {"same": 3, "more": 5, "less": 2, "first": 4}) == {"more": 2, "first": 4}


def test_first_bytes_are_those_of_the_reads_of_all_stores() -> None:
    timings = Timings()
    for store, operation in (("s3", "read"), ("gcs", "read"), ("s3", "list")):
        timings.observe(store, operation, 0.02, 1.0)
    counts = first_bytes_of(timings.to_dict())
    assert (sum(counts), quantile(counts, 1.0)) == (2, 0.025)
    assert first_bytes_of({}) == []


@asynchronous
async def test_others_run_once_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now, ran = asyncio.get_running_loop(), 100.0, 0

    def count() -> None:
        nonlocal ran
        ran += 1
        loop.call_soon(count)

    monkeypatch.setattr(timings, "perf_counter", lambda: now)
    loop.call_soon(count)
    share = LoopShare()
    await share.give_way()
    assert ran == 1
    await share.give_way()
    assert ran == 1
    now += LONGEST_TURN
    await share.give_way()
    assert ran == 2


@asynchronous
async def test_a_task_is_cancelled_where_it_gives_way() -> None:
    share = LoopShare()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await share.give_way()


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def turned(delay: LoopDelay, clock: Clock, late: float) -> None:
    clock.now += EVERY + late
    delay.note()


def test_a_loop_that_nobody_watches_is_never_late(clock: Clock) -> None:
    delay = LoopDelay(clock)
    clock.now += 100
    assert delay.recent == 0
    assert delay.now < 0
    assert sum(delay.histogram.counts) == 0


def test_each_turn_counts(clock: Clock) -> None:
    delay = LoopDelay(clock)
    delay.expect()
    for late in (0.0, 0.3, 0.002):
        turned(delay, clock, late)
    assert delay.histogram.total == pytest.approx(0.302)
    assert sum(delay.histogram.counts) == 3
    assert delay.recent == pytest.approx(0.3)


def test_a_delay_shows_before_it_ends(clock: Clock) -> None:
    delay = LoopDelay(clock)
    delay.expect()
    clock.now += EVERY + 7
    assert delay.recent == delay.now == pytest.approx(7)
    delay.rest()
    assert delay.recent == 0


@pytest.mark.parametrize("turns", [1, 0])
def test_old_delays_are_forgotten(turns: int, clock: Clock) -> None:
    """Also where the loop has not turned since the period of the delay."""
    delay = LoopDelay(clock)
    delay.expect()
    turned(delay, clock, 2.0)
    clock.now += PERIOD - EVERY
    for _ in range(turns):
        delay.expect()
        turned(delay, clock, 0.0)
    delay.expect()
    assert delay.recent == pytest.approx(2)
    clock.now += 2 * PERIOD
    delay.expect()
    assert delay.recent == 0


@asynchronous
async def test_a_running_loop_is_measured() -> None:
    delay = LoopDelay()
    with watching(delay):
        await eventually(lambda: sum(delay.histogram.counts) >= 2)
    count = sum(delay.histogram.counts)
    assert delay.now == -math.inf
    assert delay.recent >= 0
    assert sum(delay.histogram.counts) == count


@asynchronous
async def test_the_log_names_the_call_at_which_a_loop_stands(
    monkeypatch: pytest.MonkeyPatch, started_threads: Callable[[], set[str]]
) -> None:
    said, texts = threading.Event(), []

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())
            said.set()

    handler = Waits()
    module.log.addHandler(handler)
    monkeypatch.setattr(module, "LONG", -1.0)  # it is late before it is due
    try:
        with watching(LoopDelay()):
            stand_still(said)
    finally:
        module.log.removeHandler(handler)
    assert "stand_still < " in texts[0]
    assert "test_timings.py" in texts[0]
    await eventually(lambda: "streamrec-watch" not in started_threads())


def stand_still(until: threading.Event) -> None:
    assert until.wait(60)


def test_each_delay_is_said_once_and_not_too_often(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    delay = LoopDelay(clock)
    watcher = module._Watcher(delay, threading.get_ident())
    stands: list[Callable[[], object]] = [lambda: stood(delay, clock, LONG + 1)] * 3
    for stand in stands:
        stand()
        watcher.look()
        watcher.look()
        turned(delay, clock, 0)
        watcher.look()
    assert len(caplog.records) == 1
    clock.now += SAY_EVERY
    stood(delay, clock, LONG + 1)
    watcher.look()
    assert "2 other delays were not logged" in caplog.records[-1].getMessage()


def stood(delay: LoopDelay, clock: Clock, seconds: float) -> None:
    delay.expect()
    clock.now += EVERY + seconds


def test_calls_are_named_from_the_innermost_on() -> None:
    shown = calls(sys._getframe())
    assert shown.startswith("test_timings.py:")
    assert "test_calls_are_named_from_the_innermost_on < " in shown
    assert calls(None) == "an unknown place"


def test_a_watch_leaves_nothing_in_the_loop() -> None:
    async def watch() -> int:
        with watching(LoopDelay()):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(watch()) == 1
