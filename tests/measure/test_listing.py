from __future__ import annotations

import pytest

from streamrec.devstore import DevStore
from streamrec.errors import ObjectNotFound
from streamrec.measure.budget import Budget, BudgetSpent
from streamrec.measure.listing import SAMPLE, measure_listing
from tests.measure.support import limits, settings_for
from tests.support import asynchronous


def put(store: DevStore, count: int) -> None:
    for number in range(count):
        store.put(f"bucket/part-{number:05}", b"x" * 100)


@asynchronous
async def test_a_listing() -> None:
    async with DevStore() as store:
        put(store, 2500)
        budget = Budget(limits())
        listing, shards = await measure_listing(settings_for(store), budget)
        assert (listing.shards, listing.bytes) == (2500, 250_000)
        assert listing.requests == budget.spent.requests == store.statistics.requests >= 3
        assert listing.seconds > 0
        assert listing.counted == "s3://bucket/part-{00000..02499}"
        assert [info.size for info in shards] == [100] * 2500
        assert [info.url for info in shards] == sorted(info.url for info in shards)


@asynchronous
async def test_the_sizes_of_some_named_shards_are_looked_up() -> None:
    async with DevStore() as store:
        put(store, 1000)
        budget = Budget(limits())
        settings = settings_for(store, "s3://bucket/part-{00000..00999}")
        listing, shards = await measure_listing(settings, budget)
        assert (listing.shards, listing.bytes) == (1000, 100_000)
        assert listing.requests == 1, "an object of this very name is looked for"
        assert listing.counted is None, "nothing is listed"
        known = [info for info in shards if info.size is not None]
        assert SAMPLE / 2 <= len(known) == budget.spent.requests - 1 <= SAMPLE
        assert all(info.etag for info in known)


@asynchronous
async def test_a_listing_stops_at_the_budget() -> None:
    async with DevStore() as store:
        put(store, 2500)
        with pytest.raises(BudgetSpent, match="2 requests"):
            await measure_listing(settings_for(store), Budget(limits(requests=2)))
        assert store.statistics.requests == 2


@asynchronous
async def test_a_missing_shard_is_an_error_of_its_own() -> None:
    async with DevStore() as store:
        put(store, 1)
        settings = settings_for(store, "s3://bucket/part-{00000..00003}")
        with pytest.raises(ObjectNotFound):
            await measure_listing(settings, Budget(limits()))
