from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.values.columns import BytesColumn
from streamrec.values.record_rows import (
    EpochRows,
    RecordBlock,
    RecordRows,
    are_columns,
    columns_of,
    interleave,
    rows_of,
)

pytestmark = pytest.mark.both_kernels


def rows(*numbers: int) -> RecordRows:
    array = np.array(numbers, np.int64)
    columns: dict[str, Any] = {"a": array[:, None] * [1, 10], "b": array.astype(np.float32)}
    return rows_of(columns, array.astype(np.int32), array + 100)


def numbers(of: RecordRows) -> list[int]:
    assert columns_of(of)["a"].tolist() == [[n, 10 * n] for n in of.shards.tolist()]
    assert columns_of(of)["b"].tolist() == of.shards.tolist()
    assert of.ordinals.tolist() == [n + 100 for n in of.shards.tolist()]
    return [int(n) for n in of.shards]


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=4))
def test_parts_joined_are_the_whole(parts: list[list[int]]) -> None:
    whole = RecordRows.concatenate([rows(*part) for part in parts])
    assert are_columns(whole) or not len(whole)
    assert numbers(whole) == [n for part in parts for n in part]
    assert len(whole) == sum(map(len, parts))


def test_rows_are_picked_and_ordered() -> None:
    four = rows(3, 1, 4, 1)
    assert numbers(four.part(1, 3)) == [1, 4]
    assert numbers(four.part(2, None)) == [4, 1]
    assert numbers(four.take(np.array([2, 2, 0]))) == [4, 4, 3]


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=4))
def test_rows_of_lanes_come_in_the_order_of_their_keys(lanes: list[list[int]]) -> None:
    keys = sorted(
        number * len(lanes) + lane
        for lane, given in enumerate(lanes)
        for number in range(len(given))
    )
    runs = [[EpochRows(rows(*given), 7)] for given in lanes]
    found, epochs = interleave(runs, np.array(keys, np.int64))
    waiting = [iter(given) for given in lanes]
    assert are_columns(found) or not len(found)
    assert (
        numbers(found) == [next(waiting[key % len(lanes)]) for key in keys]
        if keys
        else not len(found)
    )
    assert epochs.tolist() == [7] * len(keys)


def test_runs_of_rows_are_parts_of_them() -> None:
    four = rows(3, 1, 4, 1)
    runs = [
        [EpochRows(four.part(1, 2), 5), EpochRows(rows(9, 2, 6).part(2, 3), 6)],
        [],
        [EpochRows(four.part(2, 3), 5)],
    ]
    found, epochs = interleave(runs, np.array([0, 2, 3]))
    assert are_columns(found)
    assert (numbers(found), epochs.tolist()) == ([1, 4, 6], [5, 5, 6])


def test_pruned_rows_hold_no_memory_of_others() -> None:
    four = rows(3, 1, 4, 1)
    both = RecordRows.concatenate([four, rows(5, 6)])
    part = both.part(4, 5)
    assert len(part.buffers) == 2
    assert len(part.prune().buffers) == len(both.take(np.array([1])).buffers) == 1
    assert are_columns(part)
    assert numbers(part.prune()) == numbers(part) == [5]
    assert (both.nbytes, part.nbytes, four.part(0, 0).prune().nbytes) == (120, 20, 0)


def test_columns_are_in_memory_of_their_own() -> None:
    four = rows(3, 1, 4, 1)
    columns: Any = four.buffers[0]
    assert not np.shares_memory(columns_of(four)["a"], columns["a"])


def test_of_nothing_there_are_no_records() -> None:
    assert not are_columns(RecordRows.concatenate([]))


STRINGS = st.lists(st.binary(max_size=6), max_size=8)


def int64(*values: int) -> Any:
    return np.array(values, np.int64)


