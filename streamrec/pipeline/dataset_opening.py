"""Functions that open a dataset: they read its index, or infer features from its records."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

from streamrec.config.memory_budget import record_limit
from streamrec.errors import ConfigError, StoreUnavailable
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.features import infer_features
from streamrec.formats.shards.index import index_url
from streamrec.masking import masked
from streamrec.pipeline.dataset_index import load_index
from streamrec.pipeline.sample import first_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.formats.shards.index import Index
    from streamrec.stores.base import ObjectInfo
    from streamrec.stores.open import Stores

__all__ = ["indexed_settings", "read_index", "with_inferred_features"]


async def read_index(
    settings: DatasetSettings,
    named: Literal[True] | str,
    stores: Stores,
    objects: Sequence[ObjectInfo],
) -> Index:
    """Read the index that is named, or the one beside the shards.

    Raises:
        ObjectNotFound: There is no index.
        MalformedIndex: It cannot be read.
        StaleIndex: It does not describe the shards.
        StoreUnavailable: The store stalls.
    """
    url = index_url([found.url for found in objects]) if named is True else named
    async with _limit(settings, "reading the index", url):
        return await load_index(stores, named, objects)


def indexed_settings(settings: DatasetSettings, index: Index) -> DatasetSettings:
    """Check the settings against an index, and set ``compression`` to "none", as an index requires.

    Raises:
        ConfigError: The settings contradict the index, or it counts no record.
    """
    if settings.compression not in ("auto", "none"):
        raise ConfigError(
            "an index describes shards that are not compressed, and compression is "
            f"{settings.compression!r}; leave one of the two out"
        )
    if not settings.ordered:
        raise ConfigError(
            "ordered=False keeps no order, and an index sets one; leave one of the two out"
        )
    if not index.records:
        raise ConfigError("the index counts no record in these shards; check the source")
    return settings.model_copy(update={"compression": "none"})


async def with_inferred_features(
    settings: DatasetSettings, stores: Stores, objects: Sequence[ObjectInfo]
) -> DatasetSettings:
    """Infer the features from the first records.

    Raises:
        ConfigError: There is no record, or :func:`infer_features` cannot infer them.
        MalformedExample: The records are no Examples.
        RecordTooLarge: The first record is too large.
        StoreUnavailable: The store stalls.
    """
    urls = (found.url for found in objects)
    async with _limit(settings, "inferring features", objects[0].url):
        first = await first_records(
            stores, urls, compression=settings.compression, largest=record_limit(settings)
        )
    if first is None:
        raise ConfigError(
            "no features can be inferred: no shard holds a record, from "
            f"{masked(objects[0].url)} on; name the features, or correct the source"
        )
    features = infer_features(first.records, first.place)
    return settings.model_copy(update={"features": describe(features)})


@asynccontextmanager
async def _limit(settings: DatasetSettings, what: str, url: str) -> AsyncIterator[None]:
    """Limit the time of a read to ``stall_timeout``; what is read here is short."""
    seconds = settings.stall_timeout
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise StoreUnavailable(
            f"opening stalls: {what} took more than {seconds:g} s; check the store and the "
            "network, or raise stall_timeout",
            url=url,
        ) from None
