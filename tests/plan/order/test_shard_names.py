from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.plan.order.shard_names import (
    ShardNames,
    Splits,
    Task,
    datasets_among,
    hash_of,
    owned_shards,
    split_shards,
)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("gs://b/train.tfrecord", "train-00002-of-00008.tfrecord"),
        ("gs://b/train-*.tfrecord", "train-00002-of-00008.tfrecord"),
        ("/data/train*.tfrecord", "train-00002-of-00008.tfrecord"),
        ("train.tfrecord.gz", "train-00002-of-00008.tfrecord.gz"),
        ("v1.2-train.tfrecord", "v1.2-train-00002-of-00008.tfrecord"),
        ("train", "train-00002-of-00008"),
        ("d/train-*", "train-00002-of-00008"),
    ],
)
def test_names(template: str, name: str) -> None:
    names = ShardNames.parse(template)
    assert names.shard(2, 8) == name
    assert names.directory == template[: len(template) - len(template.rpartition("/")[2])]
    assert names.shards_among([name, f"x{name}", f".{name}", name.replace("2", "x")]) == [name]


@pytest.mark.parametrize("template", ["", "gs://b/", "*.tfrecord"])
def test_templates_that_name_no_shard(template: str) -> None:
    with pytest.raises(ConfigError, match="gives shards no name; give one such as"):
        ShardNames.parse(template)


@pytest.mark.parametrize("template", ["a-*-*", "a?", "a@8", "b[1]/{1..2}", "x[", "a]*"])
def test_templates_with_special_characters(template: str) -> None:
    with pytest.raises(ConfigError, match=r"has '[][*?{@]' in the shards' names"):
        ShardNames.parse(template)


def test_an_at_sign_that_no_number_follows_is_part_of_a_name() -> None:
    assert ShardNames.parse("b[1]/me@home.tfrecord").stem == "me@home"


@pytest.mark.parametrize("directory", ["", "a/", "one\ntwo/"])
def test_the_dataset_of_a_shard(directory: str) -> None:
    names = ShardNames(directory, "a\nb", "")
    assert datasets_among([f"{directory}a\nb-00000-of-00002.tfrecord"]) == {names}


@pytest.mark.parametrize("template", ["zip://x::/a.zip", "zip://in/x.tfrecord::s3://b/a.zip"])
def test_templates_in_an_archive(template: str) -> None:
    with pytest.raises(ConfigError, match="nothing is written into an archive"):
        ShardNames.parse(template)


@given(st.integers(1, 200), st.integers(1, 20))
def test_each_shard_has_one_task(shards: int, tasks: int) -> None:
    every = [Task(number, tasks) for number in range(tasks)]
    if shards < tasks:
        with pytest.raises(ConfigError, match="at least one shard for each task"):
            owned_shards(shards, every[0])
        return
    owned = [owned_shards(shards, task) for task in every]
    assert list(chain(*owned)) == list(range(shards))
    assert {len(numbers) for numbers in owned} <= {shards // tasks, -(-shards // tasks)}


@pytest.mark.parametrize("task", [(2, 2), (-1, 2), (0, 0), 3, (0,), ("0", 1), None])
def test_what_is_no_task(task: Any) -> None:
    with pytest.raises(ConfigError, match=r"give a pair \(i, n\) with 0 <= i < n"):
        Task.of(task)


def test_hidden_names_are_found_again() -> None:
    names, task = ShardNames.parse("gs://b/a.tfrecord"), Task(3, 40)
    part, staged = names.part(task), names.staged(task, 7)
    every = [part, staged, names.shard(0, 1), names.manifest(), names.staged(Task(4, 40), 7)]
    assert names.parts_among(every) == {part: task}
    assert names.staged_among(every, task) == [staged]
    assert all(name.startswith(".") for name in (part, staged))


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


THREE = "train=0.9,validation=0.05,test=0.05"


def test_the_hash_is_the_documented_one() -> None:
    """Golden: another hash would move records of datasets that exist to other splits."""
    assert hash_of(b"") == 0xE3B0C44298FC1C14
    assert hash_of(b"cat/1.jpg") == 0x634A07BF9DEFD6C8
    keys = [f"key {n}".encode() for n in range(40)]
    found = "".join(map(str, Splits.parse("a=1/2,b=1/4,c=0.25").of(keys)))
    assert found == "0000101010010200000000102020000010001202"


def test_the_fractions_hold() -> None:
    splits = Splits.parse(THREE)
    assert splits.names == ["train", "validation", "test"]
    found = splits.of([b"%d" % n for n in range(10_000)]).tolist()
    assert [round(found.count(n) / 10_000, 2) for n in range(3)] == [0.9, 0.05, 0.05]


@given(st.binary(max_size=20), st.lists(st.binary(max_size=20), max_size=5))
def test_other_records_do_not_matter(key: bytes, others: list[bytes]) -> None:
    splits = Splits.parse(THREE)
    assert splits.of([*others, key])[-1] == splits.of([key])[0]


@pytest.mark.parametrize("text", ["", "train", "train=x", "a=0.5,a=0.5", "a=1/0", "a/b=1", "a=-1"])
def test_other_forms(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--split: .* give them as in train=0.9"):
        Splits.parse(text)


def test_the_sum_is_one() -> None:
    with pytest.raises(ConfigError, match=r"add up to 0\.7; make it 1"):
        Splits.parse("a=0.4,b=0.3")
