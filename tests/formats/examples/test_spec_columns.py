"""The columns of each spec; TensorFlow's own answers are in test_differential."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.formats.examples.dtypes import HELD_AS, numpy_dtype, range_of
from streamrec.formats.examples.example import encode_example
from streamrec.formats.examples.features import FeatureParser
from streamrec.kernel.contract import DataType
from streamrec.values.record_rows import RecordRows
from tests.formats.spec_strategies import values

if TYPE_CHECKING:
    from collections.abc import Callable


RECORD = sr.encode_example({"id": 7})
SPECS = {"id": sr.FixedLenFeature((), "int64")}


@pytest.mark.parametrize("wrong", ["text", 7, None, [RECORD]])
def test_what_is_not_bytes_is_told(wrong: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: sr.parse_example([RECORD, wrong], SPECS),
        lambda: sr.parse_single_example(wrong, SPECS),
        lambda: sr.parse_single_sequence_example(wrong, SPECS),
        lambda: sr.parse_sequence_example([wrong], SPECS),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"serialized must hold bytes, not an? \w+;"):
            call()


def tensor(held: Any) -> Any:
    """As one of TensorFlow."""
    return SimpleNamespace(numpy=lambda: held)


@pytest.mark.parametrize("given", [np.array(RECORD, object), tensor(RECORD), np.bytes_(RECORD)])
def test_one_record(given: Any) -> None:
    assert sr.parse_single_example(given, SPECS) == {"id": 7}


@pytest.mark.parametrize(
    "given", [tensor(np.array([RECORD] * 2, object)), [tensor(RECORD), bytearray(RECORD)]]
)
def test_a_batch(given: Any) -> None:
    assert sr.parse_example(given, SPECS)["id"].tolist() == [7, 7]


pytestmark = pytest.mark.both_kernels

NUMBERS = sorted(set(HELD_AS) - {"bytes", "bfloat16"})


def stored(dtype: str, rows: list[list[Any]]) -> list[bytes]:
    """Return records with the values as lists, as an Example holds them."""
    kind = np.int64 if HELD_AS[dtype] is DataType.INT64 else np.float32
    return [encode_example({"a": np.array(row, kind)}) for row in rows]


def parse(records: list[bytes], spec: Any, *, pad: bool = True) -> Any:
    return FeatureParser({"a": spec}, pad=pad).parse(RecordRows.of(records))["a"]


def refusal(records: list[bytes], spec: Any) -> WrongFeatureType:
    with pytest.raises(WrongFeatureType) as caught:
        parse(records, spec)
    return caught.value


@st.composite
def table(draw: st.DrawFn, width: int) -> tuple[str, list[list[Any]]]:
    dtype = draw(st.sampled_from(NUMBERS))
    row = st.lists(values(dtype), min_size=width, max_size=width)
    return dtype, draw(st.lists(row, max_size=4))


class TestNarrowing:
    @given(given=table(2))
    def test_fixed(self, given: Any) -> None:
        dtype, rows = given
        column = parse(stored(dtype, rows), sr.FixedLenFeature((2,), dtype))
        assert column.dtype == numpy_dtype(dtype)
        assert column.tolist() == rows
        assert column.flags.writeable

    @given(given=table(3))
    def test_varlen_and_ragged(self, given: Any) -> None:
        dtype, rows = given
        rows = [row[: len(row) - number % 3] for number, row in enumerate(rows)]
        for spec in (sr.VarLenFeature(dtype), sr.RaggedFeature(dtype)):
            column = parse(stored(dtype, rows), spec)
            assert column.values.dtype == numpy_dtype(dtype)
            assert column.to_list() == rows

    @pytest.mark.parametrize("dtype", [name for name in NUMBERS if HELD_AS[name].value != name])
    def test_overflow_names_the_row_and_the_range(self, dtype: Any) -> None:
        least, greatest = range_of(dtype)
        beyond = greatest * 2 if HELD_AS[dtype] is DataType.FLOAT32 else greatest + 1
        wrong = least - 1 if beyond > 2**63 - 1 else beyond
        if not -(2**63) <= wrong < 3e38:
            return  # the list cannot hold a value beyond
        records = stored(dtype, [[1, 1], [1, wrong], [wrong, 1]])
        for spec in (
            sr.FixedLenFeature((2,), dtype),
            sr.VarLenFeature(dtype),
            sr.RaggedFeature(dtype, partitions=[sr.RaggedFeature.UniformRowLength(1)]),
            sr.FixedLenSequenceFeature((), dtype, allow_missing=True),
        ):
            error = refusal(records, spec)
            assert error.fields() == {"record": 1, "feature": "a"}
            assert f"{dtype} is {least} to {greatest}; give the spec the dtype" in str(error)
            assert f"holds {float(np.float32(wrong)) if beyond != greatest + 1 else wrong}," in str(
                error
            )

    def test_floats_round(self) -> None:
        column = parse(stored("float16", [[0.1]]), sr.FixedLenFeature((), "float16"))
        assert column.tolist() == [float(np.float16(0.1))]

    def test_infinities_and_nan_are_values(self) -> None:
        column = parse(stored("float16", [[math.inf, math.nan]]), sr.VarLenFeature("float16"))
        assert column.values[0] == math.inf
        assert np.isnan(column.values[1])

    def test_defaults(self) -> None:
        empty = encode_example({})
        assert parse([empty], sr.FixedLenFeature((), bool, True)).tolist() == [True]
        assert parse([empty], sr.FixedLenFeature((2,), "uint8", [1, 255])).tolist() == [[1, 255]]
        assert parse([empty], sr.FixedLenFeature((), "float64", 0.5)).dtype == np.float64

    def test_bfloat16(self) -> None:
        pytest.importorskip("ml_dtypes")
        column = parse(stored("float32", [[1.5], [-2.0]]), sr.FixedLenFeature((), "bfloat16"))
        assert column.dtype.name == "bfloat16"
        assert column.astype(np.float32).tolist() == [1.5, -2.0]
        assert "bfloat16 is -3.3" in str(
            refusal(stored("float32", [[3.4e38]]), sr.FixedLenFeature((), "bfloat16"))
        )

    def test_the_list_s_own_dtypes_are_not_touched(self) -> None:
        column = parse(stored("int64", [[1], [2]]), sr.VarLenFeature("int64"))
        assert column.values.dtype == np.int64
        assert column.values.tolist() == [1, 2]


def raw(*strings: bytes) -> list[bytes]:
    return [encode_example({"a": string}) for string in strings]


class TestRaw:
    @given(given=table(6))
    def test_round_trip(self, given: Any) -> None:
        dtype, rows = given
        little = numpy_dtype(dtype).newbyteorder("<")
        arrays = [np.array(row, little).reshape(2, 3) for row in rows]
        column = parse(
            raw(*[array.tobytes() for array in arrays]), sr.FixedLenFeature((2, 3), dtype, raw=True)
        )
        assert column.dtype == numpy_dtype(dtype)
        assert column.shape == (len(rows), 2, 3)
        assert column.tolist() == [array.tolist() for array in arrays]
        assert column.flags.writeable
        assert column.flags.c_contiguous

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1, 1)])
    def test_odd_shapes(self, shape: tuple[int, ...]) -> None:
        data = bytes(8 * math.prod(shape))
        column = parse(raw(data, data), sr.FixedLenFeature(shape, "complex64", raw=True))
        assert column.shape == (2, *shape)
        assert column.dtype == np.complex64

    def test_defaults(self) -> None:
        records = [encode_example({}), *raw(b"\1\0\2\0")]
        column = parse(records, sr.FixedLenFeature((2,), "int16", [5, -6], raw=True))
        assert column.tolist() == [[5, -6], [1, 2]]

    def test_bools_are_0_or_1(self) -> None:
        spec = sr.FixedLenFeature((2,), bool, raw=True)
        assert parse(raw(b"\0\1"), spec).tolist() == [[False, True]]
        error = refusal(raw(b"\0\1", b"\1\7", b"\2\0"), spec)
        assert error.fields() == {"record": 1, "feature": "a"}
        assert "holds 7, but a bool is 0 or 1" in str(error)

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            (encode_example({"a": b"abc"}), "has 3 bytes, but shape (2,) of int16 takes 4"),
            (
                encode_example({"a": [b"abcd", b"e"]}),
                "holds 2 byte strings, but raw=True takes one",
            ),
            (encode_example({"a": 3}), "the record holds int64, but the spec says int16"),
        ],
    )
    def test_what_does_not_fit(self, record: bytes, message: str) -> None:
        error = refusal([*raw(b"abcd"), record], sr.FixedLenFeature((2,), "int16", raw=True))
        assert error.fields() == {"record": 1, "feature": "a"}
        assert message in str(error)


class TestSequence:
    @given(
        rows=st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), width=st.integers(1, 2)
    )
    def test_pads(self, rows: list[list[int]], width: int) -> None:
        spec = sr.FixedLenSequenceFeature((width,), "int32", allow_missing=True, default_value=-1)
        records = stored("int64", [row * width for row in rows])
        dense = parse(records, spec)
        items = parse(records, spec, pad=False)
        longest = max(map(len, rows), default=0)
        assert dense.dtype == np.int32
        assert dense.shape == (len(rows), longest, width)
        for got, item, row in zip(dense, items, rows, strict=True):
            assert got.ravel().tolist() == (row * width + [-1] * longest * width)[: longest * width]
            assert item.shape == (len(row), width)
            assert item.ravel().tolist() == row * width

    @pytest.mark.parametrize("default", [None, b"-", b"longer"])
    def test_strings(self, default: bytes | None) -> None:
        spec = sr.FixedLenSequenceFeature((2,), bytes, allow_missing=True, default_value=default)
        rows: list[Any] = [["a", "b", "c", "dd"], [], ["", "e"]]
        column = parse([encode_example({"a": row}) if row else b"" for row in rows], spec)
        fill = default or b""
        assert column.to_list() == [
            [[b"a", b"b"], [b"c", b"dd"]],
            [[fill, fill], [fill, fill]],
            [[b"", b"e"], [fill, fill]],
        ]

    @pytest.mark.parametrize("dtype", [bytes, "int64", "float32"])
    @pytest.mark.parametrize("shape", [(), (2,)])
    @pytest.mark.parametrize("default", [None, 1])
    def test_what_no_record_has(self, dtype: Any, shape: Any, default: Any) -> None:
        given = b"1" if default and dtype is bytes else default
        spec = sr.FixedLenSequenceFeature(shape, dtype, allow_missing=True, default_value=given)
        column = parse([b"", b""], spec)
        of_items = column.item_shape if dtype is bytes else column.shape[1:]
        assert (len(column), *of_items) == (2, 0, *shape)
        assert [list(row) for row in column] == [[], []]
        assert [list(row) for row in parse([b"", b""], spec, pad=False)] == [[], []]
        assert len(sr.parse_single_example(b"", {"a": spec})["a"]) == 0
        assert len(parse([], spec)) == 0

    def test_values_left_over(self) -> None:
        spec = sr.FixedLenSequenceFeature((2,), int, allow_missing=True)
        error = refusal(stored("int64", [[1, 2], [1, 2, 3], [1]]), spec)
        assert error.fields() == {"record": 1, "feature": "a"}
        assert "holds 3 values, which is not a multiple of the 2 that shape (2,)" in str(error)

    def test_a_list_may_always_be_missing(self) -> None:
        with pytest.raises(ConfigError, match=r"feature 'a' .* allow_missing=True"):
            parse([], sr.FixedLenSequenceFeature((), int))


class TestSharing:
    def test_specs_that_need_the_same_share_it(self) -> None:
        features = {
            "v": sr.VarLenFeature("int64"),
            "narrow": sr.RaggedFeature("int8", "v"),
            "pairs": sr.RaggedFeature(int, "v", [sr.RaggedFeature.UniformRowLength(2)]),
            "hot": sr.SparseFeature("v", "v", "uint8", 10),
        }
        (columns,) = [sr.parse_example(stored_as("v", [3, 1]), features)]
        assert columns["v"].to_list() == [[3, 1]]
        assert columns["narrow"].values.dtype == np.int8
        assert columns["pairs"].to_list() == [[[3, 1]]]
        assert columns["hot"].to_dense().tolist() == [[0, 1, 0, 3, 0, 0, 0, 0, 0, 0]]

    @pytest.mark.parametrize(
        ("features", "words"),
        [
            (
                {"v": sr.FixedLenFeature((), int), "r": sr.RaggedFeature(int, "v")},
                "'v' is needed as fixed int64 and as varlen int64",
            ),
            (
                {"v": sr.VarLenFeature(float), "s": sr.SparseFeature("v", "w", int, 3)},
                "'v' is needed as varlen float32 and as varlen int64",
            ),
            (
                {"v": sr.FixedLenFeature((), "uint8", raw=True), "s": sr.RaggedFeature(bytes, "v")},
                "'v' is needed as raw bytes and as varlen bytes",
            ),
        ],
    )
    def test_specs_that_contradict(self, features: Any, words: str) -> None:
        with pytest.raises(ConfigError, match=f"{words}, but can be parsed in one way"):
            FeatureParser(features)


def stored_as(name: str, numbers: list[int]) -> list[bytes]:
    return [encode_example({name: numbers})]


class TestRawItems:
    @given(given=table(6))
    def test_round_trip(self, given: Any) -> None:
        dtype, rows = given
        little = numpy_dtype(dtype).newbyteorder("<")
        arrays = [np.array(row, little).reshape(2, 3) for row in rows]
        spec = sr.FixedLenSequenceFeature((3,), dtype, allow_missing=True, raw=True)
        records = [encode_example({"a": [one.tobytes() for one in array]}) for array in arrays]
        column = parse([*records, encode_example({})], spec)
        assert column.dtype == numpy_dtype(dtype)
        assert column.shape == (len(rows) + 1, 2 if rows else 0, 3)
        assert column[:-1].tolist() == [array.tolist() for array in arrays]
        assert not column[-1].any()

    def test_items_of_another_size(self) -> None:
        spec = sr.FixedLenSequenceFeature((2,), "int16", allow_missing=True, raw=True)
        error = refusal([*raw(bytes(4)), encode_example({"a": [bytes(4), b"abc"]})], spec)
        assert error.fields() == {"record": 1, "feature": "a"}
        assert "item 1 holds 3 bytes, but shape (2,) of int16 takes 4" in str(error)

    def test_bools_are_0_or_1(self) -> None:
        spec = sr.FixedLenSequenceFeature((), bool, allow_missing=True, raw=True)
        error = refusal([encode_example({"a": [b"\1", b"\0"]}), *raw(b"\7")], spec)
        assert error.fields() == {"record": 1, "feature": "a"}
        assert "holds 7, but a bool is 0 or 1" in str(error)

    def test_rows_are_filled_up_with_0(self) -> None:
        with pytest.raises(ConfigError, match="leave out default_value"):
            sr.FixedLenSequenceFeature((2,), "uint8", default_value=1, raw=True)
