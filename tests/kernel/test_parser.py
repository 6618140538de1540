"""Tests of every implementation of the Parser, with raw bytes, steps, and its input."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.kernel.contract import (
    LARGEST_MESSAGE,
    ColumnKind,
    ColumnPlan,
    DataType,
    FaultCode,
    KernelFault,
)
from streamrec.values.columns import BytesColumn, Ragged
from streamrec.values.record_rows import RecordRows
from tests.kernel import wire_bytes as wire
from tests.kernel.conftest import IMPLEMENTATIONS

KERNELS = st.sampled_from(IMPLEMENTATIONS)


def raw(shape: tuple[int, ...], default: bytes | None = None, name: str = "a") -> ColumnPlan:
    given = None if default is None else (default,)
    return ColumnPlan(name, ColumnKind.RAW, DataType.BYTES, shape, given)


def steps(dtype: DataType = DataType.INT64, *, missing: bool = True) -> ColumnPlan:
    return ColumnPlan("a", ColumnKind.STEPS, dtype, default=() if missing else None)


def varlen(dtype: DataType = DataType.INT64, name: str = "a") -> ColumnPlan:
    return ColumnPlan(name, ColumnKind.VARLEN, dtype)


def example(feature: bytes, name: str = "a") -> bytes:
    return wire.example(wire.entry(name, feature))


def sequence(*features: bytes) -> bytes:
    return wire.feature_lists(wire.entry("a", wire.steps(*features)))


def fault_of(
    kernel: Any, records: list[bytes], plans: list[ColumnPlan], lists: Any = None
) -> KernelFault:
    with pytest.raises(KernelFault) as caught:
        kernel.Parser(plans, lists).parse(RecordRows.of(records))
    return caught.value


class TestRaw:
    @given(kernel=KERNELS, rows=st.lists(st.binary(min_size=6, max_size=6), max_size=5))
    def test_one_string_is_one_array(self, kernel: Any, rows: list[bytes]) -> None:
        records = RecordRows.of([example(wire.bytes_list(row)) for row in rows])
        (column,) = kernel.Parser([raw((2, 3))]).parse(records)
        assert column.dtype == np.uint8
        assert column.shape == (len(rows), 2, 3)
        assert column.tobytes() == b"".join(rows)
        assert column.flags.c_contiguous
        assert column.flags.writeable

    def test_defaults(self, kernel: Any) -> None:
        records = RecordRows.of([b"", example(b""), example(wire.bytes_list(b"xy"))])
        (column,) = kernel.Parser([raw((2,), b"-+")]).parse(records)
        assert column.tobytes() == b"-+-+xy"

    def test_strings_of_no_bytes(self, kernel: Any) -> None:
        records = RecordRows.of([example(wire.bytes_list(b"")), b""])
        assert kernel.Parser([raw((0, 3), b"")]).parse(records)[0].shape == (2, 0, 3)

    @pytest.mark.parametrize(
        ("feature", "code"),
        [
            (b"", FaultCode.MISSING),
            (wire.bytes_list(), FaultCode.WRONG_COUNT),
            (wire.bytes_list(b"ab", b"cd"), FaultCode.WRONG_COUNT),
            (wire.bytes_list(b"a"), FaultCode.WRONG_SIZE),
            (wire.bytes_list(b"abc"), FaultCode.WRONG_SIZE),
            (wire.bytes_list(b""), FaultCode.WRONG_SIZE),
            (wire.int64_list(1, 2), FaultCode.WRONG_KIND),
            (wire.float_list(), FaultCode.WRONG_KIND),
        ],
    )
    def test_faults(self, kernel: Any, feature: bytes, code: FaultCode) -> None:
        good = example(wire.bytes_list(b"ab"))
        fault = fault_of(kernel, [good, example(feature), b"\xff"], [raw((2,))])
        assert (fault.code, fault.record, fault.feature) == (code, 1, "a")

    def test_an_absent_feature(self, kernel: Any) -> None:
        assert fault_of(kernel, [b""], [raw((2,))]).code is FaultCode.MISSING
        assert fault_of(kernel, [b""], [raw((0,))]).code is FaultCode.MISSING


class TestSteps:
    @given(kernel=KERNELS, rows=st.lists(st.lists(st.lists(st.integers(-9, 300))), max_size=4))
    def test_integers(self, kernel: Any, rows: list[list[list[int]]]) -> None:
        records = [sequence(*[wire.int64_list(*step) for step in row]) for row in rows]
        (column,) = kernel.Parser([], [steps()]).parse(RecordRows.of(records))
        assert isinstance(column.values, Ragged)
        assert column.to_list() == rows
        numbers: Any = column.values.values
        assert numbers.dtype == column.row_splits.dtype == np.int64

    @given(kernel=KERNELS, rows=st.lists(st.lists(st.lists(st.binary(max_size=3))), max_size=4))
    def test_strings(self, kernel: Any, rows: list[list[list[bytes]]]) -> None:
        records = [sequence(*[wire.bytes_list(*step) for step in row]) for row in rows]
        (column,) = kernel.Parser([], [steps(DataType.BYTES)]).parse(RecordRows.of(records))
        assert isinstance(column.values.values, BytesColumn)
        assert column.to_list() == rows

    def test_absent_and_empty_lists(self, kernel: Any) -> None:
        no_value = wire.feature_lists(wire.delimited(1, wire.delimited(1, b"a")))
        records = RecordRows.of([b"", sequence(), no_value, sequence(b"", wire.float_list())])
        (column,) = kernel.Parser([], [steps(DataType.FLOAT32)]).parse(records)
        assert column.to_list() == [[], [], [], [[], []]]

    def test_a_list_that_may_not_lack(self, kernel: Any) -> None:
        plan = steps(missing=False)
        (column,) = kernel.Parser([], [plan]).parse(RecordRows.of([sequence()]))
        assert column.to_list() == [[]]
        fault = fault_of(kernel, [sequence(), b""], [], [plan])
        assert (fault.code, fault.record, fault.feature) == (FaultCode.MISSING, 1, "a")

    @pytest.mark.parametrize("step", [wire.float_list(1.0), wire.bytes_list()])
    def test_a_step_of_another_kind(self, kernel: Any, step: bytes) -> None:
        good = wire.int64_list(1)
        fault = fault_of(kernel, [sequence(good), sequence(good, b"", step)], [], [steps()])
        assert (fault.code, fault.record, fault.feature) == (FaultCode.WRONG_KIND, 1, "a")

    def test_context_and_lists_have_names_of_their_own(self, kernel: Any) -> None:
        record = example(wire.int64_list(1)) + sequence(wire.int64_list(2))
        context, column = kernel.Parser([varlen()], [steps()]).parse(RecordRows.of([record]))
        assert (context.to_list(), column.to_list()) == ([[1]], [[[2]]])

    def test_an_example_s_unknown_fields_are_a_sequence_example_s_lists(self, kernel: Any) -> None:
        junk = RecordRows.of([b"\x12\x01\xff"])
        assert kernel.Parser([varlen()]).parse(junk)[0].to_list() == [[]]
        assert fault_of(kernel, [b"\x12\x01\xff"], [varlen()], []).code is FaultCode.MALFORMED

    def test_no_lists_are_sequence_examples_all_the_same(self, kernel: Any) -> None:
        assert kernel.Parser([], []).parse(RecordRows.of([sequence(b"")])) == []


class TestFaults:
    def test_the_bytes_then_the_plans_then_the_lists(self, kernel: Any) -> None:
        plans = [raw((1,), name="x"), raw((1,), name="a")]
        lists = [steps(missing=False)]
        assert fault_of(kernel, [b"\xff"], plans, lists).feature is None
        assert fault_of(kernel, [b""], plans, lists).feature == "x"
        record = example(wire.bytes_list(b"a"), "x") + example(wire.int64_list())
        assert fault_of(kernel, [record], plans, lists).code is FaultCode.WRONG_KIND
        both = wire.example(*[wire.entry(name, wire.bytes_list(b"a")) for name in ("x", "a")])
        assert fault_of(kernel, [both], plans, lists).code is FaultCode.MISSING

    def test_the_first_row(self, kernel: Any) -> None:
        records = [example(wire.int64_list()), example(wire.float_list()), b"\xff"]
        assert fault_of(kernel, records, [varlen()]).record == 1
        assert fault_of(kernel, records[::-1], [varlen()]).record == 0

    def test_a_fault_that_no_plan_asks_about(self, kernel: Any) -> None:
        record = wire.example(wire.entry("unused", wire.delimited(3, wire.delimited(1, b"\x80"))))
        assert fault_of(kernel, [record], [varlen()]).code is FaultCode.MALFORMED

    @pytest.mark.parametrize("lists", [None, []])
    def test_a_record_that_is_too_large(self, kernel: Any, lists: Any) -> None:
        # Pages that nobody touches take no memory.
        pages = mmap.mmap(-1, LARGEST_MESSAGE + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        record = BytesColumn(np.frombuffer(pages, np.uint8), np.array([0, 0, LARGEST_MESSAGE + 1]))
        with pytest.raises(KernelFault) as caught:
            kernel.Parser([], lists).parse(RecordRows.from_column(record))
        fault = caught.value
        assert (fault.code, fault.record, fault.feature) == (FaultCode.TOO_LARGE, 1, None)


class TestInput:
    @given(kernel=KERNELS, seed=st.integers(0, 2**32 - 1), numbers=st.lists(st.integers(0, 999)))
    def test_rows_of_several_buffers_in_any_order(
        self, kernel: Any, seed: int, numbers: list[int]
    ) -> None:
        records = [example(wire.int64_list(number)) for number in numbers]
        parts = [RecordRows.of(records[:3]), RecordRows.of(records[3:])]
        order = np.random.default_rng(seed).permutation(len(numbers))
        rows = RecordRows.concatenate(parts).take(order)
        (column,) = kernel.Parser([varlen()]).parse(rows)
        assert column.to_list() == [[numbers[i]] for i in order]

    def test_a_parser_serves_many_threads(self, kernel: Any) -> None:
        parser = kernel.Parser([varlen(), raw((1,), b"-", "b")])
        batches = [
            RecordRows.of([example(wire.int64_list(*range(n))), b""] * 50) for n in range(16)
        ]
        with ThreadPoolExecutor(4) as threads:
            for n, (column, octets) in enumerate(threads.map(parser.parse, batches)):
                assert column.to_list() == [list(range(n)), []] * 50
                assert octets.shape == (100, 1)

    def test_nothing_in_nothing(self, kernel: Any) -> None:
        rows = RecordRows.of([])
        plans = [
            varlen(),
            raw((2,), name="b"),
            ColumnPlan("c", ColumnKind.FIXED, DataType.BYTES, (2,)),
        ]
        ragged, octets, strings, found = kernel.Parser(plans, [steps()]).parse(rows)
        assert (ragged.to_list(), found.to_list(), strings.to_list()) == ([], [], [])
        assert octets.shape == (0, 2)
        assert strings.item_shape == (2,)
        assert ragged.row_splits.tolist() == found.row_splits.tolist() == [0]

    def test_the_records_are_left_alone(self, kernel: Any) -> None:
        rows = RecordRows.of([example(wire.bytes_list(b"ab"))])
        before = rows.buffers[0].tobytes()
        (column,) = kernel.Parser([raw((2,))]).parse(rows)
        column[:] = 0
        assert rows.buffers[0].tobytes() == before
        assert kernel.Parser([raw((2,))]).parse(rows)[0].tobytes() == b"ab"
