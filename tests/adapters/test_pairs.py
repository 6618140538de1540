"""Pairs picked from mappings; each adapter's own tests have them of its tensors."""

from __future__ import annotations

from typing import Any

import pytest

from streamrec.adapters.pairs import Pairs, pick
from streamrec.errors import ConfigError

COLUMNS = {"image": 1, "label": 2, "weight": 3}


@pytest.mark.parametrize(
    ("names", "picked"),
    [
        ("image", 1),
        (["image"], {"image": 1}),
        (("image", "weight"), {"image": 1, "weight": 3}),
        ({"x": "image", "w": "weight", "again": "image"}, {"x": 1, "w": 3, "again": 1}),
        ([], {}),
    ],
)
def test_one_name_gives_a_column_and_several_a_dict(names: Any, picked: Any) -> None:
    assert pick(COLUMNS, names) == picked
    assert Pairs(names, "label").of(COLUMNS) == (picked, 2)
    assert Pairs("label", names).of(COLUMNS) == (2, picked)


def test_what_is_picked_may_be_converted() -> None:
    assert pick(COLUMNS, {"x": "image"}, lambda name, column: (name, column)) == {"x": ("image", 1)}


def test_a_mask_comes_third() -> None:
    assert Pairs("image", "label").of(COLUMNS, "mask") == (1, 2, "mask")


def test_the_features_are_those_of_both() -> None:
    assert Pairs({"x": "image"}, ["label", "weight"]).features == ["image", "label", "weight"]


@pytest.mark.parametrize("names", ["imag", ["image", "imag"], {"image": "imag"}])
def test_other_names_are_refused(names: Any) -> None:
    with pytest.raises(ConfigError, match="no feature 'imag', but image, label, weight; name one"):
        Pairs("label", names).of(COLUMNS)


def test_a_pair_is_asked_for_by_both() -> None:
    assert Pairs.of_arguments(None, None) is None
    assert Pairs.of_arguments("image", "label") == Pairs("image", "label")
    with pytest.raises(ConfigError, match="inputs= is given without targets="):
        Pairs.of_arguments("image", None)
    with pytest.raises(ConfigError, match="targets= is given without inputs="):
        Pairs.of_arguments(None, "label")
