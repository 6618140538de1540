from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec import kernel
from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.column_features import _uniform, features_of
from streamrec.formats.examples.example import Feature
from streamrec.values.columns import BytesColumn, Ragged

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
