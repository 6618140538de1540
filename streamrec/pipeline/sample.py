"""Reads the first records of a dataset, for feature inference and inspection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import DataError, OutOfMemory, StoreError
from streamrec.flow.cleanup import all_of
from streamrec.formats.shards.compression import HEAD, Decompressor, detect, of_name
from streamrec.formats.shards.resync import LARGEST as LARGEST_SHARD
from streamrec.formats.shards.tfrecord import FOOTER, HEADER, FrameScanner
from streamrec.masking import masked
from streamrec.stores.base.protocol import ObjectInfo, in_thread, read_range
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from streamrec.config import Compression
    from streamrec.pipeline.fetch.range_downloader import OpensStores
    from streamrec.values.columns import ByteArray

SAMPLE_BYTES = 4 << 20
"""Bytes that are read of one shard: some tens of pictures, or thousands of small records."""
SAMPLE_SHARDS = 8
"""The most shards of a sample: they are read at the same time, so it takes no longer than one."""
SAMPLE_RECORDS = 512
"""The most records of a sample of several shards; parsing them in Python takes some 50 ms."""


class FirstRecords(NamedTuple):
    """The first records of a shard."""

    url: str
    records: list[bytes]

    def place(self, number: int) -> dict[str, Any]:
        """Return the URL, offset and number of one of the records, as an error's fields."""
        before = sum(HEADER + len(record) + FOOTER for record in self.records[:number])
        return {"url": masked(self.url), "offset": before, "record": number}


def spread(shards: Sequence[str]) -> list[str]:
    """Return some of the shards, evenly spread over all; the first is one of them."""
    count = min(SAMPLE_SHARDS, len(shards))
    return [shards[i * len(shards) // count] for i in range(count)]


async def sample_records(
    stores: OpensStores,
    urls: Sequence[str],
    compression: str = "auto",
    largest: int = LARGEST_SHARD,
) -> list[FirstRecords]:
    """Read the first records of some shards, spread over all; none if no shard has any.

    Args:
        stores: The stores of the shards.
        urls: The shards' URLs, in their order.
        compression: As for :func:`first_records`.
        largest: As for :func:`first_records`.

    Raises:
        StreamrecError: As of :func:`first_records`, for the first shard that has a record alone:
            a run tells faults of others where it meets them.
    """
    few = spread(urls)
    most = SAMPLE_RECORDS // len(few)
    first, *others = await all_of(
        [
            first_records(stores, urls, most, compression, largest),
            *(_if_readable(stores, url, most, compression, largest) for url in few[1:]),
        ]
    )
    # By URL: after empty shards, the first may be one of the others.
    samples = {sampled.url: sampled for sampled in (first, *others) if sampled is not None}
    return list(samples.values())


async def _if_readable(
    stores: OpensStores, url: str, most: int, compression: str, largest: int
) -> FirstRecords | None:
    try:
        return await first_records(stores, [url], most, compression, largest)
    except (DataError, StoreError):
        return None


async def first_records(
    stores: OpensStores,
    urls: Iterable[str],
    most: int = 256,
    compression: str = "auto",
    largest: int = LARGEST_SHARD,
) -> FirstRecords | None:
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
            return FirstRecords(url, records[:most])
    return None


async def _beginning(stores: OpensStores, url: str, compression: str, largest: int) -> list[bytes]:
    """Read the whole records in a shard's first bytes, and its first record at least."""
    size = most = SAMPLE_BYTES
    while True:
        stored, info = await read_range(stores.store_for(url), ObjectInfo(url), 0, size)
        kind: Any = compression
        if compression == "auto":
            kind = detect(stored[:HEAD].tobytes(), of_name(url, info.encoding))
        data, whole, finish = stored, len(stored) == info.size, _nothing
        if kind != "none":
            data, whole, finish = await in_thread(_decompress, kind, url, stored, most, whole)
        scanner = FrameScanner(url=masked(url), most=largest)
        blocks, _ = scanner.scan(data, more=not whole)
        records = [bytes(p) for block in blocks for p in RecordRows.from_block(block).payloads()]
        if records:
            return records
        if whole:
            finish()  # raises if the shard was cut
        if whole or scanner.pending:
            scanner.finish()
            return records
        # The first record is larger than the sample, and its header says how large.
        most = _first_frame(data) or 4 * most
        size = min(4 * size, 2 * most)  # compression never doubles the size


def _first_frame(data: ByteArray) -> int:
    """Return the bytes of the first record's frame; 0 if its header is incomplete."""
    if len(data) < HEADER:
        return 0
    return HEADER + int.from_bytes(data[:8].tobytes(), "little") + FOOTER


def _decompress(
    kind: Compression, url: str, stored: ByteArray, most: int, whole: bool
) -> tuple[ByteArray, bool, Callable[[], None]]:
    """Decompress at most ``most`` bytes of a shard's beginning.

    Returns:
        The bytes, whether nothing can follow them, and a function that raises the stream's fault.
    """
    stream = Decompressor(kind, url=url)
    memory = np.empty(most, np.uint8)
    stream.end()
    bytes_in, bytes_out = stream.fill(stored.data, memory.data)
    used_up = bytes_in == len(stored) and not stream.pending
    is_faulty = bytes_out < most and not used_up
    return memory[:bytes_out], is_faulty or (whole and used_up), stream.finish


def _nothing() -> None:
    """Do nothing: an uncompressed shard has no stream to finish."""
