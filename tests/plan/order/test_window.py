from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.permutation import permutation
from streamrec.plan.order.window import FRAME_OVERHEAD, Buckets, Windows, records_until
from tests.plan.oracle import bucket_of, plainly_bucketed

BUCKETS = st.builds(
    Buckets, st.integers(2, 9), st.integers(1, 40), st.integers(1, 12), st.integers(0, 1 << 63)
)
FIRST = st.one_of(st.integers(0, 300), st.integers(0, 1 << 49))
LENGTHS = st.lists(st.integers(0, 12), max_size=60)


@given(BUCKETS, st.data(), FIRST, LENGTHS, st.integers(0, 99))
def test_a_window_leaves_as_the_plain_words_say(
    buckets: Buckets, data: st.DataObject, first: int, lengths: list[int], seed: int
) -> None:
    lane = data.draw(st.integers(0, buckets.lanes - 1))
    drawn = permutation(len(lengths), seed)
    order = buckets.order(lane, first, np.array(lengths, np.int64), drawn).tolist()
    assert order == plainly_bucketed(buckets, lane, first, lengths, drawn.tolist())
    assert sorted(order) == list(range(len(lengths)))


@given(BUCKETS, st.data(), FIRST, LENGTHS)
def test_what_a_lower_bucket_gets_is_no_longer_than_what_a_higher_one_gets(
    buckets: Buckets, data: st.DataObject, first: int, lengths: list[int]
) -> None:
    lane = data.draw(st.integers(0, buckets.lanes - 1))
    array, count = np.array(lengths, np.int64), len(lengths)
    wanted = buckets.slot_buckets(lane, first, count).astype(np.int64)
    order = buckets.order(lane, first, array, np.arange(count))
    by_bucket = array[order][np.lexsort((array[order], wanted))]
    assert by_bucket.tolist() == sorted(lengths)


@given(BUCKETS, st.integers(0, 1 << 40))
def test_each_cycle_of_batches_has_every_bucket_once(buckets: Buckets, cycle: int) -> None:
    batches = range(cycle * buckets.count, (cycle + 1) * buckets.count)
    assert sorted(bucket_of(buckets, batch) for batch in batches) == list(range(buckets.count))


@given(BUCKETS, st.data(), FIRST, st.integers(0, 60), st.integers(0, 60))
def test_a_place_has_its_bucket_wherever_one_begins_to_ask(
    buckets: Buckets, data: st.DataObject, first: int, skip: int, count: int
) -> None:
    lane = data.draw(st.integers(0, buckets.lanes - 1))
    whole = buckets.slot_buckets(lane, first, skip + count).tolist()
    assert buckets.slot_buckets(lane, first + skip, count).tolist() == whole[skip:]


@given(BUCKETS.filter(lambda buckets: buckets.rows % 4 == 0), st.sampled_from([1, 2, 4]))
def test_all_rows_of_a_batch_are_of_one_bucket_on_every_number_of_ranks(
    buckets: Buckets, world_size: int
) -> None:
    lanes = 4 * buckets.lanes
    buckets = Buckets(buckets.count, buckets.rows, lanes, buckets.seed)
    for rank in range(world_size):
        own = range(rank, lanes, world_size)
        wanted = np.stack([buckets.slot_buckets(lane, 0, 30) for lane in own], axis=1).ravel()
        rows = buckets.rows // world_size
        for step, first in enumerate(range(0, len(wanted) - rows, rows)):
            assert set(wanted[first : first + rows].tolist()) == {bucket_of(buckets, step)}


def test_the_order_of_the_buckets_is_that_of_the_seed() -> None:
    orders = {
        tuple(Buckets(8, 4, 4, seed).slot_buckets(0, 0, 64).tolist()): Counter(
            Buckets(8, 4, 4, seed).slot_buckets(0, 0, 64).tolist()
        )
        for seed in range(5)
    }
    assert len(orders) == 5
    assert all(set(count.values()) == {8} for count in orders.values())
    assert Buckets(4, 2, 2, 0).slot_buckets(1, 0, 12).tolist() == [
        3,
        1,
        2,
        0,
        3,
        0,
        1,
        2,
        3,
        2,
        0,
        1,
    ]


