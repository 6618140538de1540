"""The records at the places of steps, and those that have one of some values, for ``which``."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec.datasets.indexes import typed_feature, values_of
from streamrec.datasets.survey import REQUESTS, RETRIES, PlacedRecord
from streamrec.errors import ConfigError, StaleIndex
from streamrec.flow.bridge import Bridge
from streamrec.flow.cleanup import all_of
from streamrec.formats.examples.specs import RaggedFeature
from streamrec.formats.shards.key_index import value_of
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.stores.base.protocol import ObjectInfo, in_thread, read_range
from streamrec.stores.open import Stores
from streamrec.streams.opening import open as open_stream

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from streamrec.config import DatasetSettings
    from streamrec.formats.shards.key_index import Value
    from streamrec.pipeline.dataset_places import DeliveredRecord
    from streamrec.values.columns import ByteArray, Ragged

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


RECORDS_AT_ONCE = 4096
"""Records of a batch: values of a feature are small, and each batch costs some work."""


class FoundRecord(NamedTuple):
    """A record that has a wanted value."""

    shard: str
    """The URL of its shard."""
    record: int
    """Its number in the shard, from 0."""
    values: tuple[int | str, ...]
    """The wanted values that it has, in their order."""


class FoundValues(NamedTuple):
    """The records that have some values."""

    records: list[FoundRecord]
    """By shard and number."""
    wanted: int
    """The number of different values that were looked for."""
    missing: int
    """The number of those that no record has."""


def find_values(settings: DatasetSettings, feature: str, values: Collection[str]) -> FoundValues:
    """Read a dataset once, and return the records that have one of the values.

    Args:
        settings: The source and how it is read; what gives another order has no effect.
        feature: The feature, of int64 or bytes; its type comes from the first records, or behind a
            colon: ``user:int64``. A record may have several values of it, or none.
        values: The values as text: numbers in decimal form, bytes in UTF-8. Two texts of one number
            are one value.

    Raises:
        ConfigError: The feature is missing in the first records, or has other values.
        DataError: A record is damaged.
        StoreError: A shard cannot be read.
    """
    source = settings.source
    if isinstance(source, dict):
        raise ConfigError("values are looked for in one source, not in a mix; give its URL")
    read = settings.model_dump(include={"split", "compression", "storage_options"})
    feature, dtype = typed_feature(source, feature, **read)
    wanted = {value_of(text, feature, dtype) for text in values}
    read["on_corrupt"] = settings.on_corrupt
    spec = {feature: RaggedFeature(dtype)}
    found: list[FoundRecord] = []
    with open_stream(source, spec, batch_size=RECORDS_AT_ONCE, engine="thread", **read) as stream:
        for batch in stream:
            assert batch.origin is not None  # there is no mix
            for row, values_of_row in _matches(batch[feature], wanted).items():
                shard, record = batch.origin.shards[row], batch.origin.records[row]
                found.append(FoundRecord(stream.shards[shard], int(record), tuple(values_of_row)))
    missing = len(wanted) - len({value for one in found for value in one.values})
    return FoundValues(sorted(found), len(wanted), missing)


def _matches(column: Ragged, wanted: Collection[Value]) -> dict[int, list[int | str]]:
    """Return the wanted values of each row that has one."""
    listed = values_of(column)
    places = [place for place, value in enumerate(listed) if value in wanted]
    rows = np.searchsorted(column.row_splits, places, side="right") - 1
    matches: dict[int, list[int | str]] = {}
    for place, row in zip(places, rows.tolist(), strict=True):
        value = listed[place]
        matches.setdefault(row, []).append(value if isinstance(value, int) else value.decode())
    return matches
