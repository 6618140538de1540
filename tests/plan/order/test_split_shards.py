from __future__ import annotations

import pytest

from streamrec.errors import ConfigError
from streamrec.plan.order.split_shards import split_shards
from streamrec.plan.order.splits import Splits


def test_one_dataset() -> None:
    assert split_shards("a/x.tfrecord.gz", None, 10, 1) == [(None, "a/x.tfrecord.gz", 10)]
    assert split_shards("a/", None, None, 4) == [(None, "a/data.tfrecord", None)]


def test_a_split_has_its_fraction_and_a_shard_for_each_task() -> None:
    splits = Splits.parse("u=0.96,v=0.04")
    assert split_shards("a/x-*.tfrecord", splits, 10, 1) == [
        ("u", "a/x-u.tfrecord", 10),
        ("v", "a/x-v.tfrecord", 1),
    ]
    assert [split.shards for split in split_shards("a/", splits, 100, 8)] == [96, 8]


def test_names_in_a_directory() -> None:
    splits = Splits.parse("train=0.5,test=0.5")
    assert split_shards("gs://b/", splits, None, 1) == [
        ("train", "gs://b/train.tfrecord", None),
        ("test", "gs://b/test.tfrecord", None),
    ]


@pytest.mark.parametrize("splits", [None, Splits.parse("train=0.5,test=0.5")])
def test_a_template_without_a_name(splits: Splits | None) -> None:
    with pytest.raises(ConfigError):
        split_shards("", splits, 1, 1)
