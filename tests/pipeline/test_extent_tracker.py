from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.extent_tracker import ExtentTracker
from streamrec.pipeline.fetch.range_queue import Shards
from streamrec.pipeline.terms.run_plan import RunPlan
from streamrec.plan.order.coordinates import LANE, POINT
from streamrec.plan.order.shard_order import Extent, ShardOrder
from streamrec.plan.reading.ranges import MemoryPlan
from streamrec.plan.state.position import Position
from tests.pipeline.small_datasets import settings_of
from tests.plan.state.test_position import FINGERPRINT

if TYPE_CHECKING:
    from streamrec.plan.order.coordinates import Structured
    from streamrec.plan.order.record_order import Order

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
