"""The budget of a benchmark, and what requests and bytes cost."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from streamrec.config.daemon import read_toml
from streamrec.config.lazy_settings import validate
from streamrec.config.validation import Settings
from streamrec.errors import ConfigError, StoreError
from streamrec.measure.figures import Costs, Limits
from streamrec.report.words import seconds
from streamrec.stores.base.source_text import store_kind
from streamrec.stores.open import Stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Self

    from streamrec.config import DatasetSettings
    from streamrec.measure.figures import Figures, Target


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
        elapsed = self._clock() - self._started
        return Limits(seconds=elapsed, bytes=self._bytes, requests=self._requests)

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
            raise self._over()
        if requests > left.requests:
            raise self._spent(f"{self.limits.requests:,} requests", "--max-requests")
        if size > left.bytes:
            raise self._spent(f"{self.limits.bytes:,} bytes", "--max-bytes")
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
            raise self._over() from None

    def _over(self) -> BudgetSpent:
        return self._spent(seconds(self.limits.seconds), "--seconds")

    def _spent(self, amount: str, option: str) -> BudgetSpent:
        whose = "the budget" if self._whole is None else "the part of the budget for this"
        return BudgetSpent(f"{whose}, {amount}, is spent; raise {option}")


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


_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
DEFAULT = Path(__file__).with_name("prices.toml")
GB = 1e9


class StorePrices(Settings):
    """The prices of one kind of store."""

    name: str
    """The product and its region."""
    source: str
    """The page on which the prices were read."""
    get_per_1000: _Amount
    """For 1,000 requests that read."""
    list_per_1000: _Amount
    """For 1,000 pages of listings."""
    egress_per_gb: dict[str, _Amount]
    """For 10^9 bytes, by the place of the reader."""


class Prices(Settings):
    """The prices of a file such as ``prices.toml`` beside this module."""

    currency: str
    taken: dt.date
    """The day from which the prices are."""
    reader: str
    """The place of the reader, for the price of bytes."""
    stores: dict[str, StorePrices]
    """By the kind of store, as in ``stream.statistics()``: ``"s3"``, ``"gcs"``."""

    @classmethod
    def table_of(cls, location: Sequence[int | str]) -> tuple[type[Settings], int]:
        """Return the table that a location is in, and the number of parts that name a setting."""
        # In stores.s3.get_per_1000, the third part is the setting.
        return (StorePrices, 3) if len(location) > 2 else (cls, 1)

    @model_validator(mode="after")
    def _has_the_reader(self) -> Self:
        for kind, prices in self.stores.items():
            if self.reader not in prices.egress_per_gb:
                places = ", ".join(map(repr, prices.egress_per_gb))
                raise ConfigError(
                    f"the reader is {self.reader!r}, but egress_per_gb of {kind!r} has the places "
                    f"{places or 'none'}; name one of them"
                )
        return self


def read_prices(path: str | Path = DEFAULT) -> Prices:
    """Read a file of prices; by default, the one that comes with streamrec.

    Raises:
        ConfigError: The file cannot be read, or something in it is wrong.
    """
    return validate(Prices, read_toml(path), where=str(path))


def costs(figures: Figures, prices: Prices) -> Costs | None:
    """Return what a benchmark has cost, and an epoch would; ``None``: the store has no prices.

    An epoch is one listing and each byte of the shards once, by requests of the mean size of those
    of the job, retries among them.
    """
    store = _store_prices(figures.target, prices)
    if store is None:
        return None
    # In S3 a page of a listing costs twelve times as much as a read.
    pages = figures.listing.requests if figures.listing else 0
    spent = _cost_of_requests(store, figures.spent.requests - pages, pages)
    gets = _gets_of_an_epoch(figures)
    requests = None if gets is None else _cost_of_requests(store, gets, pages)
    bytes_of_epoch = _cost_of_bytes(store, figures.listing.bytes if figures.listing else 0, prices)
    return Costs(
        currency=prices.currency,
        prices=f"{store.name}, read in the {prices.reader}, {prices.taken}: {store.source}",
        spent=spent + _cost_of_bytes(store, figures.spent.bytes, prices),
        epoch=None if requests is None else requests + bytes_of_epoch,
        epoch_requests=requests,
    )


def most_costs(target: Target, limits: Limits, prices: Prices) -> float | None:
    """Return the most that a benchmark can cost; ``None``: the store has no prices."""
    store = _store_prices(target, prices)
    if store is None:
        return None
    # Nobody knows yet which requests it will be.
    dearest = max(store.get_per_1000, store.list_per_1000)
    return limits.requests / 1000 * dearest + _cost_of_bytes(store, limits.bytes, prices)


def _store_prices(target: Target, prices: Prices) -> StorePrices | None:
    if target.kind != "store" or not target.urls:
        return None
    return prices.stores.get(store_kind(target.urls[0]))


def _gets_of_an_epoch(figures: Figures) -> float | None:
    """Return the requests for each byte of the shards; ``None`` without a job or a listing."""
    job, listing = figures.job, figures.listing
    if job is None or listing is None or not job.bytes_read:
        return None
    # In proportion, so that retries and hedges count as in the job.
    return job.requests * listing.bytes / job.bytes_read


def _cost_of_requests(store: StorePrices, gets: float, pages: int) -> float:
    return gets / 1000 * store.get_per_1000 + pages / 1000 * store.list_per_1000


def _cost_of_bytes(store: StorePrices, size: int, prices: Prices) -> float:
    return size / GB * store.egress_per_gb[prices.reader]
