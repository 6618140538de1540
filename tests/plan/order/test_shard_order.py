from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.plan.order.permutation import permutation, seed_of
from streamrec.plan.order.shard_order import SHARDS, DealtShards, Extent, ShardOrder, open_at_once

EPOCHS = [
    [[2, 5, 10, 9], [0, 1, 4, 7], [8, 3, 6]],
    [[7, 8, 1, 6], [2, 3, 10], [4, 9, 0, 5]],
    [[3, 4, 0], [8, 9, 6, 5], [2, 7, 1, 10]],
    [[3, 0, 2, 10], [8, 4, 5, 7], [6, 9, 1]],
]
"""The shards of three lanes in each epoch: a group of three epochs, and the next one's first."""


def test_the_order_is_that_of_saved_states() -> None:
    dealt = DealtShards(11, 3, seed=5)
    found = [[dealt.of_lane(lane, epoch, 0).tolist() for lane in range(3)] for epoch in range(4)]
    assert found == EPOCHS


def test_the_place_of_a_shard() -> None:
    dealt = DealtShards(11, 3, seed=5)
    for epoch, lanes in enumerate(EPOCHS):
        for lane, shards in enumerate(lanes):
            for place, shard in enumerate(shards):
                assert dealt.place(shard, epoch, 0) == (lane, place)


PLAIN = st.builds(
    ShardOrder, st.integers(1, 40), st.integers(1, 20), st.booleans(), st.integers(0, 5)
)
ORDERS = st.one_of(PLAIN, st.tuples(PLAIN, st.integers(1, 5)).map(lambda o: o[0].divide(o[1])[-1]))


@pytest.mark.parametrize(
    ("shards", "lanes", "open_shards"),
    [
        (1, 1, 1),
        (48, 48, 1),
        (49, 48, 2),
        (97, 48, 3),
        (10**6, 48, 3),
        (10**6, 64, 2),
        (10**6, 72, 2),
        (10**6, 73, 1),
        (10**6, 1000, 1),
        (10**6, 1, 144),
        (10, 1, 10),
        (11, 8, 2),
        (7, 8, 1),
    ],
)
def test_as_many_shards_at_once_as_mix_well(shards: int, lanes: int, open_shards: int) -> None:
    assert open_at_once(shards, lanes, 256 << 20) == open_shards


