"""Draws orders by record, with the oracle of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from streamrec.formats.shards.index import ChunkFinder, Index, ShardEntry
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.window import Windows
from streamrec.values.record_rows import RecordBlock
from tests.plan.oracle import RecordOracle

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARDS = (
    st.lists(st.lists(st.integers(0, 90), max_size=14).map(tuple), min_size=1, max_size=6)
    .map(tuple)
    .filter(any)
)

SHARD_BYTES = st.sampled_from([0, 0, 50, 300])


def entry(name: str, lengths: tuple[int, ...], chunk_bytes: int) -> ShardEntry:
    """Return the index entry of a shard whose records have these lengths, without CRCs."""
    return entry_of(
        name, bytes(sum(lengths) + (HEADER + FOOTER) * len(lengths)), lengths, chunk_bytes
    )


def entry_of(name: str, data: bytes, lengths: Sequence[int], chunk_bytes: int) -> ShardEntry:
    """Return the index entry of a shard of these bytes, whose records have these lengths."""
    finder = ChunkFinder(chunk_bytes)
    sizes = np.array(lengths, np.int64)
    if len(lengths):
        offsets = np.cumsum(sizes + HEADER + FOOTER) - sizes - FOOTER
        finder.add(RecordBlock(np.frombuffer(data, np.uint8), offsets, sizes, 0, 0, 0))
    return ShardEntry(
        name, len(data), len(lengths), finder.begins, finder.first_records, finder.crcs
    )


def index_of(shards: tuple[tuple[int, ...], ...], chunk_bytes: int) -> Index:
    return Index(tuple(entry(f"{i:03}", shard, chunk_bytes) for i, shard in enumerate(shards)))


def order_of(oracle: RecordOracle) -> RecordOrder:
    chunks = index_of(oracle.shards, oracle.chunk_bytes).chunks()
    return RecordOrder(chunks, oracle.lanes, oracle.shuffle, oracle.seed)


def windows_of(oracle: RecordOracle, order: RecordOrder) -> ChunkWindows | None:
    return None if oracle.windows is None else ChunkWindows(order, oracle.windows)


@st.composite
def oracles(draw: st.DrawFn, lanes: st.SearchStrategy[int] | None = None) -> RecordOracle:
    count = draw(lanes or st.integers(1, 9))
    shuffle, seed = draw(st.booleans()), draw(st.integers(0, 5))
    window = draw(st.integers(0, 4000))
    return RecordOracle(
        draw(SHARDS),
        draw(st.integers(1, 400)),
        count,
        shuffle,
        seed,
        Windows(window, count, seed, shard_bytes=draw(SHARD_BYTES)) if shuffle else None,
    )
