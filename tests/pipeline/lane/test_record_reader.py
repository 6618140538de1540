from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import (
    CorruptBudgetExceeded,
    CorruptCompression,
    CorruptLength,
    StaleIndex,
    StoreUnavailable,
    StreamrecError,
    TruncatedShard,
)
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.pipeline.fetch.range_queue import RangeQueue, RangeRead, Shards
from streamrec.pipeline.lane.damage_policy import CorruptionLog, DamagePolicy
from streamrec.pipeline.lane.record_reader import RecordReader
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.reading.ranges import RangeRequest
from tests.pipeline.received_ranges import END, SHARD, STARTS, at, damaged, nothing_more, received
from tests.support import asynchronous

if TYPE_CHECKING:
    from streamrec.formats.shards.tfrecord import DamagedSpan

pytestmark = pytest.mark.both_kernels

URLS = [f"shard{i}" for i in range(3)]
START = Coordinates(0, 0, 0)
WHOLE = Extent(0, 0, shard=0)
SIZE = len(SHARD)


def queue_of(*reads: RangeRead) -> RangeQueue:
    return RangeQueue(nothing_more(), 1, deque(reads))


def reader_of(
    queue: Any,
    start: Coordinates = START,
    *,
    size: int = SIZE,
    epoch: int = 0,
    counts: Counter[str] | None = None,
    log: CorruptionLog | None = None,
    **policy: Any,
) -> RecordReader:
    shards = Shards(URLS, sizes=dict.fromkeys(range(3), size))
    damage = DamagePolicy(Counter() if counts is None else counts, log, **policy)
    return RecordReader(queue, shards, start, END, FrameScanner, damage, epoch)


def reader_over(*reads: RangeRead, **values: Any) -> RecordReader:
    return reader_of(queue_of(*reads), **values)


def pop_all(reader: RecordReader) -> list[Any]:
    """Pop all that is ready: records by their numbers, ``~n`` for a damaged one."""
    out: list[Any] = []
    while (item := reader.pop()) is not None:
        out += item.rows.ordinals.tolist() if isinstance(item, RecordSpan) else [item]
    return out


ALL = [0, 1, 2, 3, 4, 5]

# -- what is intact --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, SIZE), max_size=6))
def test_ranges_cut_anywhere_give_every_record_with_its_coordinates(cuts: list[int]) -> None:
    bounds = [0, *sorted(set(cuts) - {0, SIZE}), SIZE]
    extent = Extent(4, 0, shard=1)
    reader = reader_over(*(received(extent, a, b) for a, b in itertools.pairwise(bounds)))
    places, number = [], 0
    while isinstance(item := reader.pop(), RecordSpan):
        for row in range(len(item)):
            assert item.before(row) == at(4, number)
            places.append(item.after(row))
            number += 1
    assert places == [at(4, i + 1) for i in range(6)]
    assert (item, reader.ended, reader.pop()) == (END, True, None)


def test_a_range_that_grows() -> None:
    read = received(WHOLE, 0, SIZE)
    read.filled, read.done = STARTS[2] + 5, False
    reader = reader_over(read)
    assert (pop_all(reader), reader.ended, reader.waits_for) == ([0, 1], False, "fetch")
    read.filled, read.done = SIZE, True
    assert (pop_all(reader), reader.ended) == ([2, 3, 4, 5, END], True)


def test_resumed_within_a_shard_the_numbers_go_on() -> None:
    start = Coordinates(0, STARTS[4], 4)
    following = received(Extent(1, 0, shard=1), 0, SIZE)
    reader = reader_over(received(WHOLE, STARTS[4], SIZE), following, start=start)
    assert pop_all(reader) == [4, 5, *ALL, END]


@pytest.mark.parametrize("epoch", [1, 0])
def test_the_next_epoch_is_told_by_where_it_begins(epoch: int) -> None:
    """An epoch ends before the first extent of another one, even if no record was read."""
    reads = [received(Extent(n, n, shard=n), 0, SIZE) for n in (1, 2)]
    first = [Coordinates(1, 0, 0)] if epoch == 0 else []
    assert pop_all(reader_over(*reads, epoch=epoch)) == [
        *first,
        *ALL,
        Coordinates(2, 0, 0),
        *ALL,
        END,
    ]


def test_an_empty_shard_of_unknown_size_begins_no_epoch() -> None:
    """Those of known size are never asked for, and a lane's place must not tell the difference."""
    reads = [received(Extent(n, n, shard=n), 0, SIZE if n in (0, 2) else 0) for n in range(3)]
    reader = reader_over(*reads)
    del reader.shards.sizes[1]  # as before its answer
    reads[1].done = False
    assert pop_all(reader) == ALL
    reader.shards.sizes[1], reads[1].done = 0, True
    assert pop_all(reader) == [Coordinates(2, 0, 0), *ALL, END]


