from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.kernel.contract import Run
from streamrec.values.records import RecordRows
from tests.kernel.conftest import IMPLEMENTATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

Lanes: TypeAlias = "list[list[Run[RecordRows]]]"

KERNELS = st.sampled_from(IMPLEMENTATIONS)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def int64(*values: int) -> Any:
    return np.array(values, np.int64)


@st.composite
def runs(draw: st.DrawFn) -> Run[RecordRows]:
    """Draw some of some rows, whose columns hold anything: they are moved, not read."""
    n = draw(st.integers(0, 6))
    first, last = sorted(draw(st.tuples(*[st.integers(0, n)] * 2)))
    buffers = tuple(np.empty(k, np.uint8) for k in range(draw(st.integers(0, 3))))
    fill = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    narrow, wide = np.iinfo(np.int32), np.iinfo(np.int64)
    columns = [
        fill.integers(0, 3, n, np.int32),
        *(fill.integers(wide.min, wide.max, n, np.int64, endpoint=True) for _ in range(2)),
        fill.integers(narrow.min, narrow.max, n, np.int32, endpoint=True),
        fill.integers(wide.min, wide.max, n, np.int64, endpoint=True),
    ]
    return Run(RecordRows(buffers, *columns), first, last, draw(INT64))


@st.composite
def merges(draw: st.DrawFn) -> tuple[Lanes, Any]:
    """Lanes and keys of theirs: those that rise by one, with gaps, and in any order."""
    lanes = draw(st.lists(st.lists(runs(), max_size=3), max_size=7))
    begins = [draw(st.sampled_from([0, 0, 0, 1, 5, 2**40])) for _ in lanes]
    keys = [
        (begin + number) * len(lanes) + lane
        for lane, (given, begin) in enumerate(zip(lanes, begins, strict=True))
        for number in range(rows_of(given))
    ]
    return lanes, int64(
        *draw(st.permutations(keys) if draw(st.booleans()) else st.just(sorted(keys)))
    )


def rows_of(given: Sequence[Run[RecordRows]]) -> int:
    return sum(run.last - run.first for run in given)


def one_by_one(lanes: Lanes, keys: list[int]) -> list[tuple[int, ...]]:
    """Every row's columns and epoch, taken from its lane in turn."""
    buffers, waiting = 0, []
    for parts in lanes:
        rows: list[tuple[int, ...]] = []
        for part in parts:
            rows += ((index + buffers, *others, part.epoch) for index, *others in listed(part))
            buffers += len(part.rows.buffers)
        waiting.append(iter(rows))
    return [next(waiting[key % len(lanes)]) for key in keys]


def listed(run: Run[RecordRows]) -> list[tuple[int, ...]]:
    """Return the columns of each of the run's rows."""
    columns = [column[run.first : run.last].tolist() for column in columns_of(run.rows)]
    return list(zip(*columns, strict=True))


def columns_of(rows: RecordRows) -> list[Any]:
    return [rows.buffer_index, rows.offsets, rows.lengths, rows.shards, rows.ordinals]


@given(kernel=KERNELS, merge=merges())
def test_the_rows_come_in_the_order_of_their_keys(kernel: Any, merge: tuple[Lanes, Any]) -> None:
    lanes, keys = merge
    rows, epochs, ends = kernel.interleave(lanes, keys)
    columns = [*columns_of(rows), epochs]
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    assert found == one_by_one(lanes, keys.tolist())
    assert ends.tolist() == np.cumsum(rows.lengths).tolist()
    assert [column.dtype.itemsize for column in (*columns, ends)] == [4, 8, 8, 4, 8, 8, 8]
    together = [buffer for given in lanes for run in given for buffer in run.rows.buffers]
    assert len(rows.buffers) == len(together)
    assert all(one is other for one, other in zip(rows.buffers, together, strict=True))


@given(kernel=KERNELS, merge=merges())
def test_all_columns_have_memory_of_their_own(kernel: Any, merge: tuple[Lanes, Any]) -> None:
    rows, epochs, ends = kernel.interleave(*merge)
    given = [c for runs in merge[0] for run in runs for c in columns_of(run.rows)]
    for column in (*columns_of(rows), epochs, ends):
        assert not any(np.shares_memory(column, other) for other in (*given, merge[1]))


@pytest.mark.parametrize("rows", [1 << 15, 1 << 17])
def test_many_rows(kernel: Any, rows: int) -> None:
    """More than are merged in one go mostly, for which other threads may run meanwhile."""
    many = RecordRows.of([b"ab"] * rows)
    found = kernel.interleave(
        [[Run(many, 0, rows, 1)], [Run(many, 1, rows, 2)]], np.arange(2 * rows - 1)
    )
    assert found.rows.ordinals[::2].tolist() == list(range(rows))
    assert found.rows.ordinals[1::2].tolist() == list(range(1, rows))
    assert found.epochs.tolist() == [1, 2] * (rows - 1) + [1]
    assert found.rows.buffer_index.tolist() == [0, 1] * (rows - 1) + [0]
    assert found.ends[-1] == 2 * len(found.ends)


ROWS = RecordRows.of([b"a", b"bc", b"def"])


class TestRefused:
    """A call that contradicts itself; nothing is read or written outside of what is given."""

    @pytest.mark.parametrize(
        ("first", "last"), [(-1, 2), (2, 1), (0, 4), (4, 4), (-(2**62), 2**62)]
    )
    def test_runs_outside_of_their_rows(self, kernel: Any, first: int, last: int) -> None:
        with pytest.raises(ValueError, match="a run lies outside of its rows"):
            kernel.interleave([[Run(ROWS, first, last, 0)]], np.arange(max(0, last - first) % 9))

    @pytest.mark.parametrize("count", [0, 2, 4])
    def test_too_few_keys_or_too_many(self, kernel: Any, count: int) -> None:
        with pytest.raises(ValueError):
            kernel.interleave([[Run(ROWS, 0, 3, 0)]], np.arange(count))

    @pytest.mark.parametrize(
        "keys",
        [(0, 1, 2, 3), (0, 1, 3, 5), (0, 2, 4, 6), (1, 3, 5, 7), (0, 1, 2, -2), (2**62, 1, 3, 5)],
    )
    def test_keys_of_other_lanes(self, kernel: Any, keys: tuple[int, ...]) -> None:
        lanes = [[Run(ROWS, 0, 3, 0)], [Run(ROWS, 1, 2, 0)]]
        with pytest.raises(ValueError, match="the keys do not name each lane as often"):
            kernel.interleave(lanes, int64(*keys))

    def test_keys_without_lanes(self, kernel: Any) -> None:
        with pytest.raises(ValueError):
            kernel.interleave([], int64(0))

    def test_no_lanes_and_no_rows(self, kernel: Any) -> None:
        nothing: list[Lanes] = [[], [[]], [[Run(ROWS, 2, 2, 0)], []]]
        for lanes in nothing:
            found = kernel.interleave(lanes, int64())
            assert len(found.rows) == len(found.epochs) == len(found.ends) == 0
