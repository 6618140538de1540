from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernel
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.batch.decoder import Chunk, empty_chunk
from streamrec.pipeline.fetch.range_queue import RangeQueue, RangeRead, Shards
from streamrec.pipeline.lane import batcher as batcher_module
from streamrec.pipeline.lane.batcher import Batcher, ExtentTracker
from streamrec.pipeline.lane.lane import Lane
from streamrec.pipeline.terms.run_plan import RunPlan
from streamrec.plan.order.coordinates import LANE, POINT, Coordinates
from streamrec.plan.order.shard_order import Extent, ShardOrder
from streamrec.plan.reading.ranges import LaneRanges, MemoryPlan, RangeRequest
from streamrec.plan.state.position import Position
from streamrec.values.record_rows import RecordRows
from tests.pipeline.received_ranges import reader_of
from tests.pipeline.small_datasets import settings_of
from tests.plan.state.test_position import FINGERPRINT
from tests.support import another_ran_within, no_switching, with_gil

if TYPE_CHECKING:
    from streamrec.plan.order.coordinates import Structured
    from streamrec.plan.order.record_order import Order

pytestmark = pytest.mark.both_kernels

COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def lane_of(
    number: int, records: int, pieces: int = 1, *, received: int | None = None, taken: int = 0
) -> Lane:
    """Make a lane of one shard in ranges of about equal counts, the first ``received`` there."""
    frames = [frame(b"%d" % i) for i in range(records)]
    extent = Extent(0, number, shard=number)
    size, reads, begin = sum(map(len, frames)), deque[RangeRead](), 0
    for piece, some in enumerate(np.array_split(np.arange(records), pieces)):
        data = b"".join(frames[i] for i in some)
        request = RangeRequest(extent, begin, begin + len(data))
        memory = np.frombuffer(data, np.uint8)
        is_there = received is None or piece < received
        reads.append(RangeRead(request, memory, len(data) if is_there else 0, done=is_there))
        begin += len(data)
    shards = Shards([str(n) for n in range(48)], sizes={number: size})
    queue = RangeQueue(LaneRanges(iter([]), {}, 1), 1, reads)
    start = Coordinates(0, 0, 0, taken=taken)
    return Lane(reader_of(queue, shards, start, start), start)


def keys(chunk: Chunk) -> list[tuple[int, int]]:
    assert (np.diff(chunk.keys) > 0).all()
    return rows_of(chunk)


def rows_of(chunk: Chunk) -> list[tuple[int, int]]:
    """Return each row's number in its lane, and the lane's number."""
    assert chunk.epochs.tolist() == chunk.rows.shards.tolist()  # each test lane has its own epoch
    assert chunk.nbytes == chunk.rows.nbytes
    return list(zip(chunk.rows.ordinals.tolist(), chunk.rows.shards.tolist(), strict=True))


@given(COUNTS, st.integers(1, 10))
def test_exact_batches_in_the_order_of_the_keys(counts: list[int], size: int) -> None:
    batcher = Batcher([lane_of(i, n) for i, n in enumerate(counts)])
    out: list[tuple[int, int]] = []
    while True:
        assert batcher.gather(size) == -1
        if batcher.pending < size:
            break
        chunk = batcher.cut(size)
        assert len(chunk) == size
        out += keys(chunk)
        coordinates, _ = batcher.coordinates()
        given = [sum(lane == i for _, lane in out) for i in range(len(counts))]
        assert coordinates["taken"].tolist() == given
        assert coordinates["record"].tolist() == given
        assert coordinates.flags.c_contiguous
        assert coordinates.dtype == LANE
    out += keys(batcher.cut(batcher.pending))
    assert out == sorted((i, lane) for lane, n in enumerate(counts) for i in range(n))


def test_the_coordinates_of_a_batch_are_its_own() -> None:
    batcher = Batcher([lane_of(i, 9) for i in range(3)])
    assert batcher.gather(9) == -1
    batcher.cut(4)
    coordinates, _ = batcher.coordinates()
    before = coordinates.copy()
    batcher.cut(5)
    assert (coordinates == before).all()
    assert batcher.coordinates()[0]["taken"].tolist() == [3, 3, 3]


