"""Shards of records that are sorted by class, and the order in which they came out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.datasets.shard_source import ShardSource
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.values.columns import BytesColumn, offsets_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

SHARD_BYTES = 32_000_000
CLASSES = 100
BLOCK = 4 << 20


@dataclass(frozen=True)
class SortedShards:
    """Records of one size, whose first eight bytes are their numbers; the rest is random.

    Args:
        directory: Directory of the shards.
        record_bytes: Size of a record.
        records: Number of records.
        suffix: Suffix of the names. With ``.zst`` shards are compressed, and the rest of a record
            is zeros, so that they take little of the disk.
    """

    directory: Path
    record_bytes: int
    records: int
    suffix: str = ""

    @property
    def pattern(self) -> str:
        """Return the glob of the shards."""
        return f"{self.directory}/x-*.tfrecord{self.suffix}"

    @property
    def nbytes(self) -> int:
        """Return the size of all records."""
        return self.records * self.record_bytes

    def write(self) -> None:
        """Write the shards."""
        self.directory.mkdir()
        each = max(1, BLOCK // self.record_bytes)
        random = np.random.default_rng(0)
        shape = (each, self.record_bytes)
        path = self.directory / f"x.tfrecord{self.suffix}"
        with ShardedWriter(path, shard_bytes=SHARD_BYTES, compression="auto") as writer:
            for first in range(0, self.records, each):
                count = min(each, self.records - first)
                values = np.zeros(shape, np.uint8)[:count]
                if not self.suffix:
                    values = random.integers(0, 256, values.shape, np.uint8)
                values[:, :8] = np.arange(first, first + count)[:, None].view(np.uint8)
                offsets = offsets_of(np.full(count, self.record_bytes, np.int64))
                writer.write_many(BytesColumn(values.reshape(-1), offsets))

    def order(
        self, source: str, storage_options: Mapping[str, Any] | None = None
    ) -> npt.NDArray[np.int64]:
        """Return the numbers of the records of other shards, in their order."""
        blocks = ShardSource.find(source, storage_options).blocks()
        heads = [
            block.values[block.offsets[:-1, None] + np.arange(8)].copy().view(np.int64)[:, 0]
            for block in blocks
        ]
        return np.concatenate(heads)

    def classes(self) -> npt.NDArray[np.int64]:
        """Return the class of each record number."""
        return np.arange(self.records) * CLASSES // self.records
