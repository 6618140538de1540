"""A sample of a dataset's bytes in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.shards.compression import HEAD, Decompressor, detect, of_name
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.masking import masked
from streamrec.stores.read_range import read_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config import Compression
    from streamrec.stores.base import ObjectInfo, Store
    from streamrec.values.columns import ByteArray
    from streamrec.values.record_rows import RecordBlock

SHARDS = 4
"""Shards that the sample is taken from, evenly spread over the dataset."""
MOST_DECOMPRESSED = 8
ENOUGH = 1 << 20
"""Bytes that are decompressed of a shard: at the most so many for each byte that was read, or if
these are few, ``ENOUGH``."""


class ShardStart(NamedTuple):
    """The beginning of a shard, as the store has it."""

    url: str
    data: ByteArray
    compression: Compression

    def frames(self) -> tuple[ShardStart, ByteArray]:
        """Return the stored bytes that could be decompressed, and the bytes of frames in them."""
        if self.compression == "none":
            return self, self.data
        memory = np.empty(max(ENOUGH, MOST_DECOMPRESSED * len(self.data)), np.uint8)
        taken, given = self.decompress(memory)
        return self._replace(data=self.data[:taken]), memory[:given]

    def decompress(self, memory: ByteArray) -> tuple[int, int]:
        """Decompress into memory; return the numbers of bytes taken and written."""
        stream = Decompressor(self.compression, url=self.url)
        stream.end()
        _, given = stream.fill(self.data.data, memory.data)
        return stream.consumed, given


def blocks_of(url: str, frames: ByteArray, *, check_crc: bool, most: int) -> list[RecordBlock]:
    """Find the whole records in the beginning of a shard.

    Raises:
        DataError: It is corrupt, or a record is longer than ``most``.
    """
    scanner = FrameScanner(url=masked(url), check_crc=check_crc, most=most)
    blocks, _ = scanner.scan(frames, more=True)
    if not blocks and scanner.pending:
        scanner.finish()
    return blocks


async def read_sample(
    store: Store,
    shards: Sequence[ObjectInfo],
    size: int,
    compression: Compression | Literal["auto"],
) -> list[ShardStart]:
    """Read the beginnings of some shards.

    Args:
        store: The shards' store.
        shards: The shards; those of an unknown size are left out.
        size: Bytes to read.
        compression: The shards' compression, or ``"auto"``.

    Raises:
        StoreError: A shard cannot be read.
        ConfigError: No shard holds a byte.
    """
    filled = [shard for shard in shards if shard.size]
    if not filled:
        raise ConfigError("all shards are empty, so nothing can be measured; name other shards")
    chosen = filled[:: -(-len(filled) // SHARDS)]
    found = []
    for shard in chosen:
        data, info = await read_range(store, shard, 0, max(1, size // len(chosen)))
        named = of_name(shard.url, info.encoding)
        detected = detect(data[:HEAD].tobytes(), named)
        found.append(
            ShardStart(shard.url, data, detected if compression == "auto" else compression)
        )
    return found
