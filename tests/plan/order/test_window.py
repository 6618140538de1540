from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.window import FRAME_OVERHEAD, Windows, records_until


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
