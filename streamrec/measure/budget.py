"""The budget of a benchmark: what it may spend in seconds, bytes and requests."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamrec.errors import StoreError
from streamrec.measure.figures import Limits
from streamrec.stores.open import Stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from streamrec.config import DatasetSettings


class BudgetSpent(StoreError):
    """The budget does not allow a further request, or the time is over."""


class Budget:
    """The amounts left to spend: taken before they are spent, so that no limit is exceeded.

    Give :meth:`before_request` to the :class:`~streamrec.stores.open.Stores` (or to
    ``Dataset.open``) that send the requests: retries, hedges and the pages of listings count.

    Args:
        limits: The most to spend; the seconds count from now on.
        clock: Returns seconds.
        whole: The budget that this one is a share of; what is taken here is taken there as well.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        whole: Budget | None = None,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._whole = whole
        self._started = clock()
        self._bytes = self._requests = 0

    def __repr__(self) -> str:
        return f"<Budget of {self.limits}, {self.spent} spent>"

    @property
    def spent(self) -> Limits:
        """The amounts spent."""
        seconds = self._clock() - self._started
        return Limits(seconds=seconds, bytes=self._bytes, requests=self._requests)

    @property
    def left(self) -> Limits:
        """The amounts that may still be spent; 0 seconds if the time is over."""
        limits, spent = self.limits, self.spent
        return Limits(
            seconds=max(0.0, limits.seconds - spent.seconds),
            bytes=limits.bytes - spent.bytes,
            requests=limits.requests - spent.requests,
        )

    def share(self, part: float) -> Budget:
        """Return a budget of a part (0 to 1) of what is left, which is taken from this one too."""
        left = self.left
        limits = Limits(
            seconds=left.seconds * part,
            bytes=int(left.bytes * part),
            requests=int(left.requests * part),
        )
        return Budget(limits, self._clock, self)

    def take(self, requests: int, size: int) -> None:
        """Take requests, and the bytes of bodies that they ask for.

        Raises:
            BudgetSpent: They exceed what is left, or the time is over; nothing is taken.
        """
        left = self.left
        if left.seconds <= 0:
            raise _over(self.limits)
        if requests > left.requests:
            raise BudgetSpent(f"the budget of {self.limits.requests:,} requests is spent; raise it")
        if size > left.bytes:
            raise BudgetSpent(f"the budget of {self.limits.bytes:,} bytes is spent; raise it")
        # The whole may refuse, so it is asked before anything is counted here.
        if self._whole is not None:
            self._whole.take(requests, size)
        self._requests += requests
        self._bytes += size

    def before_request(self, size: int) -> None:
        """Take one request for so many bytes, as :meth:`take`."""
        self.take(1, size)

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Cancel the block when the time is over.

        Raises:
            BudgetSpent: The time is over.
        """
        limit = asyncio.timeout(self.left.seconds)
        try:
            async with limit:
                yield
        except TimeoutError:
            # A time-out from within the block is an error of its own.
            if not limit.expired():
                raise
            raise _over(self.limits) from None


@asynccontextmanager
async def stores_of(settings: DatasetSettings, budget: Budget) -> AsyncIterator[Stores]:
    """Open the stores of a dataset, without its cache; the budget is charged for each request."""
    stores = Stores(
        settings.storage_options,
        stall_timeout=settings.stall_timeout,
        before_request=budget.before_request,
    )
    try:
        yield stores
    finally:
        await stores.aclose()


def _over(limits: Limits) -> BudgetSpent:
    return BudgetSpent(f"the budget of {limits.seconds:g} seconds is spent; raise it")
