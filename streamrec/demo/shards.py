"""Real pictures as TFRecord shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.datasets.writer import TFRecordWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrec.demo.plan import DemoPlan


def write_shards(directory: Path, plan: DemoPlan, progress: Callable[[int], None]) -> int:
    """Write the plan's shards.

    Args:
        directory: The existing directory for them.
        plan: The numbers of shards and records.
        progress: Called with the number of records that are written.

    Returns:
        Their size in bytes.
    """
    images = sample_pictures()
    size = 0
    for shard in range(plan.shards):
        path = directory / f"pictures-{shard:05}-of-{plan.shards:05}.tfrecord"
        with TFRecordWriter(path) as writer:
            for number in range(
                shard * plan.records_per_shard, (shard + 1) * plan.records_per_shard
            ):
                label = number % len(images)
                writer.write({"id": number, "label": label, "image": images[label]})
        size += writer.nbytes
        progress((shard + 1) * plan.records_per_shard)
    return size
