from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order import ShardOrder
from streamrec.plan.round_robin import first_come, first_come_before, merge, taken_before
from streamrec.plan.window import Windows
from tests.plan.oracle import Oracle

LANES = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def merged_all(lengths: list[int], landings: st.DataObject) -> list[tuple[int, int]]:
    """Merge whole lanes whose records land in drawn portions: (lane, number) as delivered."""
    total = np.array(lengths, np.int64)
    landed, taken = np.zeros_like(total), np.zeros_like(total)
    out: list[tuple[int, int]] = []
    while True:
        most = landings.draw(st.integers(1, 20))
        plan = merge(taken, landed - taken, landed == total, most)
        assert len(plan.order) == plan.counts.sum() <= most
        owners = np.repeat(np.arange(len(lengths)), plan.counts)
        starts = np.cumsum(plan.counts) - plan.counts
        numbers = np.arange(len(owners)) - starts[owners] + taken[owners]
        keys = numbers * len(lengths) + owners
        assert plan.keys.tolist() == keys[plan.order].tolist()
        for i in range(len(plan.keys)):
            given = taken + np.bincount(owners[plan.order][:i], minlength=len(lengths))
            assert taken_before(plan.keys[i:], (taken + plan.counts).tolist()) == given.tolist()
        out += zip(owners[plan.order].tolist(), numbers[plan.order].tolist(), strict=True)
        taken += plan.counts
        if plan.blocking < 0 and not len(plan.order):
            return out
        if not len(plan.order):
            missing = int(total[plan.blocking] - landed[plan.blocking])
            assert missing > 0, "blocked by a lane that has all it will ever have"
            landed[plan.blocking] += landings.draw(st.integers(1, missing))


@given(LANES, st.data())
def test_the_order_is_that_of_the_keys_whatever_the_timing(
    lengths: list[int], data: st.DataObject
) -> None:
    keys = [(number, lane) for lane, length in enumerate(lengths) for number in range(length)]
    assert merged_all(lengths, data) == [(lane, number) for number, lane in sorted(keys)]


def test_lanes_that_were_taken_unevenly_catch_up() -> None:
    plan = merge(np.array([3, 1]), np.array([2, 4]), np.array([True, True]), 10)
    owners = np.repeat([0, 1], plan.counts)[plan.order]
    assert owners.tolist() == [1, 1, 0, 1, 0, 1]


def test_all_lanes_ended_and_empty() -> None:
    plan = merge(np.array([3, 1]), np.array([0, 0]), np.array([True, True]), 10)
    assert plan.blocking == -1
    assert not len(plan.order)


def test_a_missing_lane_holds_back_later_keys_only() -> None:
    plan = merge(np.array([0, 0, 0]), np.array([5, 0, 5]), np.array([False, False, False]), 100)
    assert plan.counts.tolist() == [1, 0, 0]
    assert plan.blocking == 1


SHARDS = st.lists(st.lists(st.integers(0, 40), max_size=8).map(tuple), min_size=1, max_size=12).map(
    tuple
)


@given(SHARDS, st.sampled_from([1, 2, 4, 6, 12]), st.booleans(), st.integers(1, 5), st.data())
def test_global_batches_are_the_same_for_every_world_size(
    shards: tuple[tuple[int, ...], ...], lanes: int, shuffle: bool, unit: int, data: st.DataObject
) -> None:
    """By shard: until the first lane ends, for a constant global batch."""
    windows = Windows(data.draw(st.integers(0, 600)), lanes, 1) if shuffle else None
    oracle = Oracle(shards, ShardOrder(len(shards), lanes, shuffle, 1), windows)
    epochs = range(3)
    global_batch = unit * lanes
    rounds = min(len(oracle.lane(lane, epochs)) for lane in range(lanes))
    steps = rounds * lanes // global_batch

    def batches(world_size: int) -> list[list[tuple[int, int, int]]]:
        size = global_batch // world_size
        ranks = [oracle.rank(rank, world_size, epochs) for rank in range(world_size)]
        return [
            sorted(record for rank in ranks for record in rank[step * size : (step + 1) * size])
            for step in range(steps)
        ]

    divisors = [n for n in range(1, lanes + 1) if lanes % n == 0]
    assert all(batches(world_size) == batches(1) for world_size in divisors)


@given(SHARDS, st.integers(1, 12), st.booleans())
def test_every_record_once_an_epoch(
    shards: tuple[tuple[int, ...], ...], lanes: int, shuffle: bool
) -> None:
    windows = Windows(300, lanes, 1) if shuffle else None
    oracle = Oracle(shards, ShardOrder(len(shards), lanes, shuffle, 1), windows)
    expected = [
        (epoch, shard, i)
        for epoch in range(2)
        for shard, lengths in enumerate(shards)
        for i in range(len(lengths))
    ]
    assert sorted(oracle.rank(0, 1, range(2))) == expected


class TestFirstCome:
    @given(LANES, LANES, st.integers(1, 40))
    def test_gives_what_is_there_in_turns(
        self, have: list[int], ahead: list[int], most: int
    ) -> None:
        taken = np.resize(np.array(ahead, np.int64), len(have))
        available = np.array(have, np.int64)
        plan = first_come(taken, available, np.zeros(len(have), np.bool_), most)
        assert plan.counts.sum() == len(plan.order) <= most
        assert len(plan.order) > 0 or not available.any()
        keys = [(number, lane) for lane, n in enumerate(have) for number in range(n)]
        lanes = [lane for _, lane in sorted(keys)[: len(plan.order)]]
        assert (plan.keys % len(have)).tolist() == lanes
        merged = (taken + plan.counts).tolist()
        for i in range(len(lanes) + 1):
            before = taken + np.bincount(lanes[:i], minlength=len(have))
            assert first_come_before(plan.keys[i:], merged) == before.tolist()

    def test_waits_for_the_lane_that_is_furthest_behind(self) -> None:
        taken, none = np.array([5, 3, 1, 2]), np.zeros(4, np.int64)
        plan = first_come(taken, none, np.array([False, False, True, False]), 10)
        assert plan.blocking == 3
        assert not len(plan.order)

    def test_all_lanes_ended(self) -> None:
        assert (
            first_come(np.array([0, 0]), np.array([0, 0]), np.array([True, True]), 9).blocking == -1
        )
