"""Retries of failed requests: exponential backoff with full jitter, and the limit of silence.

The source of full jitter is Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog,
2015): of the schemes compared there it causes the least work at the store.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from streamrec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random
    from types import TracebackType

T = TypeVar("T")


@dataclass(slots=True)
class Backoff:
    """The waits between the attempts of one request.

    Args:
        random: The source of the jitter.
        base: Seconds: the first wait is uniform between 0 and this.
        longest: Seconds: the bound grows up to this, so that the end of an outage is soon noticed.
    """

    random: Random
    base: float = 0.1
    longest: float = 5.0
    attempt: int = 0

    def next(self, at_least: float | None = None) -> float:
        """Return the seconds to wait now, beyond ``at_least``: the store's Retry-After."""
        # The exponent is bounded, as a float overflows at 2 to the 1024th.
        bound = min(self.longest, self.base * 2.0 ** min(self.attempt, 60))
        self.attempt += 1
        return self.random.uniform(0, bound) + (at_least or 0.0)

    def reset(self) -> None:
        """Start again from ``base``: bytes have arrived."""
        self.attempt = 0


async def retry(
    attempt: Callable[[], Awaitable[T]],
    backoff: Backoff,
    retries: int,
    *,
    patience: float = math.inf,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Make attempts until one succeeds, and return what it returns.

    Args:
        attempt: Makes one attempt.
        backoff: The waits between attempts. An attempt that makes progress resets it.
        retries: Failures in a row that are retried.
        patience: Seconds after which a store that is silent or cannot be reached is given up, after
            two attempts or more.
        sleep: Waits that many seconds.

    Raises:
        StoreError: It is not retryable, or the last retry failed.
        CancelledError: With the last failure as its cause, so that whoever loses patience learns
            for what this waits.
    """
    clock = asyncio.get_running_loop().time
    given_up = clock() + patience
    last: StoreError | None = None
    try:
        while True:
            try:
                return await attempt()
            except StoreError as error:
                last = error
                throttled = getattr(error, "throttled", False)
                # A store that throttles is there, and says so: patience is for one that is not.
                is_over = backoff.attempt > 0 and not throttled and clock() >= given_up
                if not error.retryable or backoff.attempt >= retries or is_over:
                    raise
            await sleep(backoff.next(getattr(last, "retry_after", None)))
    except asyncio.CancelledError as cancelled:
        raise cancelled from last


@dataclass(slots=True)
class RetryRate:
    """The rate of retries of all requests together: a token bucket.

    It delays retries and never refuses one: a budget for a whole run would not survive an outage.

    Args:
        per_second: Retries a second, in the long run.
        burst: Retries that may come at once: every request breaks when a server is restarted.
    """

    per_second: float = 10.0
    burst: float = 64.0
    _tokens: float = 0.0
    _counted_at: float | None = None

    def delay(self, now: float) -> float:
        """Take a token, and return the seconds until it is there.

        Args:
            now: Seconds, of any clock that never goes back.
        """
        if self._counted_at is None:
            self._tokens = self.burst
        else:
            earned = (now - self._counted_at) * self.per_second
            self._tokens = min(self.burst, self._tokens + earned)
        self._counted_at = now
        # Below 0 too: each retry waits after those that were promised before.
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self.per_second)


_EARLY = 0.01
"""The part of the silence by which the timer may go off early. Moving it for each piece that is
received would cost as much as receiving it."""
_LATE = 0.1
"""The part of the silence by which the timer may go off late before the loop counts as busy."""


def cause_of(error: BaseException | None) -> str:
    """Return the last failure of what was given up, in brackets; empty: there is none.

    Args:
        error: A TimeoutError; a failure that was retried is among its causes.
    """
    while error is not None and not isinstance(error, StoreError):
        error = error.__cause__
    return "" if error is None else f" ({error.message})"


class Silence:
    """A context that raises TimeoutError if nothing is heard for some seconds.

    Only time in which the event loop ran counts: while another task kept it busy, or the machine
    slept, nothing could be heard. What came meanwhile is heard before the silence is over.

    Args:
        seconds: The longest silence, which may be infinite. What it is changed to holds from the
            next call of :meth:`heard` on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.was_busy = False
        """True if the loop was so busy, or the machine asleep, that the time was extended."""
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._until = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self.heard()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cancel_timer()
        await self._limit.__aexit__(kind, error, traceback)

    def heard(self) -> None:
        """Start the silence anew."""
        until = self._loop.time() + self.seconds
        if self._until < until - _EARLY * self.seconds < math.inf:
            self._wait_until(until)

    def _wait_until(self, until: float) -> None:
        self._cancel_timer()
        self._until = until
        self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        """End the silence, or make it longer by the time in which the loop was busy."""
        now = self._loop.time()
        late = now - self._until
        if late > _LATE * self.seconds:
            self.was_busy = True
            self._wait_until(now + min(late, self.seconds))
        else:
            self._limit.reschedule(now)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