@pytest.mark.parametrize(
    ("window", "open_shards"),
    [(0, 16), (8 << 20, 16), (9 << 20, 18), (32 << 20, 64), (72 << 20, 144), (1 << 40, 144)],
)
def test_a_small_window_has_fewer_shards_open(window: int, open_shards: int) -> None:
    assert open_at_once(10**6, 1, window) == open_shards


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 6), st.booleans(), st.integers(0, 9))
def test_open_shards_share_the_extents_of_a_lane(
    shards: int, lanes: int, count: int, shuffle: bool, epoch: int
) -> None:
    """Each its share in turn; and whatever their number, lanes have the same shards."""
    order = ShardOrder(shards, lanes, shuffle, 3)
    open_shards = order.divide(count)
    for lane in range(lanes):
        whole = extents_of_epoch(order, lane, epoch)
        parts = [extents_of_epoch(open_shard, lane, epoch) for open_shard in open_shards]
        for extent in whole:
            part = parts[extent.number % count]
            (own,) = [e for e in part if e.number == extent.number // count]
            assert own.shard == extent.shard
        assert sum(map(len, parts)) == len(whole)


@given(st.integers(1, 144), st.integers(1, 30), st.integers(0, 1 << 28))
def test_a_lane_of_several_open_shards_has_shards_in_every_epoch(
    lanes: int, more: int, window: int
) -> None:
    open_shards = ShardOrder(lanes + more, lanes).divide(open_at_once(lanes + more, lanes, window))
    for lane in range(lanes):
        assert len(open_shards) == 1 or any(extents_of_epoch(s, lane, 3) for s in open_shards)


def extents_of_epoch(order: ShardOrder, lane: int, epoch: int) -> list[Extent]:
    out, number = [], order.first(lane, epoch)
    while (extent := order.extent(lane, number)).epoch == epoch:
        out.append(extent)
        number += 1
    return out


@given(PLAIN, st.integers(0, 9))
def test_every_shard_once_an_epoch(order: ShardOrder, epoch: int) -> None:
    extents = [e for lane in range(order.lanes) for e in extents_of_epoch(order, lane, epoch)]
    assert sorted(extent.shard for extent in extents) == list(range(order.shards))


@given(ORDERS, st.integers(0, 19), st.integers(0, 30))
def test_extents_are_numbered_within_the_lane(order: ShardOrder, lane: int, number: int) -> None:
    lane %= order.lanes
    extent = order.extent(lane, number)
    assert extent.number == number
    assert order.first(lane, extent.epoch) <= number < order.first(lane, extent.epoch + 1)


@given(ORDERS, st.integers(1, 9))
def test_no_lane_runs_ahead(order: ShardOrder, epochs: int) -> None:
    """After any number of epochs two lanes differ by at most one extent."""
    counts = [order.first(lane, epochs) for lane in range(order.lanes)]
    assert max(counts) - min(counts) <= 1


@given(ORDERS, st.integers(0, 19))
@example(ShardOrder(2, 1, False, 0).divide(2)[-1], 0)
def test_reach_is_what_the_lane_meets(order: ShardOrder, lane: int) -> None:
    lane %= order.lanes
    whole = replace(order, open_shards=1, open_shard=0)
    met, by_one = (
        {one.extent(lane, number).shard for number in range(30 * order.shards)}
        for one in (whole, order)
    )
    assert {whole.extent(lane, number).shard for number in range(order.reach(lane))} == met
    assert by_one <= met, "one open shard of a lane that is not shuffled may never meet the others"


@given(PLAIN, st.integers(0, 30), st.integers(0, 3))
def test_in_as_many_epochs_as_lanes_every_lane_has_every_shard_once(
    order: ShardOrder, origin: int, groups: int
) -> None:
    order = order.since(origin)
    first = origin + groups * order.lanes
    for lane in range(order.lanes):
        numbers = range(order.first(lane, first), order.first(lane, first + order.lanes))
        shards = [order.extent(lane, number).shard for number in numbers]
        assert sorted(shards) == list(range(order.shards))


@given(PLAIN, st.integers(0, 30))
def test_the_epoch_of_the_origin_is_dealt_in_turn(order: ShardOrder, origin: int) -> None:
    order = order.since(origin)
    drawn = np.arange(order.shards)
    if order.shuffle:
        drawn = permutation(order.shards, seed_of(SHARDS, order.seed, origin))
    for lane in range(order.lanes):
        first = (lane - origin * order.shards) % order.lanes
        found = [extent.shard for extent in extents_of_epoch(order, lane, origin)]
        assert found == drawn[first :: order.lanes].tolist()


def test_shards_meet_other_shards_and_lanes_in_each_epoch() -> None:
    """Of two epochs, the lane and the place there tell nothing of each other."""
    order = ShardOrder(480, 48, shuffle=True)
    places = np.empty((8, 2, 480))
    for epoch in range(8):
        for lane in range(48):
            shards = [extent.shard for extent in extents_of_epoch(order, lane, epoch)]
            places[epoch, 0, shards] = lane
            places[epoch, 1, shards] = range(len(shards))
    for one, other in combinations(places, 2):
        assert abs(np.corrcoef(one[0], other[0])[0, 1]) < 0.2  # of independent ones: 0.05
        assert abs(np.corrcoef(one[1], other[1])[0, 1]) < 0.2
        together = one[0][:, None] == one[0]
        again = together & (other[0][:, None] == other[0])
        assert again.sum() - 480 < 2.5 * (together.sum() - 480) / 48


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_short_shard_is_read_as_often_as_others(shuffle: bool) -> None:
    """Lanes give records in turn: eight shards of 20 records and one of a single record."""
    sizes = [20] * 8 + [1]
    order = ShardOrder(9, 9, shuffle)
    counts = np.zeros(9, int)
    for lane in range(9):
        left = 100 * sum(sizes) // 9
        for extent in order.extents(lane, 0):
            counts[extent.shard] += left > 0
            left -= sizes[extent.shard]
            if left <= 0:
                break
    assert counts.max() - counts.min() <= 9
    assert counts.min() >= 95


def test_without_shuffle_the_order_is_that_of_the_names() -> None:
    order = ShardOrder(3, 2)
    assert [order.extent(0, n).shard for n in range(4)] == [0, 2, 1, 0]
    assert [order.extent(1, n).shard for n in range(4)] == [1, 0, 2, 1]


def test_lanes_turn_by_one_where_they_would_keep_their_shards() -> None:
    order = ShardOrder(4, 2)
    assert [order.extent(0, n).shard for n in range(6)] == [0, 2, 1, 3, 0, 2]
    assert [order.extent(1, n).shard for n in range(6)] == [1, 3, 0, 2, 1, 3]
    order = ShardOrder(6, 4)  # two lanes of each half turn, behind two epochs
    assert [order.extent(0, n).shard for n in range(8)] == [0, 4, 2, 1, 5, 3, 0, 4]


def test_epochs_differ_and_are_reproducible() -> None:
    def epoch(number: int) -> list[int]:
        return [
            e.shard for e in extents_of_epoch(ShardOrder(50, 1, shuffle=True, seed=3), 0, number)
        ]

    assert epoch(0) != epoch(1)
    assert epoch(1) == epoch(1)


def test_going_back_to_an_early_epoch() -> None:
    order = ShardOrder(5, 2, shuffle=True)
    before = order.extent(0, 0)
    for number in range(100):
        order.extent(1, number)
    assert order.extent(0, 0) == before


@given(PLAIN, st.integers(0, 3))
def test_lanes_have_the_same_shards_again_after_a_period(order: ShardOrder, times: int) -> None:
    order = replace(order, shuffle=False)
    epoch = times * order.period
    for lane in range(order.lanes):
        begin = order.first(lane, 0), order.first(lane, epoch)
        first = extents_of_epoch(order, lane, 0)
        later = extents_of_epoch(order.since(epoch), lane, epoch)
        assert [e.shard for e in later] == [e.shard for e in first]
        assert [e.number - begin[1] for e in later] == [e.number - begin[0] for e in first]
