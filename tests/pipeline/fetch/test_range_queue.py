from __future__ import annotations

import gzip
from collections import deque

import numpy as np
import pytest

from streamrec.errors import ObjectChanged, StaleIndex
from streamrec.formats.shards.index import ShardEntry
from streamrec.pipeline.fetch.inflating_queue import InflatingQueue
from streamrec.pipeline.fetch.range_queue import Demand, LearnedFacts, RangeQueue, RangeRead, Shards
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.reading.ranges import LaneRanges, RangeRequest
from streamrec.stores.base.protocol import ObjectInfo
from tests.pipeline.received_ranges import SHARD, nothing_more, received


def test_of_what_a_window_lacks_the_first_is_read_first() -> None:
    """All of it is needed at once, before what comes behind it."""
    distances = [Demand(lacks=25, share=0.5).distance(ahead) for ahead in (10, 0, 5)]
    assert sorted(distances) == [distances[1], distances[2], distances[0]]
    assert all(-1 <= distance < 0 for distance in distances)


def test_a_shard_that_was_begun_has_a_size_before_the_store_answers() -> None:
    shards = Shards(["a", "b"])
    shards.expect(1, 9)
    assert [shards.size_of(shard) for shard in (0, 1)] == [0, 9]
    shards.learn(0, ObjectInfo("a", 5))
    shards.learn(1, ObjectInfo("b", 9))
    assert [shards.size_of(shard) for shard in (0, 1)] == [5, 9]


def test_bytes_that_wait_to_be_drawn_come_before_those_ahead() -> None:
    demand = Demand(ready=7, undrawn=10, share=0.5)
    assert (demand.distance(30), demand.is_empty) == (87, False)
    assert (Demand().distance(30), Demand().is_empty) == (30, True)


FIRST, SECOND = Extent(0, 0, shard=0), Extent(1, 0, shard=1)
HALF = len(SHARD) // 2


def reads() -> list[RangeRead]:
    """Return two ranges of one shard, and one of the next."""
    end = len(SHARD)
    bounds = [(FIRST, 0, HALF), (FIRST, HALF, end), (SECOND, 0, end)]
    return [received(extent, start, stop) for extent, start, stop in bounds]


def piece_of(extent: Extent) -> RangeRead:
    piece = received(extent, 0, HALF)
    piece.inflated = True
    return piece


def inflating(given: list[RangeRead], *pieces: RangeRead) -> InflatingQueue:
    """Make a queue whose shards may be compressed."""
    return InflatingQueue(
        nothing_more(),
        1,
        deque(given),
        deque(pieces),
        shards=Shards(["u", "v"], {0: len(SHARD), 1: len(SHARD)}),
        setting="auto",
        skip=0,
        piece_size=1,
    )


def test_plain_ranges_are_read_as_they_are() -> None:
    given = reads()
    queue, found = RangeQueue(nothing_more(), 1, deque(given)), []
    while queue.first is not None:
        found.append(queue.first)
        queue.drop()
    assert found == given
    assert (queue.ended, queue.ahead, queue.decompresses) == (True, 0, False)


def test_nothing_is_read_until_its_compression_is_known() -> None:
    given = reads()
    given[2].filled, given[2].done = 2, False
    queue = inflating(given)
    assert (queue.first, queue.stored, queue.decompresses) == (None, given[0], False)
    queue.changed()
    for read in given[:2]:
        assert queue.first is read
        queue.drop()
    assert (queue.first, queue.stored) == (None, given[2])


def test_pieces_are_read_in_place_of_compressed_ranges() -> None:
    given, piece = reads(), piece_of(FIRST)
    given[0].memory = np.frombuffer(gzip.compress(SHARD), np.uint8)[:HALF]
    queue = inflating(given, piece)
    queue.changed()
    assert (queue.first, queue.decompresses) == (piece, True)
    queue.drop()
    assert (queue.first, queue.stored, len(queue.ranges)) == (None, given[0], 3)


def test_a_piece_is_of_what_comes_next() -> None:
    given = reads()
    given[0].memory = np.frombuffer(gzip.compress(SHARD), np.uint8)[:HALF]
    queue = inflating(given)
    queue.changed()
    for skip, begin in ((0, 0), (7, 7)):
        queue.skip = skip
        queue.begin_piece(np.empty(10, np.uint8))
        piece = queue.pieces[-1]
        assert piece.request == RangeRequest(FIRST, begin, begin + 10)
        assert piece.inflated


def test_a_large_record_is_one_that_the_next_ranges_are_parts_of() -> None:
    planner = LaneRanges(iter([FIRST, SECOND]), {0: 100, 1: 100}, reach=2)
    queue = RangeQueue(planner, 10)
    head = planner.next(10)
    assert head is not None
    queue.add(RangeRead(head, np.zeros(10, np.uint8)))
    assert queue.find_large(FIRST, 5, 10) is None  # as large as a range
    assert queue.find_large(FIRST, 0, 10) is None  # requested already
    large = queue.find_large(FIRST, 5, 60)
    assert large is not None
    assert queue.find_large(FIRST, 5, 60) is large
    assert (large.size, large.waits, queue.next_large, queue.until_next) == (60, True, large, 0)
    large.memory = np.arange(60, dtype=np.uint8)
    part = planner.next(20)
    assert part is not None
    place = large.place_of(part)
    assert place is not None
    assert place.tolist() == list(range(5, 25))
    assert large.place_of(head) is None
    queue.add(RangeRead(part, place, in_place=True))
    queue.account.in_use = 70
    assert queue.charged(60) == 70 + 10
    assert (queue.ahead, queue.until_next) == (30, 0)
    planner.next(35)
    assert (queue.next_large, queue.until_next) == (None, 30)
    queue.end_large(FIRST, 64)
    assert queue.large is large
    queue.end_large(FIRST, 65)
    assert queue.large is None


