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
