"""Reads the first records of a dataset, for feature inference and inspection."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import OutOfMemory, StoreError, StoreUnavailable
from streamrec.flow.retry import Backoff
from streamrec.formats.shards.compression import HEAD, Decompressor, detect, of_name
from streamrec.formats.shards.resync import LARGEST
from streamrec.formats.shards.tfrecord import FOOTER, HEADER, FrameScanner
from streamrec.masking import masked
from streamrec.stores.base import in_thread
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamrec.config import Compression
    from streamrec.pipeline.fetch.fetcher import OpensStores
    from streamrec.stores.base import ObjectInfo

__all__ = ["First", "first_records", "read_start"]

SAMPLE_BYTES = 4 << 20
"""Bytes that are read of one shard: some tens of pictures, or thousands of small records."""
ATTEMPTS = 8


class First(NamedTuple):
    """The first records of a shard."""

    url: str
    records: list[bytes]

    def place(self, number: int) -> dict[str, Any]:
        """Return the URL, offset and number of one of the records, as an error's fields."""
        before = sum(HEADER + len(record) + FOOTER for record in self.records[:number])
        return {"url": masked(self.url), "offset": before, "record": number}


async def first_records(
    stores: OpensStores,
    urls: Iterable[str],
    most: int = 256,
    compression: str = "auto",
    largest: int = LARGEST,
) -> First | None:
    """Read the first records of the first shard that has any; ``None`` if none has.

    Args:
        stores: The stores of the shards.
        urls: The shards' URLs, in their order.
        most: The most records to read; fewer are read if they are large.
        compression: The shards' compression, or ``"auto"``.
        largest: The size of the longest accepted record in bytes.

    Raises:
        StoreError: A shard cannot be read.
        DataError: A shard's beginning is corrupt, or its first record is too large.
        OutOfMemory: There is no memory for a record.
    """
    for url in urls:
        try:
            records = await _beginning(stores, url, compression, largest)
        except MemoryError as error:
            raise OutOfMemory.of(error, url=masked(url), offset=0) from None
        if records:
            return First(url, records[:most])
    return None


async def _beginning(stores: OpensStores, url: str, compression: str, largest: int) -> list[bytes]:
    """Read the whole records in a shard's first bytes, and its first record at least."""
    size = most = SAMPLE_BYTES
    while True:
        stored, info = await read_start(stores, url, size)
        kind: Any = compression
        if compression == "auto":
            kind = detect(bytes(stored[:HEAD]), of_name(url, info.encoding))
        data, whole, finish = stored, len(stored) == info.size, _nothing
        if kind != "none":
            data, whole, finish = await in_thread(_decompressed, kind, url, stored, most, whole)
        scanner = FrameScanner(url=masked(url), most=largest)
        blocks, _ = scanner.scan(np.frombuffer(data, np.uint8), more=not whole)
        records = [bytes(p) for block in blocks for p in RecordRows.from_block(block).payloads()]
        if records:
            return records
        if whole:
            finish()  # raises if the shard was cut
        if whole or scanner.pending:
            scanner.finish()
            return records
        most = _first_frame(data) or 4 * most
        size = min(4 * size, 2 * most)  # compression never doubles the size


def _first_frame(data: bytearray) -> int:
    """Return the bytes of the first record's frame; 0 if its header is incomplete."""
    return HEADER + int.from_bytes(data[:8], "little") + FOOTER if len(data) >= HEADER else 0


def _decompressed(
    kind: Compression, url: str, stored: bytearray, most: int, whole: bool
) -> tuple[bytearray, bool, Callable[[], None]]:
    """Decompress at most ``most`` bytes of a shard's beginning.

    Returns:
        The bytes, whether nothing can follow them, and a function that raises the stream's fault.
    """
    stream = Decompressor(kind, url=url)
    memory = bytearray(most)
    stream.end()
    taken, given = stream.fill(memoryview(stored), memoryview(memory))
    used_up = taken == len(stored) and not stream.pending
    is_faulty = given < most and not used_up
    del memory[given:]
    return memory, is_faulty or (whole and used_up), stream.finish


def _nothing() -> None:
    """Do nothing: an uncompressed shard has no stream to finish."""


async def read_start(stores: OpensStores, url: str, size: int) -> tuple[bytearray, ObjectInfo]:
    """Read a shard's first bytes, and retry where the store is unavailable."""
    backoff = Backoff(Random())
    while True:
        try:
            return await _read_once(stores, url, size)
        except StoreError as error:
            if not error.retryable or backoff.attempt == ATTEMPTS:
                raise error.at(0) from None
            await asyncio.sleep(backoff.next(getattr(error, "retry_after", None)))


async def _read_once(stores: OpensStores, url: str, size: int) -> tuple[bytearray, ObjectInfo]:
    async with stores.store_for(url).open_range(url, 0, size) as body:
        data = bytearray(min(size, body.info.size or 0))
        view, filled = memoryview(data), 0
        while filled < len(data) and (received := await body.readinto(view[filled:])):
            filled += received
        if filled < len(data):
            raise StoreUnavailable("the response ended early", url=url)
        return data, body.info
