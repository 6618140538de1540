from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.column_features import Slices, cut, features_of, heads, joined
from streamrec.formats.examples.example import Feature
from streamrec.values.columns import BytesColumn, Ragged

pytestmark = pytest.mark.both_kernels


def strings(slices: Slices) -> list[bytes]:
    return joined([slices]).to_list()


def test_slices_of_several_parts_are_joined_by_row() -> None:
    letters = BytesColumn.of([b"a", b"", b"bcd"])
    part = cut(letters, np.array([0, 1, 3]))
    sizes = heads(part.lengths, lambda size: b"%d:" % size)
    assert joined([sizes, part, sizes]).to_list() == [b"1:a1:", b"3:bcd3:"]


@given(st.lists(st.integers(0, 50) | st.integers(0, 2**31), max_size=40))
def test_each_size_has_its_head(sizes: list[int]) -> None:
    lengths = np.array(sizes, np.int64)
    made = heads(lengths, lambda size: b"%d;" % size)
    assert strings(made) == [b"%d;" % size for size in sizes]


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
    begin, values = features_of("x", column, lambda *note: noted.append(note))
    whole = [begin(len(octets)) + octets for octets in strings(values)]
    found = {Feature.FromString(feature).WhichOneof("kind") for feature in whole}
    assert {kind for _, kind, _ in noted} == kinds
    assert found - {None} == kinds - {None}


def test_a_value_without_a_representation() -> None:
    with pytest.raises(WrongFeatureType, match="record 1, feature x"):
        features_of("x", [1, None], lambda *_: None)
