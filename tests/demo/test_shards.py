from __future__ import annotations

from typing import TYPE_CHECKING

import streamrec
from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.demo.plan import FEATURES
from streamrec.demo.shards import write_shards
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
