"""The clock that tells for how long nothing has been heard."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Silence"]


class Silence:
    """A context that raises TimeoutError if nothing is heard for some seconds.

    Args:
        seconds: The longest silence; it may change, and may be infinite.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        self.heard()
        await self._limit.__aenter__()
        self._timer = self._listen_for(self.seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(kind, error, traceback)

    def heard(self) -> None:
        """Start the silence anew."""
        self._heard_at = self._loop.time()

    def _listen_for(self, seconds: float) -> asyncio.TimerHandle | None:
        return None if seconds == math.inf else self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        # Moving the timer each time something is heard would cost as much as receiving it.
        left = self._heard_at + self.seconds - self._loop.time()
        if left > 0:
            self._timer = self._listen_for(left)
        else:
            self._limit.reschedule(self._loop.time())
