from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernel
from streamrec.errors import WrongFeatureType
from streamrec.formats.examples import encode
from streamrec.formats.examples.encode import (
    _uniform,
    encode_examples,
    encode_sequence_examples,
    features_of,
)
from streamrec.formats.examples.example import (
    Example,
    Feature,
    encode_example,
    encode_sequence_example,
)
from streamrec.values.columns import BytesColumn, Ragged, Sparse, offsets_of

if TYPE_CHECKING:
    from collections.abc import Mapping


pytestmark = pytest.mark.both_kernels


@pytest.mark.parametrize(
    ("column", "kinds"),
    [
        (np.arange(3), {"int64_list"}),
        (np.ones((3, 2)), {"float_list"}),
        (["a", "b", "c"], {"bytes_list"}),
        ([[1], [], [2.5]], {"int64_list", None, "float_list"}),
        (Ragged(BytesColumn.of([b"x"]), np.array([0, 0, 1, 1])), {"bytes_list"}),
        ([[], [], []], {None}),
    ],
)
def test_values_and_their_kinds(column: Any, kinds: set[str | None]) -> None:
    noted: list[tuple[str, str | None, int]] = []
    features = features_of("x", column, lambda *note: noted.append(note))
    whole = kernel.MessageEncoder([features]).encode()
    found = {Feature.FromString(feature).WhichOneof("kind") for feature in whole.to_list()}
    assert {kind for _, kind, _ in noted} == kinds
    assert found - {None} == kinds - {None}


def test_a_value_without_a_representation() -> None:
    with pytest.raises(WrongFeatureType, match="record 1, feature x"):
        features_of("x", [1, None], lambda *_: None)


@pytest.mark.parametrize(
    "column", [np.arange(3, dtype=np.int16), np.ones((3, 2)), np.full((2, 2), "x")]
)
def test_only_one_string_a_row_is_taken_out_of_its_array(column: Any) -> None:
    assert _uniform("x", column) is column
    assert list(_uniform("x", np.array(["a", "b"]))) == [b"a", b"b"]


INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)
FLOAT32 = st.floats(width=32, allow_nan=False)
DTYPES = st.sampled_from(["i8", "i4", "u1", "?", "f4", "f8", "f2", ">i2"])


class Color(enum.Enum):
    RED = 1


def by_row(columns: Mapping[str, Any], rows: int) -> list[bytes]:
    return [
        encode_example({name: column[row] for name, column in columns.items()})
        for row in range(rows)
    ]


def ragged(values: Any, *lengths: int) -> Ragged:
    return Ragged(values, offsets_of(np.array(lengths, np.int64)))


@pytest.mark.parametrize(
    "column",
    [
        np.array([0, -1, 300]),
        np.array([2**63 - 1, -(2**63), 1]),
        np.array([1, 2, 2**63 - 1], np.uint64),
        np.array([True, False, True]),
        np.arange(12, dtype=np.int16).reshape(3, 2, 2),
        np.arange(12).reshape(4, 3).T,
        np.arange(6)[::2],
        np.array([1, 2, 300], ">i4"),
        np.array([0.1, np.inf, 1e-60]),
        np.arange(6, dtype=np.float16).reshape(3, 2),
        np.array([0.5, 1, 2], ">f4"),
        np.zeros((3, 0), np.int64),
        np.zeros((3, 0), np.float32),
        np.array(["a", "ü", ""]),
        np.array([b"a", b"bc", b""]),
        np.array([["a", "b"]] * 3),
        np.array([b"a\0", "ü", b""], object),
        np.array([1, 0.5, b"x"], object),
        BytesColumn.of([b"a", b"", b"c" * 200]),
        BytesColumn.of([b"a", b"", b"c", b"d", b"", b"f"], (2,)),
        BytesColumn.of([b"a", b"", b"c"], (1,)),
        ragged(np.arange(5), 2, 0, 3),
        ragged(np.arange(5.0), 2, 0, 3),
        ragged(np.arange(10).reshape(5, 2), 2, 0, 3),
        ragged(BytesColumn.of([b"a", b"", b"c"]), 1, 0, 2),
        ragged(BytesColumn.of([b"", b"", b"c"]), 1, 1, 1),
        ragged(BytesColumn.of([b"a", b"b", b"c", b"d"], (2,)), 1, 0, 1),
        ragged(ragged(np.arange(9), 2, 3, 0, 4), 1, 0, 3),
        ragged(ragged(BytesColumn.of([b"a", b"b", b"c"]), 2, 0, 1, 0), 2, 1, 1),
        Ragged(np.arange(9), np.array([2, 3, 3, 7])),
        Ragged(np.array([2**63, 1, 2, 3], np.uint64), np.array([1, 2, 3, 4])),
        ragged(np.array(["a", "b", "c"]), 1, 0, 2),
        [1, 2, 3],
        [True, False, True],
        [1, True, np.int8(3)],
        [0.5, 1.5, float("inf")],
        [1, 0.5, b"x"],
        ["a", "ü", ""],
        ["a", b"b", bytearray(b"c")],
        [b"a", b"\0", b""],
        (1, 2, 3),
        range(3),
        [[1, 2], [3], [4]],
        [[1, 2], [], [4]],
        [[1], [0.5], [2]],
        [(b"a",), (b"b", b"c"), (b"d",)],
        [["a"], ["ü", "c"], ["d"]],
        [[[1, 2], [3, 4]], [[1, 2]], [[5, 6]]],
        [[], [], []],
        [np.arange(2), np.arange(0.5), "x"],
        [Color.RED, Feature(), 2],
    ],
    ids=repr,
)
def test_each_row_as_encode_example(column: Any) -> None:
    columns = {"label": np.arange(3), "x": column}
    assert encode_examples(columns).to_list() == by_row(columns, 3)


