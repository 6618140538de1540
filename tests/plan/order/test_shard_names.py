from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.plan.order.shard_names import ShardNames, Task, owned_shards


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


@pytest.mark.parametrize("template", ["", "gs://b/", "*.tfrecord", "a-*-*", "a?", "a@8", "{1..2}"])
def test_templates_that_name_no_shard(template: str) -> None:
    with pytest.raises(ConfigError, match="gives shards no name; give one such as"):
        ShardNames.parse(template)


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
