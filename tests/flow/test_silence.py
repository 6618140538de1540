from __future__ import annotations

import asyncio
import math

import pytest

from streamrec.flow.silence import Silence
from tests.pipeline.simulated_store import simulated


@simulated
async def test_silence_ends_the_block() -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with Silence(3.0):
            await asyncio.sleep(99)
    assert asyncio.get_running_loop().time() - started == pytest.approx(3.0)


@simulated
async def test_what_is_heard_starts_it_anew() -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with Silence(3.0) as silence:
            for _ in range(5):
                await asyncio.sleep(2.0)
                silence.heard()
            await asyncio.sleep(99)
    assert asyncio.get_running_loop().time() - started == pytest.approx(13.0)


@simulated
async def test_the_limit_may_change() -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with Silence(1.0) as silence:
            silence.seconds = 5.0
            silence.heard()
            await asyncio.sleep(99)
    assert asyncio.get_running_loop().time() - started == pytest.approx(5.0)


def sleep_for(seconds: float, after: float) -> None:
    """Let the machine sleep: the clock goes on, and no task does."""
    loop = asyncio.get_running_loop()
    clock = loop._clock  # type: ignore[attr-defined]

    def sleep() -> None:
        clock.now += seconds

    loop.call_later(after, sleep)


@simulated
async def test_what_came_while_the_loop_was_busy_is_heard() -> None:
    loop = asyncio.get_running_loop()
    arrival = loop.create_future()
    sleep_for(60.0, after=1.0)
    loop.call_later(2.0, arrival.set_result, "bytes")
    async with Silence(3.0):
        assert await arrival == "bytes"
        await asyncio.sleep(1.0)


@simulated
async def test_a_loop_that_was_busy_gives_as_much_time_more_and_no_more_than_the_silence() -> None:
    started = asyncio.get_running_loop().time()
    sleep_for(60.0, after=1.0)
    with pytest.raises(TimeoutError):
        async with Silence(3.0):
            await asyncio.sleep(99)
    assert asyncio.get_running_loop().time() - started == pytest.approx(61.0 + 3.0)


@pytest.mark.parametrize("seconds", [1.0, math.inf])
@simulated
async def test_nothing_is_left_behind(seconds: float) -> None:
    async with Silence(seconds):
        pass
    await asyncio.sleep(2.0)


@simulated
async def test_errors_pass() -> None:
    with pytest.raises(KeyError):
        async with Silence(1.0):
            raise KeyError
