from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order import Extent, ShardOrder, default_lanes

ORDERS = st.builds(
    ShardOrder, st.integers(1, 40), st.integers(1, 20), st.booleans(), st.integers(0, 5)
)


@pytest.mark.parametrize(
    ("most", "in_order", "shuffled"),
    [(1, 1, 1), (47, 47, 47), (48, 48, 48), (95, 48, 48), (96, 48, 96), (10**6, 48, 96)],
)
def test_as_many_lanes_as_shuffle_well(most: int, in_order: int, shuffled: int) -> None:
    """Between the two, too: a number of shards is divisible by few numbers of ranks."""
    assert default_lanes(most, shuffles_shards=False) == in_order
    assert default_lanes(most, shuffles_shards=True) == shuffled


def extents_of_epoch(order: ShardOrder, lane: int, epoch: int) -> list[Extent]:
    out, number = [], order.first(lane, epoch)
    while (extent := order.extent(lane, number)).epoch == epoch:
        out.append(extent)
        number += 1
    return out


@given(ORDERS, st.integers(0, 9))
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
def test_reach_is_what_the_lane_meets(order: ShardOrder, lane: int) -> None:
    lane %= order.lanes
    met = {order.extent(lane, number).shard for number in range(30 * order.shards)}
    assert len(met) == order.reach(lane)


def test_without_shuffle_the_order_is_that_of_the_names() -> None:
    order = ShardOrder(3, 2)
    assert [order.extent(0, n).shard for n in range(4)] == [0, 2, 1, 0]
    assert [order.extent(1, n).shard for n in range(4)] == [1, 0, 2, 1]


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
