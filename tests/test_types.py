from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.types import (
    Batch,
    BytesColumn,
    Origin,
    Ragged,
    RecordBlock,
    RecordRows,
    Sparse,
    offsets_of,
)

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


class TestRowsTogether:
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
        taken = rows.take(slice(1, 2))
        assert len(taken.buffers) == 1
        assert [bytes(payload) for payload in taken.payloads()] == [b"b"]

    def test_one_part_is_itself(self) -> None:
        rows = RecordRows.of([b"a"])
        assert RecordRows.concatenate([rows]) is rows


def test_a_block_has_the_length_of_its_records() -> None:
    block = RecordBlock(np.zeros(40, np.uint8), int64(12, 30), int64(2, 4), 0, 0, 0)
    assert len(block) == 2


@given(lengths=st.lists(st.integers(0, 9)))
def test_offsets_are_running_sums(lengths: list[int]) -> None:
    offsets = offsets_of(int64(*lengths))
    assert np.diff(offsets).tolist() == lengths
    assert offsets[0] == 0


class TestBytesColumn:
    @given(strings=STRINGS)
    def test_is_a_sequence_of_bytes(self, strings: list[bytes]) -> None:
        column = BytesColumn.of(strings)
        assert len(column) == len(strings)
        assert column.to_list() == list(column) == strings
        assert [column[i] for i in range(-len(strings), 0)] == strings
        assert column.values.flags.writeable

    @pytest.mark.parametrize("row", [2, -3])
    def test_rows_beyond_are_refused(self, row: int) -> None:
        with pytest.raises(IndexError, match=f"row {row} of 2"):
            BytesColumn.of([b"a", b"b"])[row]

    def test_rows_of_several_strings(self) -> None:
        column = BytesColumn.of([b"a", b"b", b"c", b"d"], (2,))
        assert len(column) == 2
        assert column.to_list() == [[b"a", b"b"], [b"c", b"d"]]
        assert column[-1] == [b"c", b"d"]

    def test_rows_of_several_dimensions(self) -> None:
        column = BytesColumn.of([b"a", b"b", b"c", b"d"], (2, 2))
        assert column.to_list() == [[[b"a", b"b"], [b"c", b"d"]]]

    def test_takes_every_buffer(self) -> None:
        assert BytesColumn.of([bytearray(b"a"), memoryview(b"xb")[1:]]).to_list() == [b"a", b"b"]


ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=6)


def ragged(rows: list[list[int]]) -> Ragged:
    splits = offsets_of(int64(*map(len, rows)))
    return Ragged(int64(*(value for row in rows for value in row)), splits)


def ragged_strings(rows: list[list[int]]) -> Ragged:
    strings = [b"%d" % value for row in rows for value in row]
    return Ragged(BytesColumn.of(strings), offsets_of(int64(*map(len, rows))))


class TestRagged:
    @given(rows=ROWS)
    def test_is_a_sequence_of_rows(self, rows: list[list[int]]) -> None:
        column = ragged(rows)
        assert len(column) == len(rows)
        assert column.to_list() == rows
        assert [column[i].tolist() for i in range(-len(rows), 0)] == rows

    @given(rows=ROWS)
    def test_strings_are_lists(self, rows: list[list[int]]) -> None:
        wanted = [[b"%d" % value for value in row] for row in rows]
        assert ragged_strings(rows).to_list() == list(ragged_strings(rows)) == wanted

    @pytest.mark.parametrize("row", [1, -2])
    def test_rows_beyond_are_refused(self, row: int) -> None:
        with pytest.raises(IndexError, match=f"row {row} of 1"):
            ragged([[1]])[row]

    @given(rows=ROWS, default=st.none() | st.integers(-99, 99), width=st.none() | st.integers(0, 7))
    def test_to_dense(self, rows: list[list[int]], default: Any, width: int | None) -> None:
        dense = ragged(rows).to_dense(default, width)
        columns = max(map(len, rows), default=0) if width is None else width
        filled = [(row + [default or 0] * columns)[:columns] for row in rows]
        assert dense.dtype == np.int64
        assert dense.shape == (len(rows), columns)
        assert dense.tolist() == filled

    @given(rows=ROWS, width=st.none() | st.integers(0, 7))
    def test_strings_to_dense(self, rows: list[list[int]], width: int | None) -> None:
        dense = ragged_strings(rows).to_dense(width=width)
        columns = max(map(len, rows), default=0) if width is None else width
        assert dense.dtype == object
        assert dense.shape == (len(rows), columns)
        assert dense.tolist() == [
            ([b"%d" % value for value in row] + [b""] * columns)[:columns] for row in rows
        ]

    def test_dtypes_are_kept(self) -> None:
        column = Ragged(np.array([0.5], np.float32), int64(0, 1, 1))
        dense = column.to_dense(float("nan"))
        assert dense.dtype == np.float32
        assert dense[0, 0] == 0.5
        assert np.isnan(dense[1, 0])

    def test_strings_have_a_default_too(self) -> None:
        dense = ragged_strings([[1], []]).to_dense(b"-", 2)
        assert dense.tolist() == [[b"1", b"-"], [b"-", b"-"]]


class TestSparse:
    def test_numbers(self) -> None:
        column = Sparse(np.array([[0, 1], [2, 0]]), np.array([5, 6], np.float32), (3, 2))
        assert len(column) == 3
        assert column.to_dense().tolist() == [[0, 5], [0, 0], [6, 0]]
        assert column.to_dense(-1).dtype == np.float32

    def test_strings(self) -> None:
        column = Sparse(np.array([[0, 1]]), BytesColumn.of([b"x"]), (1, 2))
        assert column.to_dense().tolist() == [[b"", b"x"]]
        assert column.to_dense(b"?").tolist() == [[b"?", b"x"]]

    def test_nothing(self) -> None:
        empty = np.zeros((0, 2), np.int64)
        assert Sparse(empty, BytesColumn.of([]), (2, 1)).to_dense().tolist() == [[b""], [b""]]


class TestBatch:
    def batch(self, **columns: Any) -> Batch:
        origin = Origin(np.zeros(2, np.int32), np.arange(2))
        position: Any = None
        return Batch(columns, 2, 0, origin, position)

    def test_is_a_mapping_with_as_many_rows(self) -> None:
        batch = self.batch(a=np.arange(2), b=np.arange(2))
        assert list(batch) == ["a", "b"]
        assert batch["a"] is batch.columns["a"]
        assert len(batch) == 2
        assert repr(batch) == "<Batch of 2 rows: a, b>"
        assert batch.mask is None

    def test_raw_records(self) -> None:
        records = BytesColumn.of([b"a", b"b"])
        assert self.batch(records=records).records is records

    def test_a_parsed_batch_has_no_raw_records(self) -> None:
        with pytest.raises(AttributeError, match="not raw"):
            _ = self.batch(records=np.arange(2)).records
