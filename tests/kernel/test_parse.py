"""Examples to columns, by every implementation of the kernel."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType, FaultCode, KernelFault
from streamrec.kernel.messages import MESSAGES
from streamrec.values.columns import BytesColumn, Ragged
from streamrec.values.record_rows import RecordRows
from tests.kernel.conftest import IMPLEMENTATIONS

KERNELS = st.sampled_from(IMPLEMENTATIONS)
VALUES = {
    DataType.INT64: st.integers(-(2**63), 2**63 - 1),
    DataType.FLOAT32: st.floats(width=32, allow_nan=False),
    DataType.BYTES: st.binary(max_size=12),
}
LISTS = {DataType.INT64: "int64_list", DataType.FLOAT32: "float_list", DataType.BYTES: "bytes_list"}
NUMPY = {DataType.INT64: np.int64, DataType.FLOAT32: np.float32}
DTYPES = st.sampled_from(DataType)


def example(**features: tuple[DataType, Any] | None) -> bytes:
    message = MESSAGES["Example"]()
    for name, content in features.items():
        feature = message.features.feature[name]
        if content is not None:
            values = getattr(feature, LISTS[content[0]])
            values.SetInParent()
            values.value.extend(content[1])
    return bytes(message.SerializeToString())


def ints(*values: int) -> tuple[DataType, Any]:
    return DataType.INT64, values


def fixed(name: str, shape: tuple[int, ...] = (), default: Any = None) -> ColumnPlan:
    return ColumnPlan(name, ColumnKind.FIXED, DataType.INT64, shape, default)


def as_lists(column: Any) -> Any:
    return column.tolist() if isinstance(column, np.ndarray) else column.to_list()


def lists_of(dtype: DataType) -> st.SearchStrategy[list[Any]]:
    """Short lists, and some long enough for another path."""
    value = VALUES[dtype]
    return st.lists(value, max_size=6) | st.builds(lambda item: [item] * 70, value)


@st.composite
def ragged_input(draw: st.DrawFn) -> tuple[DataType, list[list[Any] | None]]:
    dtype = draw(DTYPES)
    return dtype, draw(st.lists(st.none() | lists_of(dtype), max_size=6))


@st.composite
def fixed_input(draw: st.DrawFn) -> tuple[DataType, tuple[int, ...], list[Any], list[Any]]:
    dtype = draw(DTYPES)
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 9]), max_size=3)))
    count = int(np.prod(shape, dtype=int))
    row = st.lists(VALUES[dtype], min_size=count, max_size=count)
    return dtype, shape, draw(row), draw(st.lists(st.none() | row, max_size=5))


class TestParseExamples:
    @given(kernel=KERNELS, given=ragged_input())
    def test_varlen(self, kernel: Any, given: Any) -> None:
        dtype, lists = given
        rows = RecordRows.of(
            [example() if row is None else example(a=(dtype, row)) for row in lists]
        )
        (column,) = kernel.Parser([ColumnPlan("a", ColumnKind.VARLEN, dtype)]).parse(rows)
        assert isinstance(column, Ragged)
        assert column.row_splits.dtype == np.int64
        assert column.to_list() == [row or [] for row in lists]
        if dtype is DataType.BYTES:
            assert isinstance(column.values, BytesColumn)
        else:
            assert isinstance(column.values, np.ndarray)
            assert column.values.dtype == NUMPY[dtype]

    @given(kernel=KERNELS, given=fixed_input())
    def test_fixed(self, kernel: Any, given: Any) -> None:
        dtype, shape, default, lists = given
        rows = RecordRows.of(
            [example() if row is None else example(a=(dtype, row)) for row in lists]
        )
        plan = ColumnPlan("a", ColumnKind.FIXED, dtype, shape, tuple(default))
        (column,) = kernel.Parser([plan]).parse(rows)
        wanted = [default if row is None else row for row in lists]
        objects = np.empty((len(lists), *shape), object)
        objects.reshape(-1)[:] = [value for row in wanted for value in row]
        assert as_lists(column) == objects.tolist()
        if isinstance(column, BytesColumn):
            assert column.item_shape == shape
        else:
            assert column.shape == (len(lists), *shape)
            assert column.dtype == NUMPY[dtype]

    def test_memory_is_writable_and_its_own(self, kernel: Any) -> None:
        rows = RecordRows.of([example(a=ints(1, 2), b=(DataType.BYTES, [b"x"]))])
        plans = [fixed("a", (2,)), ColumnPlan("b", ColumnKind.FIXED, DataType.BYTES)]
        a, b = kernel.Parser(plans).parse(rows)
        assert a.flags.writeable
        assert b.values.flags.writeable
        b.values[:] = 0
        assert kernel.Parser(plans).parse(rows)[1].to_list() == [b"x"]

    def test_plans_keep_their_order(self, kernel: Any) -> None:
        rows = RecordRows.of([example(a=ints(1), b=ints(2), unused=ints(3))])
        columns = kernel.Parser([fixed("b"), fixed("a")]).parse(rows)
        assert [column.tolist() for column in columns] == [[2], [1]]
        assert kernel.Parser([]).parse(rows) == []

    def test_a_shape_without_values(self, kernel: Any) -> None:
        rows = RecordRows.of([example(a=ints())])
        assert kernel.Parser([fixed("a", (0, 3))]).parse(rows)[0].shape == (1, 0, 3)

    @given(kernel=KERNELS, bits=st.lists(st.integers(0, 2**32 - 1), max_size=5))
    def test_floats_keep_their_bits(self, kernel: Any, bits: list[int]) -> None:
        values = np.array(bits, np.uint32).view(np.float32)
        values[np.isnan(values)] = np.nan
        rows = RecordRows.of([example(a=(DataType.FLOAT32, values.tolist()))])
        plan = ColumnPlan("a", ColumnKind.VARLEN, DataType.FLOAT32)
        assert kernel.Parser([plan]).parse(rows)[0].values.tobytes() == values.tobytes()

    @pytest.mark.parametrize(
        ("record", "plan", "code"),
        [
            (example(), fixed("a"), FaultCode.MISSING),
            (example(a=None), fixed("a"), FaultCode.MISSING),
            (example(a=ints()), fixed("a"), FaultCode.WRONG_COUNT),
            (example(a=ints()), fixed("a", default=(1,)), FaultCode.WRONG_COUNT),
            (example(a=ints(1, 2)), fixed("a"), FaultCode.WRONG_COUNT),
            (example(a=ints(1)), fixed("a", (0,)), FaultCode.WRONG_COUNT),
            (example(a=(DataType.FLOAT32, [1.0])), fixed("a"), FaultCode.WRONG_KIND),
            (example(a=(DataType.FLOAT32, [])), fixed("a", default=(1,)), FaultCode.WRONG_KIND),
            (
                example(a=ints(1)),
                ColumnPlan("a", ColumnKind.VARLEN, DataType.BYTES),
                FaultCode.WRONG_KIND,
            ),
        ],
    )
    def test_faults_name_row_and_feature(
        self, kernel: Any, record: bytes, plan: ColumnPlan, code: FaultCode
    ) -> None:
        good = example(a=(plan.dtype, [b"" if plan.dtype is DataType.BYTES else 0] * plan.count))
        with pytest.raises(KernelFault) as caught:
            kernel.Parser([plan]).parse(RecordRows.of([good, good, record, record]))
        fault = caught.value
        assert (fault.code, fault.record, fault.feature) == (code, 2, "a")
        assert str(fault) == f"{code.name} in row 2, feature 'a'"

    def test_the_first_row_then_the_first_plan(self, kernel: Any) -> None:
        rows = RecordRows.of([example(a=ints(1)), example()])
        with pytest.raises(KernelFault) as caught:
            kernel.Parser([fixed("a"), fixed("b"), fixed("c")]).parse(rows)
        assert (caught.value.record, caught.value.feature) == (0, "b")

    @pytest.mark.parametrize("junk", [b"\xff", b"\x0a\x05a", b"\x0b", b"\x00", b"\x0a\x02\x0a\x7f"])
    def test_what_is_no_message(self, kernel: Any, junk: bytes) -> None:
        rows = RecordRows.of([example(a=ints(1)), junk])
        with pytest.raises(KernelFault) as caught:
            kernel.Parser([fixed("a")]).parse(rows)
        fault = caught.value
        assert (fault.code, fault.record, fault.feature) == (FaultCode.MALFORMED, 1, None)

    def test_a_record_cut_short(self, kernel: Any) -> None:
        whole = example(a=ints(1, 300, -1), b=(DataType.BYTES, [b"ab", b"c"]))
        for length in range(1, len(whole)):
            with pytest.raises(KernelFault) as caught:
                kernel.Parser([]).parse(RecordRows.of([whole[:length]]))
            assert caught.value.code is FaultCode.MALFORMED

    @given(kernel=KERNELS, junk=st.binary(max_size=60))
    def test_junk_never_crashes(self, kernel: Any, junk: bytes) -> None:
        with contextlib.suppress(KernelFault):
            kernel.Parser([ColumnPlan("a", ColumnKind.VARLEN, DataType.INT64)]).parse(
                RecordRows.of([junk])
            )
