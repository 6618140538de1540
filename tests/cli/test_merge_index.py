from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cli.support import DATA, assert_one_sentence
from tests.cli.support import streamrec as cli

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.devstore import DevStore

SOURCE = f"{DATA}/numbers-*"


def test_tasks_become_one_dataset(tmp_path: Path) -> None:
    templates = [tmp_path / "x-train.tfrecord", tmp_path / "x-test.tfrecord"]
    options = ["--split", "train=0.5,test=0.5", "--shards", 4]
    for task in range(2):
        cli("reshard", SOURCE, tmp_path / "x.tfrecord", *options, "--task", f"{task}/2")
    done = (0, "".join(f"{template}: complete\n" for template in templates), "")
    assert cli("merge-index", *templates) == done
    assert cli("merge-index", *templates) == done
    everything = [f"{tmp_path}/x-train-*", "--against", SOURCE, "--any-order"]
    assert cli("verify", *everything).code == 1
    assert cli("verify", f"{tmp_path}/x-*", *everything[1:]).code == 0


def test_a_missing_task_is_named(store: DevStore, credentials: list[str]) -> None:
    into = "s3://data/new/x.tfrecord"
    cli("reshard", "s3://data/numbers-*", into, "--shards", 2, "--task", "1/2", *credentials)
    refused = cli("merge-index", into, *credentials)
    assert_one_sentence(
        refused, 2, "x-?????-of-?????.tfrecord", "1 of 2 tasks are not complete (0)"
    )
