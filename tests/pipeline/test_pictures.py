"""Streams of pictures that claim more than their records weigh."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image as Pillow

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.errors import BatchTooLarge, PictureTooLarge
from streamrec.formats.examples.descriptions import describe
from streamrec.pipeline.dataset import Dataset
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

SIDE = 100
SIZE = SIDE * SIDE * 3
FEATURES = {"p": sr.Image()}


def encoded(side: int) -> bytes:
    file = io.BytesIO()
    Pillow.new("RGB", (side, side), (side, 2, 3)).save(file, "JPEG")
    return file.getvalue()


def shard(directory: Path, *sides: int) -> str:
    path = directory / "pictures.tfrecord"
    with sr.TFRecordWriter(str(path)) as writer:
        for side in sides:
            writer.write({"p": encoded(side)})
    return str(path)


def sides_of(stream: Any) -> list[int]:
    return [picture.shape[0] for batch in stream for picture in batch["p"]]


def opened(url: str, **settings: Any) -> Any:
    return sr.open(url, FEATURES, engine="thread", lanes=1, **settings)


def test_batches_up_to_the_limit_come_and_one_beyond_is_named(tmp_path: Path) -> None:
    url = shard(tmp_path, *[SIDE] * 8, SIDE + 1, SIDE)
    with opened(url, batch_size=2, max_bytes=2 * SIZE) as stream:
        batches = iter(stream)
        assert [next(batches)["p"][0].shape for _ in range(4)] == [(SIDE, SIDE, 3)] * 4
        with pytest.raises(BatchTooLarge, match="max_bytes") as caught:
            next(batches)
    assert caught.value.record == 8
    assert caught.value.url == url


def test_nothing_is_skipped_for_its_size(tmp_path: Path) -> None:
    url = shard(tmp_path, 9, 10)
    skip = {"on_corrupt": "skip", "corrupt_budget": 5}
    with opened(url, batch_size=1, max_pixels=99, **skip) as stream:
        with pytest.raises(PictureTooLarge, match="100 pixels"):
            list(stream)


def test_batches_wait_for_each_other_and_all_come(tmp_path: Path) -> None:
    sides = [SIDE + k for k in range(40)]
    # Half of the budget is less than one of the batches.
    settings = {"memory_budget": "8MiB", "max_bytes": "200MiB"}
    with opened(shard(tmp_path, *[700] * 12), batch_size=4, **settings) as stream:
        assert sides_of(stream) == [700] * 12
    with opened(shard(tmp_path, *sides), batch_size=3, **settings) as stream:
        assert sides_of(stream) == sides


def test_a_stream_that_is_left_while_batches_wait_ends(tmp_path: Path) -> None:
    settings = {"memory_budget": "8MiB", "max_bytes": "200MiB"}
    with opened(shard(tmp_path, *[700] * 40), batch_size=4, **settings) as stream:
        next(iter(stream))


def test_single_records_come_one_by_one_where_they_do_not_fit_together(tmp_path: Path) -> None:
    sides = [SIDE - k for k in range(30)]
    with opened(shard(tmp_path, *sides), max_bytes=SIZE) as stream:
        assert [record["p"].shape[0] for record in stream] == sides
    with opened(shard(tmp_path, *sides, SIDE + 1), max_bytes=SIZE) as stream:
        with pytest.raises(PictureTooLarge) as caught:
            list(stream)
    assert caught.value.record == len(sides)


def test_a_filter_gets_what_fits(tmp_path: Path) -> None:
    seen: list[int] = []

    def odd(columns: Any) -> Any:
        seen.append(len(columns["p"]))
        return np.array([picture.shape[0] % 2 == 1 for picture in columns["p"]])

    sides = [SIDE - k for k in range(30)]
    with opened(shard(tmp_path, *sides), batch_size=1, max_bytes=SIZE, filter=odd) as stream:
        assert sides_of(stream) == [side for side in sides if side % 2]
    assert sum(seen) == 30
    assert max(seen) < 30


def test_a_row_that_fills_up_all_others(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.tfrecord")
    with sr.TFRecordWriter(path) as writer:
        for length in [1] * 63 + [1000]:
            writer.write({"v": np.arange(length)})
    features = {"v": sr.FixedLenSequenceFeature((), "int64", allow_missing=True)}
    size = 64 * 1000 * 8
    for limit in (size, size - 1):
        with sr.open(path, features, batch_size=64, max_bytes=limit, engine="thread") as stream:
            if limit == size:
                assert next(iter(stream))["v"].shape == (64, 1000)
                continue
            with pytest.raises(BatchTooLarge, match="feature v: the column takes") as caught:
                next(iter(stream))
            assert caught.value.record == 63


@asynchronous
async def test_who_goes_on_after_an_interrupt_misses_nothing(tmp_path: Path) -> None:
    sides = [SIDE + k for k in range(40)]
    plain = {"source": shard(tmp_path, *sides), "features": describe(FEATURES), "lanes": 1}
    dataset = await Dataset.open(validate(DatasetSettings, plain))
    found: list[int] = []
    try:
        run = dataset.run(rank=0, world_size=1, batch_size=4, position=None)
        async with run:
            for k in range(10):
                batch: Any = await run.receive()
                found += [picture.shape[0] for picture in batch["p"]]
                if k % 3 == 1:
                    run.interrupt()
    finally:
        await dataset.aclose()
    assert found == sides