def test_an_epoch_begins_as_soon_as_the_size_of_its_first_shard_is_known() -> None:
    reads = [received(Extent(n, n, shard=n), 0, SIZE) for n in range(2)]
    reads[1].filled, reads[1].done = 0, False
    reader = reader_over(*reads)
    del reader.shards.sizes[1]
    assert pop_all(reader) == ALL
    reader.shards.sizes[1] = SIZE
    assert pop_all(reader) == [Coordinates(1, 0, 0)]


def test_a_shard_that_cannot_be_read_begins_its_epoch() -> None:
    """So that all that comes before its error is given."""
    reads = [received(Extent(n, n, shard=n), 0, SIZE) for n in range(2)]
    reads[1].filled, reads[1].error = 0, StoreUnavailable("away")
    reader = reader_over(*reads)
    del reader.shards.sizes[1]
    first, second = reader.pop(), reader.pop()
    assert isinstance(first, RecordSpan)
    assert (len(first), second) == (len(ALL), Coordinates(1, 0, 0))
    with pytest.raises(StoreUnavailable, match="away"):
        reader.pop()


def test_a_shard_of_nothing() -> None:
    reader = reader_over(received(WHOLE, 0, 0, b""), size=0)
    assert (pop_all(reader), reader.ended) == ([END], True)


def test_what_came_before_a_failure_comes_first() -> None:
    read = received(WHOLE, 0, SIZE)
    read.filled, read.done, read.error = STARTS[2] + 1, False, StoreUnavailable("gone")
    reader = reader_over(read)
    first = reader.pop()
    assert isinstance(first, RecordSpan)
    assert first.rows.ordinals.tolist() == [0, 1]
    with pytest.raises(StoreUnavailable, match="gone"):
        reader.pop()
    assert not reader.ended


# -- damage that ends the lane ---------------------------------------------------------------------


def test_damage_is_read_once_more_and_then_an_error() -> None:
    bad = damaged(STARTS[3])
    queue = queue_of(received(WHOLE, 0, SIZE, bad))
    counts: Counter[str] = Counter()
    reader = reader_of(queue, counts=counts)
    assert pop_all(reader) == [0, 1, 2]
    assert queue.repair == RangeRequest(WHOLE, STARTS[3], SIZE)
    queue.add_repair(received(WHOLE, STARTS[3], SIZE, bad))
    with pytest.raises(CorruptLength) as caught:
        reader.pop()
    assert (caught.value.url, caught.value.offset, caught.value.record) == ("shard0", STARTS[3], 3)
    assert counts["refetched"] == 0


@pytest.mark.parametrize("at", range(STARTS[3], STARTS[4]))
@pytest.mark.parametrize("cut", [0, STARTS[3] + 5])
def test_damage_that_is_gone_the_second_time_loses_nothing(at: int, cut: int) -> None:
    """The damage is in any byte of a record, which lies in one range or in two."""
    bad = damaged(at)
    before = [received(WHOLE, 0, cut, bad)] if cut else []
    queue = queue_of(*before, received(WHOLE, cut, SIZE, bad))
    counts: Counter[str] = Counter()
    reader = reader_of(queue, counts=counts)
    assert (pop_all(reader), reader.ended) == ([0, 1, 2], False)
    assert queue.repair == RangeRequest(WHOLE, STARTS[3], SIZE)
    queue.add_repair(received(WHOLE, STARTS[3], SIZE))
    assert (pop_all(reader), reader.ended) == ([3, 4, 5, END], True)
    assert counts["refetched"] == 1


def test_a_shard_that_ends_inside_a_record_is_not_read_again() -> None:
    queue = queue_of(received(WHOLE, 0, SIZE - 3))
    reader = reader_of(queue, size=SIZE - 3)
    assert isinstance(reader.pop(), RecordSpan)
    with pytest.raises(TruncatedShard):
        reader.pop()
    assert queue.repair is None


def test_of_what_was_decompressed_nothing_is_read_again() -> None:
    with pytest.raises(CorruptLength):
        pop_all(reader_of(inflated(damaged(STARTS[3]))))


CHUNK = Extent(
    0, 0, shard=0, begin=STARTS[1], end=STARTS[4], first_record=1, skip=1, records=2, next_record=4
)


def test_of_a_chunk_its_own_records_come() -> None:
    assert pop_all(reader_over(received(CHUNK, STARTS[1], STARTS[4]))) == [2, 3, END]