@pytest.mark.parametrize("extent", [FIRST, SECOND])
def test_of_an_extent_that_is_given_up_nothing_is_left(extent: Extent) -> None:
    planner = LaneRanges(iter([SECOND]), {1: 9}, reach=2)
    queue = RangeQueue(planner, 1, deque(reads()[:2]), deque([piece_of(FIRST), piece_of(SECOND)]))
    queue.give_up(extent)
    left = 2 if extent is SECOND else 0
    assert (len(queue.ranges), queue.ahead) == (left, left and len(SHARD))
    assert len(queue.pieces) == (2 if extent is SECOND else 1)
    assert planner.ended == (extent is SECOND)


def test_a_range_that_is_read_again_comes_before_the_others() -> None:
    given = reads()
    queue = RangeQueue(nothing_more(), 1, deque(given))
    queue.reread(5)
    assert queue.repair == RangeRequest(FIRST, 5, HALF)
    assert (queue.first, queue.ended, queue.ahead) == (None, False, 2 * len(SHARD) - HALF)
    queue.add_repair(again := received(FIRST, 5, HALF))
    assert queue.first is again


@pytest.mark.parametrize(
    ("record", "copied"), [(1, 3), (HALF, 3 * HALF), (10 * len(SHARD), 2 * len(SHARD))]
)
def test_records_that_straddle_ranges_are_charged_once(record: int, copied: int) -> None:
    """A record that is larger than its ranges is one copy, however many of them it takes."""
    queue = RangeQueue(nothing_more(), 1, deque(reads()))
    assert queue.account.in_use == 0
    assert queue.charged(record) == copied


URL = "s3://bucket/a"


def found(size: int | None, etag: str | None = None, encoding: str | None = None) -> ObjectInfo:
    return ObjectInfo(URL, size, etag, encoding=encoding)


def test_facts_are_kept_and_the_first_version_is_pinned() -> None:
    shards = Shards([URL])
    shards.learn(0, found(None))
    assert (shards.sizes, shards.etags, shards.encodings) == ({}, {0: None}, {})
    shards = Shards([URL])
    shards.learn(0, found(7, '"1"', "gzip"))
    shards.learn(0, found(8, '"2"'))
    assert (shards.sizes, shards.etags, shards.encodings) == ({0: 8}, {0: '"1"'}, {0: "gzip"})


def test_what_decompressed_to_nothing_stays_so() -> None:
    shards = Shards([URL], sizes={0: 0})
    shards.learn(0, found(20))
    assert shards.sizes == {0: 0}
    shards.expect(0, 20)


def test_a_shard_of_another_size_is_not_gone_on_with() -> None:
    shards = Shards([URL], sizes={0: 7})
    shards.expect(0, 7)
    shards.learn(0, found(7))
    shards.learn(0, found(None))
    with pytest.raises(ObjectChanged, match="in the middle of a shard of 7 bytes, but it now"):
        shards.learn(0, found(8))
    with pytest.raises(ObjectChanged, match="a shard of 6 bytes, but it now has 7; restore"):
        shards.expect(0, 6)


@pytest.mark.parametrize(
    ("info", "etag", "words"),
    [
        (found(7), None, ""),
        (found(None), None, ""),
        (found(8), None, "the shard has 8 bytes, and had 7 when it was indexed"),
        (found(7, '"1"'), '"1"', ""),
        (found(7, '"1"'), None, ""),
        (found(7), '"1"', ""),
        (found(7, '"2"'), '"1"', """the shard's version is "2", and was "1" when it was"""),
    ],
)
def test_an_index_of_another_version_is_stale(
    info: ObjectInfo, etag: str | None, words: str
) -> None:
    entry = ShardEntry("x", 7, 1, [0], [0], [0], etag)
    shards = Shards([URL], entries=[entry], unlisted=[0])
    if words:
        with pytest.raises(StaleIndex, match=words):
            shards.learn(0, info)
        return
    shards.learn(0, info)
    shards.learn(0, found(9, '"3"'))  # it is compared once


def test_a_run_learns_in_front_of_what_its_dataset_knows() -> None:
    known = {0: 7, 1: 8}
    learned = LearnedFacts(known)
    learned[1], learned[2] = 0, 3
    assert dict(learned) == {0: 7, 1: 0, 2: 3}
    assert [learned.get(shard) for shard in range(4)] == [7, 0, 3, None]
    assert [learned.setdefault(shard, 5) for shard in (0, 3)] == [7, 5]
    assert (len(learned), known, 4 in learned) == (4, {0: 7, 1: 8}, False)
    with pytest.raises(KeyError):
        learned[4]
