from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore
from streamrec.measure.budget import Budget
from streamrec.measure.figures import Limits
from streamrec.stores import ObjectInfo
from streamrec.stores.http.http_store import HttpStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from streamrec.stores.base.protocol import Store


@dataclass
class Place:
    """A store with shards, and a budget that it is charged to."""

    devstore: DevStore
    budget: Budget
    store: Store
    shards: list[ObjectInfo]


def limits(seconds: float = 60.0, size: int = 1 << 30, requests: int = 10_000) -> Limits:
    return Limits(seconds=seconds, bytes=size, requests=requests)


def settings_for(devstore: DevStore, source: str = "s3://bucket/*", **more: Any) -> DatasetSettings:
    values = {"source": [source], "storage_options": devstore.storage_options, **more}
    return validate(DatasetSettings, values)


@asynccontextmanager
async def place(
    shards: Mapping[str, bytes], allowed: Limits | None = None, **devstore: Any
) -> AsyncIterator[Place]:
    """Serve shards over plain http, and check at the end that the budget has held."""
    budget = Budget(allowed or limits())
    async with (
        DevStore(anonymous=True, **devstore) as served,
        aclosing(HttpStore(before_request=budget.before_request)) as store,
    ):
        found = [
            ObjectInfo(
                served.url(f"bucket/{name}"),
                len(content),
                f'"{served.put(f"bucket/{name}", content)}"',
            )
            for name, content in shards.items()
        ]
        yield Place(served, budget, store, found)
        assert served.statistics.requests <= budget.spent.requests <= budget.limits.requests
        assert served.statistics.bytes_sent <= budget.spent.bytes <= budget.limits.bytes
