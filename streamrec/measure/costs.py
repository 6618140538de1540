"""The costs of requests and bytes: of a benchmark, and of an epoch."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from streamrec.config.daemon import read_toml
from streamrec.config.validation import Settings, validate
from streamrec.errors import ConfigError
from streamrec.measure.figures import Costs
from streamrec.stores.base.source_text import store_kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from streamrec.measure.figures import Figures, Limits, Target

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
    return job.requests * listing.bytes / job.bytes_read


def _cost_of_requests(store: StorePrices, gets: float, pages: int) -> float:
    return gets / 1000 * store.get_per_1000 + pages / 1000 * store.list_per_1000


def _cost_of_bytes(store: StorePrices, size: int, prices: Prices) -> float:
    return size / GB * store.egress_per_gb[prices.reader]
