"""Snapshots of feeders, as the page and ``streamrec top`` get them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from streamrec.feeder.page.samples import Samples
from streamrec.feeder.server.server import Feeder
from tests.feeder.fake_dataset import FakeDataset

if TYPE_CHECKING:
    from collections.abc import Iterable


def sample(**changes: Any) -> dict[str, Any]:
    return {
        "taken": 1_800_000_000.0,
        "seconds": 5.0,
        "bytes_per_second": 57e6,
        "records_per_second": 2500.0,
        "first_byte_p50": 0.048,
        "waits": {},
        "kept_back": {},
        "subscriptions": 1,
        "memory": 0,
        **changes,
    }


def snapshot(
    name: str = "train", *, clients: int = 1, samples: Iterable[dict[str, Any]] = (), **changes: Any
) -> dict[str, Any]:
    """Return the snapshot of a feeder of one dataset, which has sent a batch to each client."""
    feeder, counted = Feeder({name: FakeDataset()}), Samples()
    with ExitStack() as stack:
        for rank in range(clients):
            facts = {"rank": rank, "world_size": clients, "batch_size": 8, "peer": "10.0.0.5"}
            subscription = stack.enter_context(feeder.statistics.subscribe(name, **facts))
            feeder.statistics.count_batch(subscription, 41, 8, 1000)
        found = counted.add_to(feeder.snapshot())
    return {**found, "samples": list(samples), **changes}
