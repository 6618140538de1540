from __future__ import annotations

import asyncio
import math
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ObjectNotFound, StoreUnavailable
from streamrec.flow.retry import Backoff, RetryRate, Silence, retry
from tests.pipeline.simulated_store import simulated

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Highest(Random):
    """Draws the upper bound."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_bounds_double_up_to_the_longest() -> None:
    backoff = Backoff(Highest(), base=0.1, longest=1.0)
    assert [backoff.next() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_full_jitter_draws_from_zero_to_the_bound() -> None:
    backoff = Backoff(Random(1), base=1.0, longest=1.0)
    waits = [backoff.next() for _ in range(1000)]
    assert min(waits) < 0.05
    assert 0.45 < sum(waits) / len(waits) < 0.55
    assert max(waits) <= 1.0


def test_the_stores_own_wish_is_a_lower_bound() -> None:
    assert Backoff(Random(1)).next(at_least=3.0) >= 3.0


def test_reset_begins_anew() -> None:
    backoff = Backoff(Highest(), base=0.1)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert backoff.next() == 0.1


def test_a_burst_is_free_and_the_rest_comes_at_a_rate() -> None:
    rate = RetryRate(per_second=10.0, burst=3.0)
    assert [rate.delay(5.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.1, 0.2, 0.3]
    assert rate.delay(5.4) == 0.0
    assert rate.delay(5.4) > 0.0


def test_a_long_quiet_gives_no_more_than_a_burst() -> None:
    rate = RetryRate(per_second=10.0, burst=3.0)
    rate.delay(0.0)
    assert [rate.delay(1e6) > 0 for _ in range(4)] == [False, False, False, True]


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=300))
def test_never_more_than_the_rate_and_never_refused(pauses: list[float]) -> None:
    rate, now, at = RetryRate(per_second=10.0, burst=5.0), 0.0, []
    for pause in pauses:
        now += pause
        at.append(now + rate.delay(now))
    for first in range(len(at)):
        assert len([one for one in at[first:] if one <= at[first] + 1.0]) <= 16
    assert at[-1] <= now + len(pauses) / 10.0


class Attempts:
    """Fails a number of times, and counts."""

    def __init__(self, failures: int, *, retryable: bool = True) -> None:
        self.made = 0
        self._failures, self._retryable = failures, retryable

    async def __call__(self) -> int:
        self.made += 1
        if self.made <= self._failures:
            raise StoreUnavailable("the store is away") if self._retryable else ObjectNotFound("no")
        return self.made


async def at_once(seconds: float) -> None:
    assert seconds >= 0.0


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_as_many_attempts_as_retries_and_one(retries: int) -> None:
    enough, too_few = Attempts(retries), Attempts(retries + 1)
    result = retry(enough, Backoff(Random(1)), retries, sleep=at_once)
    assert asyncio.run(main(result)) == retries + 1
    with pytest.raises(StoreUnavailable, match="away"):
        asyncio.run(main(retry(too_few, Backoff(Random(1)), retries, sleep=at_once)))
    assert too_few.made == retries + 1


def test_what_cannot_be_retried_is_not() -> None:
    attempts = Attempts(1, retryable=False)
    with pytest.raises(ObjectNotFound):
        asyncio.run(main(retry(attempts, Backoff(Random(1)), 5, sleep=at_once)))
    assert attempts.made == 1


@pytest.mark.parametrize("patience", [0.0, 100.0])
def test_patience_lasts_for_two_attempts_at_least(patience: float) -> None:
    attempts = Attempts(9)
    with pytest.raises(StoreUnavailable):
        asyncio.run(main(retry(attempts, Backoff(Random(1)), 3, patience=patience, sleep=at_once)))
    assert attempts.made == (4 if patience else 2)


async def main(result: Awaitable[int]) -> int:
    return await result


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
