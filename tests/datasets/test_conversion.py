from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from streamrec.datasets.conversion import Conversion
from streamrec.datasets.convert import Destination, Shuffle
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError
from streamrec.plan.order.shard_names import Task
from streamrec.plan.order.splits import Splits
from tests.datasets.datasets import contents, names, records
from tests.sources.tables import NAMES, ROWS, TABLE

if TYPE_CHECKING:
    from pathlib import Path


def conversion(into: Path, task: Task = Task(0, 1)) -> Conversion:
    return Conversion(
        str(TABLE),
        Destination(f"{into}/", task, shards=4),
        options={"key": "seconds"},
        splits=Splits.parse("train=0.5,test=0.5"),
        shuffle=Shuffle(1),
        workers=1,
    )


def test_it_is_run(tmp_path: Path) -> None:
    described = conversion(tmp_path)
    source = described.open()
    assert described.run(source, dry_run=True).splits[0].bytes
    assert names(tmp_path) == []
    outcome = described.run(source)
    assert sum(split.records for split in outcome.splits) == len(ROWS)
    assert len(records(tmp_path, "train")) == 2


def test_tasks_in_other_processes(tmp_path: Path) -> None:
    """A description that was pickled gives the same bytes as the task's own."""
    for name in "ab":
        (tmp_path / name).mkdir()
    for number in range(2):
        task = conversion(tmp_path / "a", Task(number, 2))
        expected = task.run(task.open())
        sent = pickle.loads(pickle.dumps(conversion(tmp_path / "b")))
        found = pickle.loads(pickle.dumps(sent.run_task(number, 2)))
        assert [s.records for s in found.splits] == [s.records for s in expected.splits]
    for name in "ab":
        for split in ("train", "test"):
            sr.merge_index(tmp_path / name / f"{split}.tfrecord")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_tasks_that_read_files_of_their_own_keep_the_order(tmp_path: Path) -> None:
    source = tmp_path / "tables"
    source.mkdir()
    for number, row in enumerate(ROWS[:7]):
        (source / f"{number}.csv").write_text(f"{','.join(NAMES)}\n{','.join(row)}\n")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for into, tasks in ((whole, 1), (parts, 3)):
        into.mkdir()
        where = Destination(f"{into}/data.tfrecord", Task(0, 1), shard_bytes=1000)
        for number in range(tasks):
            Conversion(str(source), where, workers=1).run_task(number, tasks)
        if tasks > 1:
            sr.merge_index(into / "data.tfrecord")
    found, expected = (list(chain(*records(place, "data"))) for place in (parts, whole))
    assert found == expected


def test_no_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, here = Destination("out/", Task(0, 1), shards=1), f"{tmp_path}/"
    for source, expected in [
        ("x-{00..11}.csv", f"{here}x-{{00..11}}.csv"),
        ("s3://bucket/x.csv", "s3://bucket/x.csv"),
        ("zip://x.csv::a.zip", f"zip://x.csv::{here}a.zip"),
        ("zip://x.csv::s3://bucket/a.zip", "zip://x.csv::s3://bucket/a.zip"),
        ("package.module:rows", "package.module:rows"),
    ]:
        found = Conversion(source, place).anywhere()
        assert (found.source, found.destination.template) == (expected, f"{here}out/")
    options = {"metadata_files": ("list",), "vocab_file": "v", "dupe_factor": 1}
    assert Conversion("", place, "bert", options).anywhere().options == {
        "metadata_files": [f"{here}list"],
        "input_files_prefix": here,
        "vocab_file": f"{here}v",
        "dupe_factor": 1,
    }
    with pytest.raises(ConfigError, match="there is no such file or directory"):
        Conversion("none", place).anywhere()


def test_a_source_in_a_store(tmp_path: Path) -> None:
    with DevStore() as store:
        store.put("tables/x.csv", TABLE.read_bytes())
        place = Destination(f"{tmp_path}/", Task(0, 1), shards=1)
        described = Conversion("s3://tables/x.csv", place, storage_options=store.storage_options)
        sent = pickle.loads(pickle.dumps(described.anywhere()))
        assert sent.run_task(0, 1).splits[0].records == len(ROWS)
    assert "secret" not in repr(described)


def test_a_task_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task is"):
        conversion(tmp_path).run_task(2, 2)


def test_a_small_table_is_read_by_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.datasets.conversion.usable_cores", lambda: 4)
    table = tmp_path / "x.csv"
    table.write_text("a\n1\n")
    described = Conversion(str(table), Destination(f"{tmp_path}/", Task(0, 1)))
    source = described.open()
    assert described.workers_for(source) == 1
    assert replace(described, workers=3).workers_for(source) == 3
    monkeypatch.setattr("streamrec.datasets.conversion.SMALL", source.total)
    assert described.workers_for(source) == 4
    half = replace(described, destination=Destination(f"{tmp_path}/", Task(0, 2)))
    assert half.workers_for(source) == 1
    assert replace(described, kind="bert").workers_for(source) == 4
