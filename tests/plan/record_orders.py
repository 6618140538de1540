"""Draws orders by record, with the oracle of each."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from streamrec.formats.shards.index import ChunkFinder, Index, ShardEntry
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.plan.record_order import ChunkWindows, RecordOrder
from streamrec.plan.window import Windows
from streamrec.values.records import RecordBlock
from tests.plan.oracle import RecordOracle

SHARDS = (
    st.lists(st.lists(st.integers(0, 90), max_size=14).map(tuple), min_size=1, max_size=6)
    .map(tuple)
    .filter(any)
)


def entry(name: str, lengths: tuple[int, ...], chunk_bytes: int) -> ShardEntry:
    """Return the index's entry of a shard whose records have these lengths."""
    finder = ChunkFinder(chunk_bytes)
    sizes = np.array(lengths, np.int64)
    ends = np.cumsum(sizes + HEADER + FOOTER)
    if len(lengths):
        offsets = ends - sizes - FOOTER
        finder.add(RecordBlock(np.empty(0, np.uint8), offsets, sizes, 0, 0, 0))
    size = int(ends[-1]) if len(ends) else 0
    return ShardEntry(name, size, None, len(lengths), finder.begins, finder.first_records)


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
        Windows(window, count, seed) if shuffle else None,
    )
