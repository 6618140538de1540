from __future__ import annotations

from typing import Any

import pytest

import streamrec as sr
from streamrec.errors import MissingFeature
from streamrec.formats.examples.faults import MOST_COMPARED, Need, _nearest
from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType


def nearest(name: str, there: list[str], wanted: list[str]) -> str:
    plan = ColumnPlan(name, ColumnKind.FIXED, DataType.INT64)
    features = sr.Example.FromString(sr.encode_example(dict.fromkeys(there, 1))).features.feature
    return _nearest(Need(plan, "int64"), features, wanted)


@pytest.mark.parametrize(
    ("there", "wanted", "words"),
    [
        (["labels", "image"], ["label"], " (did you mean 'labels'?)"),
        (["labels", "image"], ["label", "labels"], " (it has 'image', 'labels')"),
        (["x"], ["label"], " (it has 'x')"),
        ([], ["label"], " (it has none)"),
        (list("jihgfedcba"), ["label"], f" (it has {', '.join(map(repr, 'abcdefgh'))})"),
    ],
)
def test_a_name_that_another_spec_takes_is_not_meant(
    there: list[str], wanted: list[str], words: str
) -> None:
    assert nearest("label", there, wanted) == words


def test_so_many_names_are_compared() -> None:
    names = [f"{number:05}" for number in range(MOST_COMPARED)]
    assert nearest("labels", [*names[1:], "label"], []) == (" (did you mean 'label'?)")
    assert "did you mean" not in nearest("labels", [*names, "label"], [])


PICTURE = {
    "image/encoded": b"\x89PNG" * 100,
    "image/format": b"PNG",
    "image/filename": b"a.png",
    "image/width": 4,
    "imaga": 3,
}


@pytest.mark.parametrize(
    ("record", "name", "spec", "words"),
    [
        (PICTURE, "image", sr.Image(), "did you mean 'image/encoded'"),
        (PICTURE, "image", sr.FixedLenFeature((), bytes), "did you mean 'image/encoded'"),
        (PICTURE, "image", sr.FixedLenFeature((), int), "did you mean 'imaga'"),
        ({"image/width": 4}, "image", sr.Image(), "it has 'image/width'"),
        ({"labels": 0.5}, "label", sr.FixedLenFeature((), int), "did you mean 'labels'"),
        ({"labels": 0.5, "labe": 1}, "label", sr.FixedLenFeature((), int), "did you mean 'labe'"),
    ],
)
def test_the_name_of_a_feature_that_fits_is_meant(
    record: dict[str, Any], name: str, spec: Any, words: str
) -> None:
    with pytest.raises(MissingFeature, match=words):
        sr.parse_example([sr.encode_example(record)], {name: spec})
