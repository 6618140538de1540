"""RaggedFeature with partitions and SparseFeature; TensorFlow's answers: test_differential."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.example import encode_example

pytestmark = pytest.mark.both_kernels

Part = sr.RaggedFeature


def refusal(record: bytes, spec: Any, good: bytes = b"") -> WrongFeatureType:
    with pytest.raises(WrongFeatureType) as caught:
        sr.parse_example([good, record], {"x": spec})
    return caught.value


class TestRagged:
    def test_nested(self) -> None:
        spec = Part("uint8", "v", [Part.RowSplits("s2"), Part.RowSplits("s1")])
        records = [
            encode_example({"v": [3, 1, 4, 1, 5, 9], "s1": [0, 2, 3, 3, 6], "s2": [0, 2, 3, 4]}),
            encode_example({"v": [2, 7, 1, 8, 2, 8, 1], "s1": [0, 3, 4, 5, 7], "s2": [0, 1, 1, 4]}),
        ]
        column: Any = sr.parse_example(records, {"x": spec})["x"]
        assert column.to_list() == [
            [[[3, 1], [4]], [[]], [[1, 5, 9]]],
            [[[2, 7, 1]], [], [[8], [2], [8, 1]]],
        ]
        assert column.values.values.values.dtype == np.uint8
        assert sr.parse_single_example(records[1], {"x": spec})["x"].to_list() == [
            *([[[2, 7, 1]], []]),
            [[8], [2], [8, 1]],
        ]

    @pytest.mark.parametrize(
        ("numbers", "words"),
        [
            ([1, 2], "the first split is not 0"),
            ([0, 1], "the rows take another number of values"),
            ([0, 2**62], "a number is negative, or beyond the values"),
            ([0, 2, 1, 2], "the numbers go down"),
        ],
    )
    def test_what_does_not_fit(self, numbers: list[int], words: str) -> None:
        record = encode_example({"v": ["a", "b"], "s": numbers})
        error = refusal(record, Part(bytes, "v", [Part.RowSplits("s")]))
        assert error.fields() == {"record": 1, "feature": "s"}
        assert f"does not partition feature 'v': {words}; correct the partitions" in str(error)

    def test_values_that_make_no_uniform_rows(self) -> None:
        record = encode_example({"x": [1, 2, 3]})
        error = refusal(record, Part(int, partitions=[Part.UniformRowLength(2)]))
        assert error.fields() == {"record": 1, "feature": "x"}
        assert "the number of values is not a multiple of 2" in str(error)

    def test_one_number_cannot_ask_for_any_memory(self) -> None:
        record = encode_example({"v": [1], "s": [2**40]})
        error = refusal(record, Part(int, "v", [Part.ValueRowIds("s")]))
        assert "beyond the values" in str(error)

    def test_partitions_of_another_kind(self) -> None:
        record = encode_example({"v": [1], "s": [0.5]})
        error = refusal(record, Part(int, "v", [Part.RowLengths("s")]))
        assert error.fields() == {"record": 1, "feature": "s"}
        assert "the record holds float32, but the spec says int64" in str(error)


@st.composite
def cells(draw: st.DrawFn) -> dict[tuple[int, int], int]:
    places = st.tuples(st.integers(0, 3), st.integers(0, 2))
    return draw(st.dictionaries(places, st.integers(1, 9)))


class TestSparse:
    @given(records=st.lists(cells(), max_size=4), already_sorted=st.booleans())
    def test_to_dense(
        self, records: list[dict[tuple[int, int], int]], already_sorted: bool
    ) -> None:
        spec = sr.SparseFeature(["i", "j"], "v", "int8", [4, 3], already_sorted)
        serialized = [
            encode_example(
                {
                    "i": np.array([i for i, _ in record], int),
                    "j": np.array([j for _, j in record], int),
                    "v": np.array(list(record.values()), int),
                }
            )
            for record in records
        ]
        column: Any = sr.parse_example(serialized, {"x": spec})["x"]
        assert (len(column), column.dense_shape) == (len(records), (len(records), 4, 3))
        assert column.values.dtype == np.int8
        wanted = np.zeros(column.dense_shape, np.int8)
        for row, record in enumerate(records):
            for place, value in record.items():
                wanted[(row, *place)] = value
        assert column.to_dense().tolist() == wanted.tolist()
        assert [row.to_dense().tolist() for row in column] == wanted.tolist()
        places = [tuple(place) for place in column.indices.tolist()]
        stored = [(row, *place) for row, record in enumerate(records) for place in record]
        assert places == (stored if already_sorted else sorted(stored))

    def test_strings_go_with_their_places(self) -> None:
        record = encode_example({"i": [2, 0, 1], "v": ["c", "a", "b"]})
        column: Any = sr.parse_example([record], {"x": sr.SparseFeature("i", "v", bytes, 3)})["x"]
        assert column.values.to_list() == [b"a", b"b", b"c"]
        assert column.to_dense().tolist() == [[b"a", b"b", b"c"]]
        assert sr.parse_single_example(record, {"x": sr.SparseFeature("i", "v", bytes, 3)})[
            "x"
        ].to_dense().tolist() == [b"a", b"b", b"c"]

    @pytest.mark.parametrize(
        ("record", "feature", "words"),
        [
            (
                {"i": [0, 3], "v": [1, 2]},
                "i",
                "holds place 3, but the spec's size is 3; correct the size",
            ),
            ({"i": [0, -1], "v": [1, 2]}, "i", "holds place -1, but the spec's size is 3"),
            ({"i": [0], "v": [1, 2]}, "i", "holds 1 places for 2 values; write one place for each"),
            ({"v": [1, 2]}, "i", "holds 0 places for 2 values"),
            ({"i": [0], "v": [300]}, "v", "holds 300, but uint8 is 0 to 255"),
            ({"i": [0], "v": ["x"]}, "v", "holds bytes, but the spec says uint8"),
        ],
    )
    def test_what_does_not_fit(self, record: Any, feature: str, words: str) -> None:
        error = refusal(encode_example(record), sr.SparseFeature("i", "v", "uint8", 3))
        assert error.fields() == {"record": 1, "feature": feature}
        assert words in str(error)
