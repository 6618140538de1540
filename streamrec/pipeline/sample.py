"""The first records of a dataset, to see what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.formats.tfrecord import FrameScanner
from streamrec.types import RecordRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrec.pipeline.fetch import OpensStores

__all__ = ["first_records"]

SAMPLE_BYTES = 4 << 20
"""Of one shard: some tens of pictures, or thousands of small records."""


async def first_records(stores: OpensStores, urls: Iterable[str], most: int = 256) -> list[bytes]:
    """The first records of the first shard that has any.

    Args:
        stores: Serve the shards.
        urls: The shards, in their order.
        most: Records to read; fewer where they are large.

    Raises:
        StoreError: A shard cannot be read.
        DataError: Its beginning is corrupt.
    """
    for url in urls:
        records = await _beginning(stores, url)
        if records:
            return records[:most]
    return []


async def _beginning(stores: OpensStores, url: str) -> list[bytes]:
    """The whole records in a shard's first bytes; its first record at least, whatever its size."""
    size = SAMPLE_BYTES
    while True:
        data, whole = await _read(stores, url, size)
        scanner = FrameScanner(url=url)
        blocks, _ = scanner.scan(np.frombuffer(data, np.uint8), more=not whole)
        records = [bytes(p) for block in blocks for p in RecordRows.from_block(block).payloads()]
        if whole and not records:
            scanner.finish()  # raises where the shard is not simply empty
        if records or whole:
            return records
        size *= 4


async def _read(stores: OpensStores, url: str, size: int) -> tuple[bytearray, bool]:
    async with stores.store_for(url).open_range(url, 0, size) as body:
        data = bytearray(min(size, body.info.size or 0))
        view, filled = memoryview(data), 0
        while filled < len(data) and (landed := await body.readinto(view[filled:])):
            filled += landed
        return data, len(data) == body.info.size
