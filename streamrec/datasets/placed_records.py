"""The records at the places of steps, for ``streamrec which --show``."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamrec.datasets.survey import REQUESTS, RETRIES, PlacedRecord
from streamrec.errors import StaleIndex
from streamrec.flow.bridge import Bridge
from streamrec.flow.cleanup import all_of
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.stores.base.protocol import ObjectInfo, in_thread, read_range
from streamrec.stores.open import Stores

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from streamrec.pipeline.dataset_places import DeliveredRecord
    from streamrec.values.columns import ByteArray

AT_ONCE = 256
"""The places whose records are read together, which bounds the records that are held."""

Records: TypeAlias = dict[tuple[str, int], PlacedRecord]
"""Records by their shards and numbers."""


class _IndexedChunk(NamedTuple):
    url: str
    begin: int
    end: int
    first_record: int


def records_at(
    places: Sequence[DeliveredRecord], storage_options: Mapping[str, Any]
) -> Generator[PlacedRecord | None]:
    """Yield the record of each place, in their order; ``None`` for an excluded one.

    Of some hundred places, each chunk is read once.

    Raises:
        StreamrecError: A chunk cannot be read, or a record in it is damaged.
    """
    with Bridge() as loop:
        stores = loop.call(_open(storage_options))
        try:
            for first in range(0, len(places), AT_ONCE):
                some = places[first : first + AT_ONCE]
                found = loop.call(_read(stores, some))
                for place in some:
                    yield None if place.is_excluded else found[place.shard, place.record]
        finally:
            loop.call(stores.aclose())


async def _open(storage_options: Mapping[str, Any]) -> Stores:
    return Stores(storage_options)  # in the loop that reads


async def _read(stores: Stores, places: Sequence[DeliveredRecord]) -> Records:
    """Read the chunks of some places, and return the records there."""
    wanted: defaultdict[_IndexedChunk, set[int]] = defaultdict(set)
    for place in places:
        if not place.is_excluded:
            first = place.record - place.chunk_record
            chunk = _IndexedChunk(place.shard, place.chunk_offset, place.chunk_end, first)
            wanted[chunk].add(place.record)
    limit = asyncio.Semaphore(REQUESTS)

    async def read(chunk: _IndexedChunk) -> Records:
        store = stores.store_for(chunk.url)
        async with limit:
            data, _ = await read_range(
                store, ObjectInfo(chunk.url), chunk.begin, chunk.end, retries=RETRIES
            )
        return await in_thread(partial(_records_of, chunk, data, wanted[chunk]))

    found: Records = {}
    for records in await all_of(map(read, wanted)):
        found |= records
    return found


def _records_of(chunk: _IndexedChunk, data: ByteArray, wanted: AbstractSet[int]) -> Records:
    """Return the wanted records of a chunk.

    Raises:
        DataError: Damage comes before the last of them.
        StaleIndex: The chunk has fewer records than the index says.
    """
    scanner = FrameScanner(url=chunk.url, offset=chunk.begin, ordinal=chunk.first_record)
    blocks, _ = scanner.scan(data, more=False)
    found: Records = {}
    for block in blocks:
        spans = zip(block.offsets.tolist(), block.lengths.tolist(), strict=True)
        for number, (offset, length) in enumerate(spans, block.first_ordinal):
            if number in wanted:
                payload = block.buffer[offset : offset + length].tobytes()
                found[chunk.url, number] = PlacedRecord(payload, chunk.url, number)
    if len(found) < len(wanted):
        scanner.finish()
        raise StaleIndex(
            f"the index says that record {max(wanted)} lies before byte {chunk.end}, and it does "
            "not; write the index again with `streamrec index`",
            url=chunk.url,
            offset=chunk.begin,
        )
    return found
