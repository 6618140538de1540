from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.streams.audit_runs import (
    MOST_RECORDS,
    RecordList,
    from_varints,
    read_varint,
    varints,
)
from tests.support import examples

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=90)
FAR = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 40)), max_size=20)


def runs_of(pairs: list[tuple[int, int]]) -> RecordList:
    shards, records = np.array(pairs, np.int64).reshape(-1, 2).T
    return RecordList.of(shards.astype(np.int32), records)


@given(PAIRS | FAR)
@settings(max_examples=examples(300))
def test_runs_are_the_records(pairs: list[tuple[int, int]]) -> None:
    runs = runs_of(pairs)
    shards, records = runs.pairs()
    assert list(zip(shards.tolist(), records.tolist(), strict=True)) == sorted(pairs)
    size, at = read_varint(runs.encode(), 0)
    content = runs.encode()[at:]
    assert size == len(content)
    again = RecordList.decode(content)
    assert all((a == b).all() for a, b in zip(again, runs, strict=True))


def test_successive_records_are_one_run() -> None:
    runs = runs_of([(1, 7), (1, 5), (1, 6), (2, 8), (1, 9)])
    assert [column.tolist() for column in runs] == [[1, 1, 2], [5, 9, 8], [3, 1, 1]]
    assert len(runs.encode()) == 10


@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=50))
@settings(max_examples=examples(200))
def test_varints(numbers: list[int]) -> None:
    data = varints(np.array(numbers, np.int64))
    assert from_varints(data).tolist() == numbers
    at, read = 0, []
    while at < len(data):
        number, at = read_varint(data, at)
        read.append(number)
    assert read == numbers


@pytest.mark.parametrize("data", [b"\x80", b"\x01\x80", b"\xff" * 9 + b"\x01"])
def test_no_varint(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"incomplete|too long"):
        from_varints(data)
    with pytest.raises(ValueError, match="incomplete"):
        read_varint(data, 1 if data[0] == 1 else 0)


@given(st.binary(max_size=60))
@settings(max_examples=examples(500))
def test_any_bytes_are_bounded(data: bytes) -> None:
    with suppress(ValueError):
        runs = RecordList.decode(data)
        assert 0 <= runs.counts.sum() <= MOST_RECORDS
        assert min(map(int, runs.first), default=0) >= 0
        assert all((column >= 0).all() for column in runs.pairs())


def test_sums_that_would_wrap_around() -> None:
    huge = np.array([1, 1, 1, 1, (1 << 62), (1 << 62), (1 << 62), 0, 0], np.int64)
    with pytest.raises(ValueError, match="too large"):
        RecordList.decode(varints(huge))