def test_a_merge_takes_no_more_bytes_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since merged rows keep their ranges in memory: 10 rows of a byte, which count as 2."""
    monkeypatch.setattr(batcher_module, "MERGE_BYTES", 20)
    batcher = Batcher([lane_of(0, 30)])
    for pending in (1, 10):
        assert batcher.gather(1) == -1
        assert batcher.pending == pending
        batcher.cut(pending)


def test_no_more_is_merged_than_will_be_wanted() -> None:
    batcher = Batcher([lane_of(0, 30), lane_of(1, 30)])
    for first, ahead in ((0, 9), (3, 6), (6, 3)):
        assert batcher.gather(3, ahead) == -1
        assert first + batcher.pending <= 9
        assert rows_of(batcher.cut(3)) == [(i // 2, i % 2) for i in range(first, first + 3)]
    assert batcher.gather(3) == -1
    assert batcher.pending > 9


@given(COUNTS, st.lists(st.integers(0, 30), min_size=6, max_size=6), st.integers(1, 4))
def test_a_lane_that_is_said_to_be_far_ahead_does_not_go_back(
    counts: list[int], ahead: list[int], size: int
) -> None:
    """As a hostile position may say."""
    taken = ahead[: len(counts)]
    batcher = Batcher([lane_of(i, n, taken=taken[i]) for i, n in enumerate(counts)])
    before, out = taken, 0
    while batcher.gather(size) == -1 and batcher.pending:
        out += len(batcher.cut(min(size, batcher.pending)))
        given = batcher.coordinates()[0]["taken"].tolist()
        assert all(now >= then for now, then in zip(given, before, strict=True))
        before = given
    assert out == sum(counts)
    assert before == [start + n for start, n in zip(taken, counts, strict=True)]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=6),
    st.integers(1, 10),
    st.booleans(),
)
def test_lanes_of_any_number_of_parts(
    lanes: list[tuple[int, int]], size: int, ordered: bool
) -> None:
    made = [lane_of(i, n, pieces) for i, (n, pieces) in enumerate(lanes)]
    batcher = Batcher(made, ordered=ordered)
    out: list[tuple[int, int]] = []
    while batcher.gather(size) == -1 and batcher.pending >= size:
        chunk = batcher.cut(size)
        rows = rows_of(chunk)
        assert isinstance(chunk.rows, RecordRows)
        assert [bytes(payload) for payload in chunk.rows.payloads()] == [b"%d" % i for i, _ in rows]
        assert np.diff(chunk.ends).tolist() == chunk.rows.lengths[1:].tolist()
        out += rows
    out += rows_of(batcher.cut(batcher.pending))
    expected = [(i, lane) for lane, (n, _) in enumerate(lanes) for i in range(n)]
    assert sorted(out) == sorted(expected)
    if ordered:
        assert out == sorted(expected)
    for lane in range(len(lanes)):
        assert [i for i, other in out if other == lane] == list(range(lanes[lane][0]))


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=6), st.data()
)
def test_what_is_missing_holds_back_what_follows_alone(
    lanes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Each lane has received some of its four ranges."""
    made = [lane_of(i, n, 4, received=received) for i, (n, received) in enumerate(lanes)]
    batcher = Batcher(made)
    there = [sum(map(len, np.array_split(range(n), 4)[:received])) for n, received in lanes]
    missing = [(n, i) for i, n in enumerate(there) if lanes[i][1] < 4]
    expected = sorted(
        (number, lane)
        for lane, n in enumerate(there)
        for number in range(n)
        if not missing or (number, lane) < min(missing)
    )
    out: list[tuple[int, int]] = []
    while (lane := batcher.gather(wanted := data.draw(st.integers(1, 9)))) < 0:
        if not batcher.pending:
            break
        out += keys(batcher.cut(min(wanted, batcher.pending)))
    assert lane == (min(missing)[1] if missing else -1)
    assert out + keys(batcher.cut(batcher.pending)) == expected