@pytest.mark.parametrize("change", [{"next_record": 5}, {"next_record": 3}, {"end": STARTS[4] - 1}])
def test_an_index_that_is_wrong_about_a_chunk(change: dict[str, int]) -> None:
    facts: dict[str, Any] = {"begin": STARTS[1], "end": STARTS[4], "first_record": 1, "skip": 1}
    extent = Extent(0, 0, 0, **{**facts, "records": 2, "next_record": 4, **change})
    assert extent.end is not None
    with pytest.raises(StaleIndex, match=r"shard0: the index says that record .*`streamrec index`"):
        pop_all(reader_over(received(extent, STARTS[1], extent.end)))


def of_chunk(begin: int, data: bytes = SHARD) -> tuple[RecordReader, RangeQueue]:
    """Return a reader of records 1 to 3, of which an index says where they begin."""
    end = STARTS[4]
    extent = Extent(0, 0, 0, begin=begin, end=end, first_record=1, records=3, next_record=4)
    queue = queue_of(received(extent, begin, end, data))
    return reader_of(queue), queue


@pytest.mark.parametrize("begin", [STARTS[1] - 1, STARTS[1] + 1, STARTS[1] + 13])
def test_an_index_that_is_wrong_about_where_a_chunk_begins(begin: int) -> None:
    reader, queue = of_chunk(begin)
    words = f"record 1 begins at byte {begin}, .*the index is wrong, or the record is damaged"
    with pytest.raises(StaleIndex, match=words):
        skipped(reader, queue, SHARD)


@pytest.mark.parametrize("place", [STARTS[1], STARTS[1] + 8])
def test_a_length_is_damaged_where_the_bytes_prove_that_a_record_begins(place: int) -> None:
    bad = damaged(place)
    reader, queue = of_chunk(STARTS[1], bad)
    assert pop_all(reader) == []
    assert queue.repair is not None
    again = received(queue.repair.extent, STARTS[1], STARTS[4], bad)
    again.filled, again.done = 13, False
    queue.add_repair(again)
    assert pop_all(reader) == [], "the rest of the record decides"
    again.filled, again.done = len(again.memory), True
    with pytest.raises(CorruptLength) as caught:
        pop_all(reader)
    assert (caught.value.offset, caught.value.record) == (STARTS[1], 1)


def test_records_that_the_index_does_not_count_are_noticed_before_the_last_counted_one() -> None:
    """They lie in a range that has not come: a run that counts may end before it does."""
    extent = Extent(0, 0, 0, begin=0, end=STARTS[4], records=2, next_record=2)
    queue = queue_of(received(extent, 0, STARTS[2]), received(extent, STARTS[2], STARTS[4]))
    queue.ranges[1].filled, queue.ranges[1].done = 0, False
    with pytest.raises(StaleIndex, match=f"record 2 begins at byte {STARTS[2]}"):
        pop_all(reader_of(queue))


# -- damage that is skipped ------------------------------------------------------------------------


