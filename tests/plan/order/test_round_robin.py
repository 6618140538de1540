from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.round_robin import (
    Merge,
    first_come,
    first_come_before,
    merge,
    merge_before,
)
from streamrec.plan.order.shard_order import ShardOrder
from streamrec.plan.order.window import Windows
from tests.plan.oracle import Oracle

LANES = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def merged_all(lengths: list[int], landings: st.DataObject) -> list[tuple[int, int]]:
    """Merge whole lanes whose records land in drawn portions: (lane, number) as delivered."""
    lanes = len(lengths)
    landed, taken = [0] * lanes, [0] * lanes
    out: list[tuple[int, int]] = []
    while True:
        most = landings.draw(st.integers(1, 20))
        available = [a - b for a, b in zip(landed, taken, strict=True)]
        ended = [a == b for a, b in zip(landed, lengths, strict=True)]
        plan = merge(taken, available, ended, most)
        assert len(plan.keys) == sum(plan.counts) <= most
        after = [a + b for a, b in zip(taken, plan.counts, strict=True)]
        given = list(taken)
        for i, (number, lane) in enumerate(divided(plan, lanes)):
            assert merge_before(plan.keys[i:], after) == given
            assert number == given[lane]
            given[lane] += 1
            out.append((lane, number))
        assert given == after
        taken = after
        if plan.blocking < 0 and not len(plan.keys):
            return out
        if not len(plan.keys):
            missing = lengths[plan.blocking] - landed[plan.blocking]
            assert missing > 0, "blocked by a lane that has all it will ever have"
            landed[plan.blocking] += landings.draw(st.integers(1, missing))


def divided(plan: Merge, lanes: int) -> list[tuple[int, int]]:
    """Return the number and the lane of each key."""
    return [divmod(key, lanes) for key in plan.keys.tolist()]


@given(LANES, st.data())
def test_the_order_is_that_of_the_keys_whatever_the_timing(
    lengths: list[int], data: st.DataObject
) -> None:
    keys = [(number, lane) for lane, length in enumerate(lengths) for number in range(length)]
    assert merged_all(lengths, data) == [(lane, number) for number, lane in sorted(keys)]


def test_lanes_that_were_taken_unevenly_catch_up() -> None:
    plan = merge([3, 1], [2, 4], [True, True], 10)
    assert [lane for _, lane in divided(plan, 2)] == [1, 1, 0, 1, 0, 1]


def test_all_lanes_ended_and_empty() -> None:
    plan = merge([3, 1], [0, 0], [True, True], 10)
    assert plan.blocking == -1
    assert not len(plan.keys)


def test_a_missing_lane_holds_back_later_keys_only() -> None:
    plan = merge([0, 0, 0], [5, 0, 5], [False, False, False], 100)
    assert plan.counts == [1, 0, 0]
    assert plan.blocking == 1


LANE = st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans())


@given(st.lists(LANE, min_size=1, max_size=8), st.integers(1, 60), st.integers(0, 2**40))
def test_a_merge_is_what_comes_before_the_first_missing_key(
    lanes: list[tuple[int, int, bool]], most: int, before: int
) -> None:
    """The lanes stand anywhere, as a hostile position may say."""
    taken, available, ended = map(list, zip(*lanes, strict=True))
    plan = merge([before + n for n in taken], available, ended, most)
    keys = [
        (before + taken[lane] + number, lane)
        for lane in range(len(lanes))
        for number in range(available[lane])
    ]
    missing = [
        (before + taken[lane] + available[lane], lane)
        for lane in range(len(lanes))
        if not ended[lane]
    ]
    expected = sorted(key for key in keys if not missing or key < min(missing))
    found = divided(plan, len(lanes))
    assert found == expected[: len(found)]
    assert len(found) <= most
    assert found or not expected
    assert plan.counts == np.bincount([lane for _, lane in found], minlength=len(lanes)).tolist()
    if not found and missing:
        assert plan.blocking == min(missing)[1]


SHARDS = st.lists(st.lists(st.integers(0, 40), max_size=8).map(tuple), min_size=1, max_size=12).map(
    tuple
)


@given(SHARDS, st.sampled_from([1, 2, 4, 6, 12]), st.booleans(), st.integers(1, 5), st.data())
def test_global_batches_are_the_same_for_every_world_size(
    shards: tuple[tuple[int, ...], ...], lanes: int, shuffle: bool, unit: int, data: st.DataObject
) -> None:
    """By shard the claim holds until the first lane ends, for a constant global batch."""
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
        taken = np.resize(np.array(ahead, np.int64), len(have)).tolist()
        plan = first_come(taken, have, [False] * len(have), most)
        assert sum(plan.counts) == len(plan.keys) <= most
        assert len(plan.keys) > 0 or not any(have)
        keys = [(number, lane) for lane, n in enumerate(have) for number in range(n)]
        lanes = [lane for _, lane in sorted(keys)[: len(plan.keys)]]
        assert (plan.keys % len(have)).tolist() == lanes
        merged = [a + b for a, b in zip(taken, plan.counts, strict=True)]
        for i in range(len(lanes) + 1):
            before = taken + np.bincount(lanes[:i], minlength=len(have))
            assert first_come_before(plan.keys[i:], merged) == before.tolist()

    def test_waits_for_the_lane_that_is_furthest_behind(self) -> None:
        plan = first_come([5, 3, 1, 2, 2], [0] * 5, [False, False, True, False, False], 10)
        assert plan.blocking == 3
        assert not len(plan.keys)

    def test_all_lanes_ended(self) -> None:
        assert first_come([0, 0], [0, 0], [True, True], 9).blocking == -1