@given(COUNTS, st.integers(0, 15))
def test_rows_to_skip_come_before_the_first_batch(counts: list[int], skip: int) -> None:
    lanes = [lane_of(i, n) for i, n in enumerate(counts)]
    batcher = Batcher(lanes, skip)
    batcher.gather(100)
    expected = sorted((i, lane) for lane, n in enumerate(counts) for i in range(n))
    assert keys(batcher.cut(batcher.pending)) == expected[skip:]


def test_rows_that_wait_hold_the_buffers_of_these_alone() -> None:
    batcher = Batcher([lane_of(0, 3), lane_of(1, 1)])
    assert batcher.gather(3) == -1
    assert len(batcher.cut(3).rows.buffers) == 2
    assert (batcher.gather(2), batcher.pending) == (-1, 1)
    assert len(batcher.cut(1).rows.buffers) == 1


def test_no_rows_hold_no_buffer() -> None:
    batcher = Batcher([lane_of(0, 3)])
    batcher.gather(3)
    assert len(batcher.cut(3).rows.buffers) == 1
    batcher.gather(1)
    assert batcher.cut(0).rows.buffers == ()


def test_an_empty_chunk_is_neutral() -> None:
    batcher = Batcher([lane_of(0, 3)])
    batcher.gather(3)
    chunk = batcher.cut(3)
    assert keys(Chunk.concatenate([empty_chunk(), chunk])) == keys(chunk)
    assert (len(empty_chunk()), empty_chunk().nbytes) == (0, 0)


@given(COUNTS, st.integers(1, 10), st.integers(1, 10))
def test_parts_of_chunks_know_their_bytes_however_they_came_about(
    counts: list[int], size: int, other: int
) -> None:
    batcher = Batcher([lane_of(i, n) for i, n in enumerate(counts)])
    batcher.gather(size)
    first = batcher.cut(min(size, batcher.pending))
    batcher.gather(other)
    second = batcher.cut(min(other, batcher.pending))
    both = Chunk.concatenate([first, second])
    assert keys(both) == keys(first) + keys(second)
    assert keys(both.cut(1, None)) == keys(both)[1:]


@with_gil
def test_batches_of_few_records_are_cut_without_letting_go_of_the_interpreter() -> None:
    """Threads that decode take it, and the event loop would wait for them at each step."""

    def batcher() -> Batcher:
        lanes = [lane_of(i, 12, pieces=2, received=1) for i in range(48)]
        return Batcher(lanes)

    def cut(batcher: Batcher) -> None:
        batcher.gather(64)
        batcher.cut(64)
        batcher.coordinates()
        assert batcher.gather(300) == 0  # it has not received: what is held is looked over

    if kernel.implementation != "native":
        pytest.skip("the kernel in Python lets go of it")
    with no_switching():
        assert not any(another_ran_within(partial(cut, batcher())) for _ in range(100))


LANES = 4
NUMBERS = st.integers(0, 12)
ORDERS = st.lists(
    st.builds(ShardOrder, st.integers(1, 9), st.just(LANES), st.booleans(), st.integers(0, 5)),
    min_size=1,
    max_size=3,
)