class FakeSink:
    """A sink that finishes storing a span when the test says so."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []
        self.storing: list[asyncio.Future[None]] = []

    def store(self, shard: int, damaged: DamagedSpan) -> asyncio.Future[None]:
        self.kept.append((shard, damaged.offset))
        self.storing.append(asyncio.get_running_loop().create_future())
        return self.storing[-1]

    async def aclose(self) -> None:
        """Do nothing, as nothing is open."""


def skipped(reader: RecordReader, queue: RangeQueue, data: bytes) -> list[Any]:
    """Pop all records, where damage stays when it is read again."""
    out = pop_all(reader)
    while queue.repair is not None:
        again = queue.repair
        queue.add_repair(received(again.extent, again.start, again.stop, data))
        out += pop_all(reader)
    return out


@pytest.mark.parametrize("at", range(STARTS[2], STARTS[3]))
@pytest.mark.parametrize("keeps_placeholders", [False, True])
def test_a_damaged_record_is_skipped_or_leaves_its_place(at: int, keeps_placeholders: bool) -> None:
    bad = damaged(at)
    queue, corruption_log = queue_of(received(WHOLE, 0, SIZE, bad)), CorruptionLog(URLS, 1)
    reader = reader_of(queue, log=corruption_log, keeps_placeholders=keeps_placeholders)
    place = [~2] if keeps_placeholders else []
    assert skipped(reader, queue, bad) == [0, 1, *place, 3, 4, 5, END]
    assert corruption_log.statistics()["skipped_bytes"] == STARTS[3] - STARTS[2]
    assert corruption_log.met == 6


def test_a_record_too_many() -> None:
    bad = damaged(STARTS[2] + 20)
    queue = queue_of(received(WHOLE, 0, SIZE, bad))
    with pytest.raises(CorruptBudgetExceeded):
        skipped(reader_of(queue, log=CorruptionLog(URLS, 0)), queue, bad)


@asynchronous
async def test_nothing_passes_what_is_still_being_stored() -> None:
    bad = damaged(STARTS[2] + 20)
    queue, sink, told = queue_of(received(WHOLE, 0, SIZE, bad)), FakeSink(), asyncio.Event()
    reader = reader_of(queue, log=CorruptionLog(URLS, 1, sink), notify=told.set)
    assert skipped(reader, queue, bad) == [0, 1]
    assert (sink.kept, reader.waits_for) == ([(0, STARTS[2])], "quarantine")
    assert pop_all(reader) == []
    sink.storing[0].set_result(None)
    await told.wait()
    assert (pop_all(reader), reader.waits_for) == ([3, 4, 5, END], "fetch")
    assert len(sink.kept) == 1


@asynchronous
async def test_what_cannot_be_stored_ends_the_lane() -> None:
    bad = damaged(STARTS[2] + 20)
    queue, sink, told = queue_of(received(WHOLE, 0, SIZE, bad)), FakeSink(), asyncio.Event()
    reader = reader_of(queue, log=CorruptionLog(URLS, 1, sink), notify=told.set)
    skipped(reader, queue, bad)
    sink.storing[0].set_exception(StoreUnavailable("full"))
    await told.wait()
    with pytest.raises(StoreUnavailable, match="full"):
        reader.pop()


def test_what_a_chunk_lacks_without_damage_is_not_skipped() -> None:
    """The index counts four more records than there are before the chunk's end."""
    extent = Extent(0, 0, shard=0, end=STARTS[2], records=6, next_record=6)
    reader = reader_over(
        received(extent, 0, STARTS[2]), log=CorruptionLog(URLS, 4), keeps_placeholders=True
    )
    with pytest.raises(StaleIndex, match="record 6 begins at byte"):
        pop_all(reader)


def test_what_a_chunk_lacks_behind_damage_has_rows_of_its_own() -> None:
    """A lane that was resumed does not know what was skipped before."""
    extent = Extent(0, 0, shard=0, end=STARTS[3], records=6, next_record=6)
    corruption_log = CorruptionLog(URLS, 4)
    start = Coordinates(0, STARTS[1], 1)
    read = received(extent, STARTS[1], STARTS[3])
    reader = reader_over(read, log=corruption_log, keeps_placeholders=True, start=start)
    assert pop_all(reader) == [1, 2, ~3, ~4, ~5, END]
    assert corruption_log.statistics()["skipped_records"] == 3


@pytest.mark.parametrize("reach", [1, 2])
def test_a_lane_in_which_nothing_is_intact_is_hopeless(reach: int) -> None:
    extents = [Extent(n, n, shard=0) for n in range(9)]
    queue = queue_of(*(received(extent, 0, 0, b"") for extent in extents))
    reader = reader_of(queue, log=CorruptionLog(URLS, 1.0), reach=reach, size=0)
    with pytest.raises(CorruptBudgetExceeded, match=f"read {2 * reach + 1} shards or chunks"):
        pop_all(reader)


def inflated(data: bytes, fault: StreamrecError | None = None) -> RangeQueue:
    """Make the queue of a compressed shard that gave these bytes before its end or a fault."""
    read = received(WHOLE, 0, len(data), data)
    read.inflated, read.error, read.done = True, fault, fault is None
    read.shard_size = None if fault else len(data)
    return RangeQueue(nothing_more(), 1, pieces=deque([read]))


@pytest.mark.parametrize("came", [STARTS[3], STARTS[3] + 5])
def test_what_a_compressed_shard_lacks_is_skipped(came: int) -> None:
    fault = CorruptCompression("is no stream", offset=100)
    corruption_log = CorruptionLog(URLS, 1)
    reader = reader_of(inflated(SHARD[:came], fault), log=corruption_log)
    assert pop_all(reader) == [0, 1, 2, END]
    lost = came - STARTS[3] + SIZE - 100  # bytes that came out, and those that did not go in
    assert corruption_log.statistics()["skipped_bytes"] == lost


def test_a_compressed_shard_that_is_damaged_is_an_error_else() -> None:
    fault = CorruptCompression("is no stream", offset=100)
    with pytest.raises(CorruptCompression):
        pop_all(reader_of(inflated(SHARD[: STARTS[3]], fault)))


@pytest.mark.parametrize("corruption_log", [None, CorruptionLog(URLS, 1.0)])
def test_a_store_that_fails_is_no_damage(corruption_log: CorruptionLog | None) -> None:
    queue = inflated(SHARD[: STARTS[3]], StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        pop_all(reader_of(queue, log=corruption_log))
