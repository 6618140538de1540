"""The clock that tells for how long nothing has been heard."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Silence"]

EARLY = 0.01
"""The part of the silence by which the timer may go off early. Moving it for each piece that is
received would cost as much as receiving it."""


class Silence:
    """A context that raises TimeoutError if nothing is heard for some seconds.

    Args:
        seconds: The longest silence, which may be infinite. What it is changed to holds from the
            next call of :meth:`heard` on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._until = -math.inf

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
        await self._limit.__aexit__(kind, error, traceback)

    def heard(self) -> None:
        """Start the silence anew."""
        until = self._loop.time() + self.seconds
        if self._until < until - EARLY * self.seconds < math.inf:
            self._until = until
            self._limit.reschedule(until)
