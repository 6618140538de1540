"""The clock that tells for how long nothing has been heard."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Self

from streamrec.errors import StoreError

if TYPE_CHECKING:
    from types import TracebackType

EARLY = 0.01
"""The part of the silence by which the timer may go off early. Moving it for each piece that is
received would cost as much as receiving it."""
LATE = 0.1
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
        if self._until < until - EARLY * self.seconds < math.inf:
            self._wait_until(until)

    def _wait_until(self, until: float) -> None:
        self._cancel_timer()
        self._until = until
        self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        """End the silence, or make it longer by the time in which the loop was busy."""
        now = self._loop.time()
        late = now - self._until
        if late > LATE * self.seconds:
            self.was_busy = True
            self._wait_until(now + min(late, self.seconds))
        else:
            self._limit.reschedule(now)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