class Noting:
    """An order that notes the extents it is asked for."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.lanes = order.lanes
        self.asked: list[tuple[int, int]] = []

    def extent(self, lane: int, number: int) -> Extent:
        self.asked.append((lane, number))
        return self.order.extent(lane, number)


def plan_of(orders: list[Any], rank: int = 0, world_size: int = 1) -> RunPlan:
    firsts = [0] * (LANES // world_size)
    position = Position.start(
        replace(FINGERPRINT, lanes=LANES), firsts, rank=rank, world_size=world_size
    )
    memory = MemoryPlan.divide(32 << 20, lanes=LANES, windows=0)
    return RunPlan(
        settings=settings_of("x"),
        orders=tuple(orders),
        position=position,
        memory=memory,
        batch_size=1,
        remainder="keep",
    )


def shards_of(count: int) -> Shards:
    return Shards([f"s{i}" for i in range(count)], sizes={i: 100 + i for i in range(count)})


def points_of(numbers: list[int], offsets: list[int], own: int = LANES) -> Structured:
    points = np.zeros((own, len(numbers) // own), POINT)
    points["extent"] = np.reshape(numbers, (-1, own)).T
    points["offset"] = np.reshape(offsets, (-1, own)).T
    return points


def lanes_of(count: int) -> Structured:
    return np.zeros(count, LANE)


@given(ORDERS, st.sampled_from([(0, 1), (1, 2), (3, 4)]), st.data())
def test_the_sizes_are_those_of_the_shards_in_whose_middle_feeds_stand(
    orders: list[ShardOrder], where: tuple[int, int], data: st.DataObject
) -> None:
    """After any number of batches, each with a state that may lie before the last one."""
    plan, shards = plan_of(orders, *where), shards_of(9)
    tracker, own = ExtentTracker(plan, shards), len(plan.own_lanes)
    for _ in range(3):
        count = own * len(orders)
        numbers = data.draw(st.lists(NUMBERS, min_size=count, max_size=count))
        offsets = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        lanes = lanes_of(own)
        lanes["row"] = data.draw(st.lists(st.integers(0, 1), min_size=own, max_size=own))
        lanes["part"] = data.draw(st.lists(st.integers(0, 1), min_size=own, max_size=own))
        points = points_of(numbers, offsets, own)
        tracker.follow(points)
        extents = [
            order.extent(lane, number)
            for (order, lane), number in zip(plan.sublanes, numbers, strict=True)
        ]
        inside = [
            offset > 0 or lanes["row"][sublane % own] > 0 or lanes["part"][sublane % own] > 0
            for sublane, offset in enumerate(offsets)
        ]
        assert tracker.epoch == min(extent.epoch for extent in extents)
        assert tracker.sizes(points, lanes).T.ravel().tolist() == [
            100 + extent.shard if is_inside else 0
            for extent, is_inside in zip(extents, inside, strict=True)
        ]


@given(st.lists(st.lists(NUMBERS, min_size=LANES, max_size=LANES), min_size=1, max_size=6))
def test_extents_are_looked_up_when_they_change_and_only_then(states: list[list[int]]) -> None:
    order = Noting(ShardOrder(7, LANES))
    tracker = ExtentTracker(plan_of([order]), shards_of(7))
    before = [-1] * LANES
    for numbers in states:
        order.asked.clear()
        tracker.follow(points_of(numbers, [0] * LANES))
        changed = [(lane, n) for lane, n in enumerate(numbers) if n != before[lane]]
        assert order.asked == changed
        before = numbers


def test_the_array_of_a_batch_may_change_afterwards() -> None:
    order = Noting(ShardOrder(7, LANES))
    tracker = ExtentTracker(plan_of([order]), shards_of(7))
    points = points_of([0] * LANES, [0] * LANES)
    tracker.follow(points)
    points[2] = 3, 5, 0, 0
    tracker.follow(points)
    assert order.asked[LANES:] == [(2, 3)]


def test_a_chunk_is_entered_behind_its_own_beginning() -> None:
    order = RecordChunks()
    tracker = ExtentTracker(plan_of([order]), shards_of(1))
    points = points_of([0, 1, 2, 3], [0, 100, 201, 300])
    tracker.follow(points)
    assert tracker.sizes(points, lanes_of(LANES)).ravel().tolist() == [0, 0, 100, 0]


def test_no_size_is_known_of_what_was_never_read() -> None:
    tracker = ExtentTracker(plan_of([ShardOrder(4, LANES)]), Shards(["a", "b", "c", "d"]))
    points = points_of([0] * LANES, [9] * LANES)
    tracker.follow(points)
    assert tracker.sizes(points, lanes_of(LANES)).ravel().tolist() == [0] * LANES


class RecordChunks:
    """Chunks of a hundred bytes of one shard."""

    lanes = LANES

    def extent(self, lane: int, number: int) -> Extent:
        return Extent(number, 0, 0, begin=100 * number, end=100 * number + 100)
