from __future__ import annotations

from typing import TYPE_CHECKING

import streamrec
from streamrec.config import DatasetSettings, validate
from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.demo.plan import FEATURES, DemoPlan, write_shards
from streamrec.formats.examples.descriptions import from_description
from tests.demo.support import SMALL

if TYPE_CHECKING:
    from pathlib import Path


def test_shards(tmp_path: Path) -> None:
    said: list[int] = []
    size = write_shards(tmp_path, SMALL, said.append)
    assert said == [4 * (i + 1) for i in range(8)]
    paths = sorted(tmp_path.iterdir())
    assert paths[-1].name == "pictures-00007-of-00008.tfrecord"
    assert sum(path.stat().st_size for path in paths) == size
    images = sample_pictures()
    source = f"{tmp_path}/pictures-*"
    stream = streamrec.open(source, from_description(FEATURES), lanes=1, engine="thread")
    with stream:
        records = list(stream)
    assert [int(record["id"]) for record in records] == list(range(SMALL.records))
    assert all(record["image"] == images[int(record["label"])] for record in records)


def test_the_numbers_fit_together() -> None:
    plan = DemoPlan()
    assert plan.records == 1024
    assert plan.steps_per_epoch * plan.ranks * plan.batch_size == plan.records
    assert plan.lanes % plan.ranks == 0
    assert 0 < plan.stop_step < plan.steps_per_epoch
    assert plan.stopped_rank in range(plan.ranks)


def test_the_features_are_valid() -> None:
    assert sorted(from_description(FEATURES)) == ["id", "image", "label"]
    validate(DatasetSettings, {"source": "x", "features": FEATURES})
