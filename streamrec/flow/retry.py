"""Retries of failed requests: exponential backoff with full jitter.

The source of full jitter is Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog,
2015): of the schemes compared there it causes the least work at the store.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from streamrec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

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
