"""Measures the listing of a dataset's shards."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from streamrec.measure.budget import stores_of
from streamrec.measure.counted import counted_range
from streamrec.measure.figures import Listing
from streamrec.measure.together import together
from streamrec.stores.read_range import read_range
from streamrec.stores.source_text import is_glob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config import DatasetSettings
    from streamrec.measure.budget import Budget
    from streamrec.stores.base import ObjectInfo
    from streamrec.stores.open import Stores

SAMPLE = 64
"""Shards whose sizes are looked up where a source names its shards without a listing."""


async def measure_listing(
    settings: DatasetSettings, budget: Budget
) -> tuple[Listing, list[ObjectInfo]]:
    """List the shards, and return the figures and the shards in the order of their URLs.

    Where the source names its shards, nothing is listed: the sizes of some of them are looked up,
    a request each, and the bytes of the others are estimated from these.

    Args:
        settings: The dataset's settings.
        budget: What may be spent.

    Raises:
        BudgetSpent: The listing needs more than the budget.
        StoreError: The listing failed or stalled.
    """
    before = budget.spent.requests
    async with budget.in_time(), stores_of(settings, budget) as stores:
        started = time.perf_counter()
        found = {
            info.url: info
            for source in settings.components.values()
            for info in await stores.resolve(source)
        }
        seconds = time.perf_counter() - started
        requests = budget.spent.requests - before
        shards = await _with_sizes([found[url] for url in sorted(found)], stores)
    known = [info.size for info in shards if info.size is not None]
    total = round(sum(known) / len(known) * len(shards))
    listing = Listing(
        shards=len(shards),
        bytes=total,
        requests=requests,
        seconds=seconds,
        counted=counted_range(found) if _is_one_glob(settings) else None,
    )
    return listing, shards


def _is_one_glob(settings: DatasetSettings) -> bool:
    return len(settings.urls) == 1 and is_glob(settings.urls[0]) and not settings.weights


async def _with_sizes(shards: Sequence[ObjectInfo], stores: Stores) -> list[ObjectInfo]:
    """Return the shards with the sizes of some of those that have none."""
    unknown = [number for number, info in enumerate(shards) if info.size is None]
    sample = unknown[:: -(-len(unknown) // SAMPLE) or 1]
    found = await together(_looked_up(shards[number], stores) for number in sample)
    sizes = dict(zip(sample, found, strict=True))
    return [sizes.get(number, info) for number, info in enumerate(shards)]


async def _looked_up(shard: ObjectInfo, stores: Stores) -> ObjectInfo:
    _, info = await read_range(stores.store_for(shard.url), shard, 0, 1)
    return replace(info, url=shard.url)
