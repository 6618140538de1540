from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.values.record_rows import EpochRows, RecordRows, interleave

if TYPE_CHECKING:
    from collections.abc import Sequence

Lanes: TypeAlias = "list[list[EpochRows]]"

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def int64(*values: int) -> Any:
    return np.array(values, np.int64)


@st.composite
def runs(draw: st.DrawFn) -> EpochRows:
    """Some of some rows, whose columns hold anything: they are moved, not looked at."""
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
    return EpochRows(RecordRows(buffers, *columns).part(first, last), draw(INT64))


@st.composite
def merges(draw: st.DrawFn) -> tuple[Lanes, Any]:
    """Lanes and keys of theirs, with gaps where a lane begins late or has ended."""
    lanes = draw(st.lists(st.lists(runs(), max_size=3), min_size=1, max_size=7))
    begins = [draw(st.sampled_from([0, 0, 0, 1, 5, 2**40])) for _ in lanes]
    keys = [
        (begin + number) * len(lanes) + lane
        for lane, (given, begin) in enumerate(zip(lanes, begins, strict=True))
        for number in range(rows_of(given))
    ]
    return lanes, int64(*sorted(keys))


def rows_of(given: Sequence[EpochRows]) -> int:
    return sum(len(run.rows) for run in given)


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


def listed(run: EpochRows) -> list[tuple[int, ...]]:
    """The columns of each of the run's rows."""
    columns = [column.tolist() for column in columns_of(run.rows)]
    return list(zip(*columns, strict=True))


def columns_of(rows: RecordRows) -> list[Any]:
    return [rows.buffer_index, rows.offsets, rows.lengths, rows.shards, rows.ordinals]


@given(merge=merges())
def test_the_rows_come_in_the_order_of_their_keys(merge: tuple[Lanes, Any]) -> None:
    lanes, keys = merge
    rows, epochs = interleave(lanes, keys)
    columns = [*columns_of(rows), epochs]
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    assert found == one_by_one(lanes, keys.tolist())
    assert [column.dtype.itemsize for column in columns] == [4, 8, 8, 4, 8, 8]
    together = [buffer for given in lanes for run in given for buffer in run.rows.buffers]
    assert len(rows.buffers) == len(together)
    assert all(one is other for one, other in zip(rows.buffers, together, strict=True))


@given(merge=merges())
def test_all_columns_have_memory_of_their_own(merge: tuple[Lanes, Any]) -> None:
    rows, epochs = interleave(*merge)
    given = [c for runs in merge[0] for run in runs for c in columns_of(run.rows)]
    for column in (*columns_of(rows), epochs):
        assert not any(np.shares_memory(column, other) for other in (*given, merge[1]))


def test_many_rows() -> None:
    rows = 1 << 17
    many = RecordRows.of([b"ab"] * rows)
    lanes = [[EpochRows(many, 1)], [EpochRows(many.part(1, rows), 2)]]
    found, epochs = interleave(lanes, np.arange(2 * rows - 1))
    assert found.ordinals[::2].tolist() == list(range(rows))
    assert found.ordinals[1::2].tolist() == list(range(1, rows))
    assert epochs.tolist() == [1, 2] * (rows - 1) + [1]
    assert found.buffer_index.tolist() == [0, 1] * (rows - 1) + [0]
