from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.plan.splits import Splits, text_keys
from streamrec.values.columns import BytesColumn

THREE = Splits.parse("train=0.8,validation=0.1,test=0.1")


def test_the_form_of_the_option() -> None:
    assert THREE.names == ("train", "validation", "test")
    assert THREE.fractions == {"train": 0.8, "validation": 0.1, "test": 0.1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train", "the split 'train' has no fraction"),
        ("train=0.9,train=0.1", "the split 'train' is named twice"),
        ("train=0.9,test=0.2", "whose sum is 1"),
        ("train=1.5,test=-0.5", "positive ones"),
        ("train=nan", "positive ones"),
        ("a/b=1", "a split has the name 'a/b'"),
    ],
)
def test_wrong_splits(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Splits.parse(text)


def test_a_key_s_split_is_the_same_for_ever() -> None:
    keys = [b"%d" % number for number in range(20)]
    assert "".join(THREE.names[n][0] for n in THREE.of(keys)) == "ttttttttttttvttvtttt"


def test_the_fractions_are_kept() -> None:
    counts = np.bincount(THREE.of([b"%d" % number for number in range(20_000)]))
    assert np.abs(counts / 20_000 - [0.8, 0.1, 0.1]).max() < 0.01


@given(st.lists(st.binary(max_size=5)))
def test_a_split_depends_on_the_key_alone(keys: list[bytes]) -> None:
    alone = [int(THREE.of([key])[0]) for key in keys]
    assert THREE.of(keys).tolist() == alone
    column = BytesColumn.of([b"before", *keys])
    assert THREE.of(BytesColumn(column.values, column.offsets[1:])).tolist() == alone


def test_one_split_takes_all() -> None:
    assert Splits({"all": 1.0}).of([b"a", b"b"]).tolist() == [0, 0]


def test_templates() -> None:
    found = Splits.parse("a=0.5,b=0.5").templates("s3://bucket/{split}/x-{split}.tfrecord")
    assert found == {"a": "s3://bucket/a/x-a.tfrecord", "b": "s3://bucket/b/x-b.tfrecord"}
    with pytest.raises(ConfigError, match=r"put \{split\} where the name of each belongs"):
        THREE.templates("x.tfrecord")


def test_keys_of_features() -> None:
    assert text_keys("id", np.array([1, -20])).to_list() == [b"1", b"-20"]
    column = BytesColumn.of([b"a"])
    assert text_keys("name", column) is column
    with pytest.raises(ConfigError, match="feature x is float32, and divides no records"):
        text_keys("x", np.ones(2, np.float32))
