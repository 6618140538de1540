"""The shards that a shuffle by shard deals to the lanes; test_order.py has their properties."""

from __future__ import annotations

from streamrec.plan.order.dealt_shards import DealtShards

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
