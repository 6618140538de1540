from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.record_order import RecordOrder
from streamrec.plan.order.shard_order import ShardOrder
from streamrec.plan.reading.next_use import NextUse, places_of
from streamrec.plan.reading.ranges import RangeRequest
from streamrec.values.record_rows import Chunks

if TYPE_CHECKING:
    from streamrec.plan.order.shard_order import Extent

SIZE = 1000


def urls(shards: int) -> list[str]:
    return [f"s3://bucket/{number}" for number in range(shards)]


@given(st.integers(1, 20), st.integers(1, 6), st.booleans(), st.integers(1, 3), st.integers(0, 5))
def test_extents_of_a_lane_are_read_in_the_order_of_their_times(
    shards: int, lanes: int, shuffle: bool, open_shards: int, lane: int
) -> None:
    for order in ShardOrder(shards, lanes, shuffle, 3).divide(open_shards):
        extents = [order.extent(lane % lanes, number) for number in range(30)]
        for begin in (0, SIZE - 1):
            times = [next(order.times(e.epoch, e.shard, begin, SIZE)) for e in extents]
            assert times == sorted(times)
            assert len(set(times)) == len(times)
        for extent in extents:
            time = next(order.times(extent.epoch, extent.shard, 0, SIZE))
            assert abs(time - extent.epoch) <= 1 + lanes * open_shards / shards


def chunks(counts: list[int]) -> Chunks:
    """Make chunks of records of one byte, three a shard."""
    shard = np.arange(len(counts)) // 3
    first = [sum(counts[3 * (number // 3) : number]) for number in range(len(counts))]
    begin = np.array(first, np.int64)
    records = np.array(counts, np.int64)
    return Chunks(shard, begin, begin + records, begin, records)


@given(
    st.lists(st.integers(1, 9), min_size=3, max_size=20),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_by_record_the_time_is_the_place_in_the_lane(
    counts: list[int], lanes: int, shuffle: bool, joins: bool
) -> None:
    order = RecordOrder(chunks(counts), lanes, shuffle, 3, joins)
    for lane in range(lanes):
        for epoch in range(3):
            extents: list[Extent] = []
            for extent in order.extents(lane, order.first(lane, epoch)):
                if extent.epoch != epoch:
                    break
                extents.append(extent)
            # A chunk that two lanes share has the time at which the first of them reads it.
            times = [next(order.times(epoch, e.shard, e.begin, None)) for e in extents[1:]]
            assert times == sorted(times)
            assert all(epoch <= time < epoch + 1 for time in times)


@given(
    st.lists(st.integers(1, 9), min_size=3, max_size=20),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 1),
)
def test_where_lanes_turn_the_time_is_the_part_of_the_lane_before_it(
    counts: list[int], lanes: int, shuffle: bool, origin: int
) -> None:
    order = RecordOrder(chunks(counts), lanes, shuffle, 3, joins=False, origin=origin)
    for lane in range(lanes):
        for epoch in range(origin, origin + 3):
            done = 0
            for extent in order.extents(lane, order.first(lane, epoch)):
                if extent.epoch != epoch:
                    break
                if not extent.skip:  # otherwise its beginning is another lane's
                    time = next(order.times(epoch, extent.shard, extent.begin, None))
                    assert time == pytest.approx(epoch + done * lanes / order.records % 1)
                done += extent.records or 0


def request(order: ShardOrder, lane: int, number: int, start: int = 0) -> RangeRequest:
    return RangeRequest(order.extent(lane, number), start, start + 1)


def test_the_wait_is_told_in_seconds_at_the_pace_so_far() -> None:
    order, now = ShardOrder(4, 1), [10.0]
    forecast = NextUse(order, places_of(urls(4)), lambda: now[-1])
    assert forecast.wait("s3://bucket/0", 0, SIZE) is None
    forecast.reached(0, request(order, 0, 0), SIZE)
    now.append(12.0)
    forecast.reached(0, request(order, 0, 1), SIZE)  # a quarter of an epoch in 2 s
    assert forecast.wait("s3://bucket/1", SIZE // 2, SIZE) == pytest.approx(1.0)
    assert forecast.wait("s3://bucket/3", 0, SIZE) == pytest.approx(4.0)
    assert forecast.wait("s3://bucket/0", 0, SIZE) == pytest.approx(6.0)
    assert forecast.wait("s3://bucket/1", 0, SIZE) == pytest.approx(8.0)
    assert forecast.wait("s3://bucket/1", 0, None) == pytest.approx(1.0)
    assert forecast.wait("s3://other/1", 0, SIZE) is None
