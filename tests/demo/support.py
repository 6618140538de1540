"""A demo that takes no time, and its progress, which is not shown."""

from __future__ import annotations

from streamrec.demo.job import DemoPlan

SMALL = DemoPlan(shards=8, records_per_shard=4, lanes=4, batch_size=2, latency=0.0)


def no_progress(what: str, done: int, total: int) -> None:
    """Show nothing."""