@st.composite
def column(draw: st.DrawFn, rows: int) -> Any:
    kind = draw(st.sampled_from(["array", "bytes", "ragged", "strings", "nested", "list"]))
    if kind == "list":
        values = st.one_of(INT64, FLOAT32, st.binary(), st.text(max_size=3), st.lists(INT64))
        return draw(st.lists(values, min_size=rows, max_size=rows))
    if kind == "bytes":
        per_row = draw(st.integers(1, 2))
        strings = st.lists(st.binary(max_size=9), min_size=rows * per_row, max_size=rows * per_row)
        return BytesColumn.of(draw(strings), (per_row,) if per_row > 1 else ())
    if kind == "array":
        return draw(numbers(rows * 2)).reshape(rows, 2)
    lengths = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    count = sum(lengths)
    if kind == "strings":
        strings = st.lists(st.binary(max_size=9), min_size=count, max_size=count)
        return ragged(BytesColumn.of(draw(strings)), *lengths)
    if kind == "nested":
        inner = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        return ragged(ragged(draw(numbers(sum(inner))), *inner), *lengths)
    return ragged(draw(numbers(count)), *lengths)


def numbers(count: int) -> st.SearchStrategy[Any]:
    ints = st.lists(INT64, min_size=count, max_size=count).map(lambda v: np.array(v, np.int64))
    floats = st.lists(FLOAT32, min_size=count, max_size=count)
    return st.one_of(
        ints,
        floats.map(lambda values: np.array(values, np.float32)),
        floats.map(lambda values: np.array(values, np.float64)),
        st.tuples(ints, DTYPES).map(lambda pair: (pair[0] % 100).astype(pair[1])),
    )


@given(data=st.data(), rows=st.integers(0, 4), names=st.sets(st.text(max_size=3), min_size=1))
def test_any_columns(data: st.DataObject, rows: int, names: set[str]) -> None:
    columns = {name: data.draw(column(rows)) for name in sorted(names)}
    encoded = encode_examples(columns)
    assert encoded.to_list() == by_row(columns, rows)
    for record in encoded.to_list():
        assert sorted(Example.FromString(record).features.feature) == sorted(names)


def test_no_rows_and_no_columns() -> None:
    assert encode_examples({}).to_list() == []
    assert (
        encode_examples({"a": [], "b": np.zeros((0, 3)), "c": BytesColumn.of([])}).to_list() == []
    )


def test_a_tensor_of_another_library() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.array([[1, 2], [3, 4]])

    assert encode_examples({"x": Tensor()}).to_list() == by_row({"x": [[1, 2], [3, 4]]}, 2)


def test_the_result_is_its_own_memory() -> None:
    column = BytesColumn.of([b"abc", b"def"])
    encoded = encode_examples({"x": column})
    before = encoded.to_list()
    column.values[:] = 0
    assert encoded.to_list() == before
    assert encoded.offsets.flags.c_contiguous
    assert encoded.values.flags.writeable


