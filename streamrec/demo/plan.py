"""The demo's numbers, and its shards.

They fit together: every lane meets the same number of equal shards an epoch, so that epochs end at
a step, and the ranks' steps are exactly all records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.datasets.writer import TFRecordWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


FEATURES: dict[str, dict[str, Any]] = {
    "id": {"kind": "fixed", "shape": [], "dtype": "int64"},
    "label": {"kind": "fixed", "shape": [], "dtype": "int64"},
    "image": {"kind": "fixed", "shape": [], "dtype": "bytes"},
}


@dataclass(frozen=True)
class DemoPlan:
    """The amounts of the demo."""

    shards: int = 32
    records_per_shard: int = 32
    lanes: int = 16
    ranks: int = 2
    batch_size: int = 16
    epochs: int = 2
    latency: float = 0.04
    """Seconds to the store's first byte: that of a bucket in the same region."""
    shuffle_window: int = 32_000_000
    """The bytes of the windows of all lanes."""
    stopped_rank: int = 1
    """The rank that is stopped and resumed."""

    @property
    def records(self) -> int:
        """The number of records of one epoch."""
        return self.shards * self.records_per_shard

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches of each rank in one epoch."""
        return self.records // (self.ranks * self.batch_size)

    @property
    def stop_step(self) -> int:
        """The number of batches, in the first epoch, after which the rank is stopped."""
        return max(1, self.steps_per_epoch * 5 // 8)
