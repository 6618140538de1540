"""No record comes more often than others by more than a bound, after any number of records."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.mixture import Draws
from streamrec.plan.order.record_order import RecordOrder
from streamrec.plan.order.shard_order import ShardOrder
from streamrec.plan.order.window import Windows
from tests.plan.oracle import Oracle
from tests.plan.record_orders import index_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Lengths = tuple[tuple[int, ...], ...]
Record = tuple[int, int]

SHARDS = (
    st.lists(st.lists(st.integers(0, 9), max_size=9).map(tuple), min_size=1, max_size=9)
    .map(tuple)
    .filter(any)
)
RANKS = st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 3), (7, 1)])
"""Numbers of lanes, and of ranks."""
EPOCHS = 15


def round_robin(lanes: Iterable[Iterator[Record]]) -> Iterator[Record]:
    """Yield the records of lanes that never end."""
    own = list(lanes)
    while True:
        yield from (next(lane) for lane in own)


def by_shard(shards: Lengths, order: ShardOrder, lane: int) -> Iterator[Record]:
    for extent in order.extents(lane, 0):
        yield from ((extent.shard, i) for i in range(len(shards[extent.shard])))


def shuffled(shards: Lengths, order: ShardOrder, windows: Windows, lane: int) -> Iterator[Record]:
    oracle = Oracle(shards, order, windows)
    for epoch in count():
        yield from ((s, i) for _, s, i in oracle.lane(lane, range(epoch, epoch + 1)))


def by_record(order: RecordOrder, lane: int) -> Iterator[Record]:
    for extent in order.extents(lane, 0):
        first = extent.first_record + extent.skip
        yield from ((extent.shard, first + i) for i in range(extent.records or 0))


def largest_difference(pairs: Iterable[Record], records: int) -> int:
    """Return by how often, over all prefixes, a record came more often than another."""
    counts: Counter[Record] = Counter()
    most = 0
    for pair in pairs:
        counts[pair] += 1
        least = min(counts.values()) if len(counts) == records else 0
        most = max(most, counts[pair] - least)
    return most


@given(SHARDS, RANKS, st.booleans(), st.integers(0, 9))
def test_by_shard(shards: Lengths, ranks: tuple[int, int], shuffle: bool, seed: int) -> None:
    lanes, world_size = ranks
    order = ShardOrder(len(shards), lanes, shuffle, seed)
    records = sum(map(len, shards))
    for rank in range(world_size):
        own = round_robin(by_shard(shards, order, n) for n in range(rank, lanes, world_size))
        found = islice(own, EPOCHS * records // world_size)
        assert largest_difference(found, records) <= lanes // world_size


@given(SHARDS, RANKS, st.integers(1, 3), st.integers(1, 300), st.integers(0, 3))
def test_in_windows_with_open_shards(
    shards: Lengths, ranks: tuple[int, int], open_shards: int, window: int, seed: int
) -> None:
    lanes, world_size = ranks
    order = ShardOrder(len(shards), lanes, shuffle=True, seed=seed)
    windows = Windows(window, lanes, seed, open_shards=min(open_shards, -(-len(shards) // lanes)))
    records = sum(map(len, shards))
    for rank in range(world_size):
        numbers = range(rank, lanes, world_size)
        own = round_robin(shuffled(shards, order, windows, n) for n in numbers)
        found = islice(own, EPOCHS * records // world_size)
        assert largest_difference(found, records) <= lanes // world_size


@given(SHARDS, st.integers(1, 9), st.booleans(), st.integers(0, 3))
def test_by_record(shards: Lengths, lanes: int, shuffle: bool, seed: int) -> None:
    order = RecordOrder(index_of(shards, 60).chunks(), lanes, shuffle, seed)
    own = round_robin(by_record(order, lane) for lane in range(lanes))
    found = islice(own, EPOCHS * order.records)
    assert largest_difference(found, order.records) <= 2


@given(SHARDS, st.integers(1, 9), st.booleans(), st.integers(0, 3), st.data())
def test_by_record_with_a_filter(
    shards: Lengths, lanes: int, shuffle: bool, seed: int, data: st.DataObject
) -> None:
    every = [(s, i) for s, lengths in enumerate(shards) for i in range(len(lengths))]
    kept = data.draw(st.sets(st.sampled_from(every), min_size=1))
    chunks = index_of(shards, 60).chunks()
    order = RecordOrder(chunks, lanes, shuffle, seed, joins=False, origin=0)
    parts = (by_record(order, lane) for lane in range(lanes))
    own = round_robin((record for record in part if record in kept) for part in parts)
    found = islice(own, EPOCHS * len(kept))
    assert largest_difference(found, len(kept)) <= lanes


@given(SHARDS, SHARDS, st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_in_a_mix(one: Lengths, other: Lengths, lanes: int, shuffle: bool, seed: int) -> None:
    draws = Draws(((0, (0.7, 0.3)),), lanes, seed)

    def lane_of(lane: int) -> Iterator[tuple[int, Record]]:
        parts = [
            by_shard(shards, ShardOrder(len(shards), lanes, shuffle, seed + c), lane)
            for c, shards in enumerate((one, other))
        ]
        for first in count(step=100):
            for component in draws.choices(lane, 0, first, 100).tolist():
                yield component, next(parts[component])

    mixed: list[tuple[int, Record]] = []
    generators = [lane_of(lane) for lane in range(lanes)]
    for _ in range(300 // lanes):
        mixed += [next(generator) for generator in generators]
    for component, shards in enumerate((one, other)):
        found = [record for drawn, record in mixed if drawn == component]
        assert largest_difference(found, sum(map(len, shards))) <= lanes


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_short_shard_beside_a_long_one(lanes: int, shuffle: bool) -> None:
    """As two epochs of tf.data's ``repeat``, in which each record comes twice."""
    shards = ((4,) * 10, (4,) * 2)
    order = ShardOrder(2, lanes, shuffle)
    found = Counter(islice(round_robin(by_shard(shards, order, n) for n in range(lanes)), 24))
    assert (min(found.values()), max(found.values())) == (2, 2)
    assert len(found) == 12