@pytest.mark.parametrize(
    ("column", "row", "reason"),
    [
        ([1, None, 2], 1, "None is not a value; leave the feature out"),
        ([1, 2, 2**63], 2, "beyond the range of int64"),
        ([1, -(2**64), 2], 1, "beyond the range of int64"),
        ([0.5, 1e39, 2.0], 1, "beyond the range of float32"),
        (["a", "b", "\ud800"], 2, "surrogates not allowed"),
        ([[1, "a"], [2], [3]], 0, "mixes strings and numbers"),
        ([[[1], [2, 3]], [[1]], [[2]]], 0, "."),
        (np.array([1, 2**63, 3], np.uint64), 1, "beyond the range of int64"),
        (np.array([[1.0, 2], [3, 4], [5, -1e39]]), 2, "beyond the range of float32"),
        (ragged(np.array([1.0, 1e39, 2]), 1, 0, 2), 2, "beyond the range of float32"),
        (np.array([1j, 2, 3]), 0, "an array of complex128"),
        (np.array(["2020"] * 3, "M8[D]"), 0, "an array of datetime64"),
    ],
)
def test_refusals_name_the_feature_and_the_row(column: Any, row: int, reason: str) -> None:
    with pytest.raises(WrongFeatureType, match=f"cannot be encoded: .*{reason}") as caught:
        encode_examples({"good": [1, 2, 3], "x": column})
    assert caught.value.fields() == {"record": row, "feature": "x"}


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (np.array(3), "the column is one value without rows"),
        (3, "the column must be an array, .* not int"),
        (b"abc", "the column must be an array, .* not bytes"),
        ("abc", "the column must be an array, .* not str"),
        ({"a": 1}, "the column must be an array, .* not dict"),
        (None, "the column must be an array, .* not NoneType"),
        (
            Sparse(np.zeros((0, 2), np.int64), np.zeros(0), (3, 2)),
            "the column must be .* not Sparse",
        ),
    ],
)
def test_what_is_no_column(column: Any, reason: str) -> None:
    with pytest.raises(WrongFeatureType, match=f"feature x: {reason}"):
        encode_examples({"good": [1, 2, 3], "x": column})


def test_columns_of_different_length_are_refused_by_name() -> None:
    with pytest.raises(WrongFeatureType, match=r"feature b: the column has 3 rows, .* 'a' has 2; "):
        encode_examples({"b": [1, 2, 3], "a": [1, 2], "c": [1, 2]})


@pytest.mark.parametrize("name", [3, None, b"x"])
def test_a_name_is_a_str(name: Any) -> None:
    with pytest.raises(WrongFeatureType, match="a feature's name must be a str, not"):
        encode_examples({name: [1]})


def test_a_record_that_no_reader_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "LARGEST_MESSAGE", 40)
    with pytest.raises(WrongFeatureType, match=r"record 1: the record takes \d+ bytes.* split it"):
        encode_examples({"x": [b"", b"x" * 40]})


STEPS = st.lists(
    st.lists(st.lists(INT64, max_size=3), max_size=3)
    | st.lists(FLOAT32, max_size=3)
    | st.lists(st.binary(max_size=3) | st.text(max_size=2), max_size=3),
    min_size=2,
    max_size=2,
)


class TestSequences:
    @given(lists=st.dictionaries(st.text(max_size=3), STEPS, max_size=3))
    def test_as_row_by_row(self, lists: dict[str, Any]) -> None:
        context = {"id": np.arange(2), "name": ["a", "b"]}
        found = encode_sequence_examples(context, lists).to_list()
        assert found == [
            encode_sequence_example(
                {"id": row, "name": "ab"[row]}, {name: steps[row] for name, steps in lists.items()}
            )
            for row in range(2)
        ]

    @pytest.mark.parametrize(
        "steps",
        [
            ragged(np.arange(5), 2, 0, 3),
            ragged(np.ones((4, 2), np.float32), 1, 3, 0),
            ragged(ragged(np.arange(6), 1, 3, 2), 1, 0, 2),
            ragged(BytesColumn.of([b"a", b"", b"c"]), 2, 1, 0),
            ragged(ragged(BytesColumn.of([b"a", b"b"]), 2, 0, 0), 1, 1, 1),
        ],
        ids=lambda steps: type(steps.values).__name__,
    )
    def test_columns(self, steps: Any) -> None:
        found = encode_sequence_examples(None, {"s": steps, "t": steps}).to_list()
        rows = [Ragged(steps.values, steps.row_splits[n : n + 2]) for n in range(3)]
        plain = [row.to_list()[0] for row in rows]
        assert found == [encode_sequence_example(None, {"s": one, "t": one}) for one in plain]

    def test_an_array(self) -> None:
        steps = np.arange(12).reshape(2, 3, 2)
        found = encode_sequence_examples({}, {"s": steps}).to_list()
        assert found == [encode_sequence_example({}, {"s": row}) for row in steps]

    def test_nothing(self) -> None:
        assert encode_sequence_examples(None, {}).to_list() == []
        assert encode_sequence_examples({"a": [1]}, {}).to_list() == [
            encode_sequence_example({"a": 1}, {})
        ]

    def test_refusals(self) -> None:
        with pytest.raises(WrongFeatureType, match=r"feature s: the column has 1 rows, .* 'a' has"):
            encode_sequence_examples({"a": [1, 2]}, {"s": [[1]]})
        with pytest.raises(WrongFeatureType, match=r"record 1, feature s: .* step 0"):
            encode_sequence_examples(None, {"s": [[1], [None]]})
        with pytest.raises(WrongFeatureType, match="record 1, feature s"):
            encode_sequence_examples(None, {"s": [[1], 3]})