class TestRecordRows:
    @given(records=STRINGS)
    def test_of_records(self, records: list[bytes]) -> None:
        rows = RecordRows.of(records)
        assert len(rows) == len(records)
        assert rows.nbytes == sum(map(len, records))
        assert [bytes(payload) for payload in rows.payloads()] == records
        assert rows.ordinals.tolist() == list(range(len(records)))
        assert rows.shards.tolist() == [0] * len(records)

    def test_of_several_buffers(self) -> None:
        buffers = tuple(np.frombuffer(data, np.uint8) for data in (b"abcd", b"XYZ"))
        index = np.array([1, 0, 1], np.int32)
        rows = RecordRows(buffers, index, int64(0, 1, 2), int64(2, 3, 1), index, int64(5, 6, 7))
        assert [bytes(payload) for payload in rows.payloads()] == [b"XY", b"bcd", b"Z"]

    def test_payloads_are_not_copied(self) -> None:
        column = BytesColumn.of([b"abc"])
        (payload,) = RecordRows.from_column(column).payloads()
        column.values[0] = ord("x")
        assert bytes(payload) == b"xbc"


class TestRowsOfBlocks:
    block = RecordBlock(np.frombuffer(b".ab.cde", np.uint8), int64(1, 4), int64(2, 3), 7, 100, 0)

    def test_all_records(self) -> None:
        rows = RecordRows.from_block(self.block)
        assert [bytes(payload) for payload in rows.payloads()] == [b"ab", b"cde"]
        assert rows.shards.tolist() == [7, 7]
        assert rows.ordinals.tolist() == [100, 101]

    def test_some_records(self) -> None:
        rows = RecordRows.from_block(self.block, 1, 2)
        assert [bytes(payload) for payload in rows.payloads()] == [b"cde"]
        assert rows.ordinals.tolist() == [101]
        assert len(RecordRows.from_block(self.block, 2)) == 0

    def test_a_lost_record_keeps_its_number_alone(self) -> None:
        rows = RecordRows.from_block(self.block)
        lost = rows.lose(int64(1))
        assert [bytes(payload) for payload in lost.payloads()] == [b"ab", b""]
        assert lost.ordinals.tolist() == [100, ~101]
        assert rows.ordinals.tolist() == [100, 101]


class TestRowsTogether:
    def test_of_no_parts_there_are_no_rows(self) -> None:
        rows = RecordRows.concatenate([])
        columns = rows.buffer_index, rows.offsets, rows.lengths, rows.shards, rows.ordinals
        assert [len(column) for column in columns] == [0] * 5

    @given(parts=st.lists(STRINGS, max_size=4), seed=st.integers(0, 2**32 - 1))
    def test_concatenate_and_take(self, parts: list[list[bytes]], seed: int) -> None:
        records = [record for part in parts for record in part]
        rows = RecordRows.concatenate([RecordRows.of(part) for part in parts])
        assert [bytes(payload) for payload in rows.payloads()] == records
        random = np.random.default_rng(seed)
        order = random.permutation(len(records))[: random.integers(len(records) + 1)]
        taken = rows.take(order)
        assert [bytes(payload) for payload in taken.payloads()] == [records[i] for i in order]
        assert taken.ordinals.tolist() == rows.ordinals[order].tolist()
        assert taken.buffer_index.dtype == np.int32

    def test_what_is_not_taken_is_let_go(self) -> None:
        rows = RecordRows.concatenate([RecordRows.of([b"a"]), RecordRows.of([b"b"])])
        taken = rows.take(np.arange(1, 2))
        assert len(taken.buffers) == 1
        assert [bytes(payload) for payload in taken.payloads()] == [b"b"]

    def test_one_part_is_itself(self) -> None:
        rows = RecordRows.of([b"a"])
        assert RecordRows.concatenate([rows]) is rows


def test_a_block_has_the_length_of_its_records() -> None:
    block = RecordBlock(np.zeros(40, np.uint8), int64(12, 30), int64(2, 4), 0, 0, 0)
    assert len(block) == 2
