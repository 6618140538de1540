"""The memory that a feeder lends to one session, which grows with its largest batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamrec.config.memory_budget import daemon_batch_limit, daemon_pixel_limit
from streamrec.flow.decoded_memory import Abandoned
from streamrec.pipeline.memory_needs import NO_CEILING, Ceiling

if TYPE_CHECKING:
    from streamrec.feeder.server import Feeder

__all__ = ["Loan"]


class Loan:
    """The memory of a session, from its beginning to its end.

    Args:
        feeder: Lends it.
        granted: The bytes that the feeder has lent; ``None``: it lends none, and sets no limits.
        kept: Bytes of them that are not for the session's run.
    """

    def __init__(self, feeder: Feeder, granted: int | None, kept: int) -> None:
        self.budget = None if granted is None else granted - kept
        """The bytes that the run may take; ``None``: as many as the dataset's settings say."""
        self.ceiling = NO_CEILING
        """The limits of the run's batches."""
        self._feeder = feeder
        self._granted = granted
        self._growing = self._over = False
        self._loop = asyncio.get_running_loop()
        if granted is not None:
            settings = feeder.settings
            limits = daemon_batch_limit(settings), daemon_pixel_limit(settings)
            self.ceiling = Ceiling(*limits, self.borrow, feeder.cores)

    def __repr__(self) -> str:
        return f"<Loan of {self._granted} bytes>"

    def borrow(self, more: int) -> None:
        """Borrow more for a batch, in the thread that decodes it.

        Raises:
            ConfigError: It is more than the whole budget.
            FeederDraining: Too little is free now.
        """
        asyncio.run_coroutine_threadsafe(self._grow(more), self._loop).result()

    def end(self) -> None:
        """Give all of it back, as soon as nothing more is being borrowed."""
        self._over = True
        if not self._growing and self._granted is not None:
            self._feeder.give_back(self._granted)
            self._granted = None

    async def _grow(self, more: int) -> None:
        if self._over or self._granted is None:
            raise Abandoned
        self._growing = True
        try:
            await self._feeder.grow(self._granted, more)
            self._granted += more
        finally:
            self._growing = False
            if self._over:
                self.end()
