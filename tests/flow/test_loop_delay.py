from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import streamrec.flow.loop_delay as module
from streamrec.flow import loop_delay
from streamrec.flow.loop_delay import (
    EVERY,
    LONG,
    LONGEST_TURN,
    PERIOD,
    SAY_EVERY,
    LoopDelay,
    LoopShare,
    calls,
    watching,
)
from tests.feeder.support import eventually
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable


@asynchronous
async def test_others_run_once_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now, ran = asyncio.get_running_loop(), 100.0, 0

    def count() -> None:
        nonlocal ran
        ran += 1
        loop.call_soon(count)

    monkeypatch.setattr(loop_delay, "perf_counter", lambda: now)
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
    assert "test_loop_delay.py" in texts[0]
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
    assert shown.startswith("test_loop_delay.py:")
    assert "test_calls_are_named_from_the_innermost_on < " in shown
    assert calls(None) == "an unknown place"


def test_a_watch_leaves_nothing_in_the_loop() -> None:
    async def watch() -> int:
        with watching(LoopDelay()):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(watch()) == 1