def lengths_in_batches(
    lengths: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    windows: Windows,
    buckets: Buckets | None,
) -> list[list[int]]:
    """Return the lengths in each batch of 96, of lanes whose records have these lengths."""
    leaving = np.empty_like(lengths)
    for lane, own in enumerate(lengths):
        first = number = 0
        while first < len(own):
            count, _ = windows.takes(own[first:], windows.size(lane, number))
            order = windows.permutation(lane, 0, number, np.zeros(count, np.int32))
            window = own[first : first + count]
            if buckets is not None:
                order = buckets.order(lane, first, window, order)
            leaving[lane, first : first + count] = window[order]
            first, number = first + count, number + 1
    rows: list[int] = leaving.T.ravel().tolist()
    return [rows[at : at + 96] for at in range(0, len(rows) - 95, 96)]


def padding(batches: list[list[int]]) -> float:
    """Return the part of dense batches that would be padding."""
    return 1 - sum(map(sum, batches)) / sum(len(batch) * max(batch) for batch in batches)


@pytest.mark.parametrize(("count", "most"), [(4, 0.6), (8, 0.47), (16, 0.36), (32, 0.3)])
def test_buckets_save_padding_though_windows_of_lanes_close_at_different_records(
    count: int, most: float
) -> None:
    drawn = np.random.default_rng(1).lognormal(6, 0.7, (48, 3000)).astype(np.int64)
    windows = Windows(8 << 20, 48, 3)  # of some 300 records in each lane: 150 batches
    every = lengths_in_batches(drawn, windows, None)
    sorted_in = lengths_in_batches(drawn, windows, Buckets(count, 96, 48, 3))
    assert sorted(chain(*sorted_in)) == sorted(chain(*every)) == sorted(drawn.ravel().tolist())
    assert padding(every) > 0.75
    assert padding(sorted_in) < most


@given(st.lists(st.integers(0, 1000), max_size=50), st.integers(0, 5000))
def test_a_window_closes_with_the_record_that_reaches_its_size(
    lengths: list[int], missing: int
) -> None:
    array = np.array(lengths, np.int64)
    count = records_until(array, missing)
    frames = [length + FRAME_OVERHEAD for length in lengths]
    assert count == len(lengths) or sum(frames[:count]) >= missing
    assert count <= 1 or sum(frames[: count - 1]) < missing
    assert count >= min(1, len(lengths))


def test_windows_start_small_and_grow_to_the_lanes_share() -> None:
    windows = Windows(total=4800, lanes=48, seed=0)
    assert [windows.size(0, number) for number in range(6)] == [6, 12, 25, 50, 100, 100]


def test_windows_that_grow_otherwise_are_staggered_behind_that() -> None:
    windows = Windows(total=4800, lanes=48, seed=0)
    assert [windows.size(24, number, (2,)) for number in range(4)] == [50, 75, 100, 100]


def test_the_fourth_window_is_staggered_by_lane() -> None:
    windows = Windows(total=64000, lanes=64, seed=0)
    sizes = [windows.size(lane, 3) for lane in range(64)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 500
    assert 980 < sizes[-1] < 1000


def test_windows_of_no_bytes_take_one_record() -> None:
    windows = Windows(total=0, lanes=3, seed=0)
    assert records_until(np.array([5, 5], np.int64), windows.size(0, 9)) == 1


def test_each_window_has_a_permutation_of_its_own() -> None:
    windows = Windows(total=100, lanes=2, seed=1)
    where = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    shards = np.zeros(30, np.int32)
    permutations = [tuple(windows.permutation(*place, shards).tolist()) for place in where]
    assert len(set(permutations)) == len(where)
    assert all(sorted(p) == list(range(30)) for p in permutations)
