"""Pictures, from a shard to the training loop, whoever reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.feeder.server.server import Feeder
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from tests.by_day import each_once
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config.keywords import Engine

FEATURES = {
    "id": sr.FixedLenFeature((), "int64"),
    "any": sr.Image(),
    "thumb": sr.Image((4, 5, 1)),
}


def picture(number: int) -> Any:
    random = np.random.default_rng(number)
    return random.integers(0, 256, (1 + number % 4, 2 + number % 3, 3)).astype(np.uint8)


def thumb(number: int) -> Any:
    return np.full((4, 5, 1), number, np.uint8)


def record(number: int, **others: Any) -> bytes:
    features = {"any": sr.encode_png(picture(number)), "thumb": sr.encode_png(thumb(number))}
    return sr.encode_example({"id": number, **features, **others})


def shard(tmp_path: Path, records: list[bytes]) -> str:
    path = tmp_path / "pictures.tfrecord"
    path.write_bytes(b"".join(map(frame, records)))
    return str(path)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return shard(tmp_path, [record(number) for number in range(20)])


def check(batches: list[Any]) -> None:
    assert [len(batch) for batch in batches] == [8, 8, 4]
    for batch in batches:
        numbers = batch["id"].tolist()
        assert isinstance(batch["any"], sr.Arrays)
        for number, got in zip(numbers, batch["any"], strict=True):
            np.testing.assert_array_equal(got, picture(number))
        np.testing.assert_array_equal(batch["thumb"], np.stack([thumb(k) for k in numbers]))
        batch["any"].values[:] = 0
        batch["thumb"][:] = 0


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_batches_of_a_plain_for(source: str, engine: Engine) -> None:
    with sr.open(source, FEATURES, batch_size=8, engine=engine) as stream:
        check(list(stream))


@asynchronous
async def test_batches_of_an_async_for(source: str) -> None:
    async with sr.open(source, FEATURES, batch_size=8) as stream:
        check([batch async for batch in stream])


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_single_records(source: str, engine: Engine) -> None:
    with sr.open(source, FEATURES, engine=engine) as stream:
        for number, row in enumerate(stream):
            np.testing.assert_array_equal(row["any"], picture(number))
            np.testing.assert_array_equal(row["thumb"], thumb(number))


@asynchronous
async def test_through_a_feeder(source: str, tmp_path: Path) -> None:
    values = {"source": source, "features": describe(FEATURES), "batch_size": 8}
    settings = validate(DatasetSettings, values)
    dataset = await Dataset.open(settings)
    async with Feeder({"pictures": dataset}) as feeder:
        address = await feeder.listen(f"unix://{tmp_path}/feeder.sock")
        async with sr.connect(f"{address}#pictures", rank=0, world_size=1) as stream:
            check([batch async for batch in stream])
    await dataset.aclose()


def test_the_last_batch_is_padded_with_a_picture(source: str) -> None:
    options: Any = {"batch_size": 8, "remainder": "pad", "engine": "thread"}
    with sr.open(source, FEATURES, **options) as stream:
        *_, last = stream
    assert last.mask.tolist() == [True] * 4 + [False] * 4
    np.testing.assert_array_equal(last["any"][7], picture(19))


def test_one_picture_larger_than_the_budget_comes_whole(tmp_path: Path) -> None:
    array = np.zeros((2000, 2000, 3), np.uint8)
    source = shard(tmp_path, [sr.encode_example({"p": sr.encode_png(array)})] * 3)
    options: Any = {"batch_size": 1, "memory_budget": "8MiB", "engine": "thread", "lanes": 1}
    with sr.open(source, {"p": sr.Image((2000, 2000))}, **options) as stream:
        assert [batch["p"].shape for batch in stream] == [(1, 2000, 2000, 3)] * 3


WRONG: list[tuple[Any, str, str]] = [
    ({"any": b"\x89PNG\r\n\x1a\n"}, "MalformedImage", "truncated"),
    ({"any": []}, "MissingFeature", "correct the name, or leave the spec out"),
    ({"thumb": sr.encode_png(picture(1))}, "WrongFeatureType", "2 x 3 pixels, but the spec"),
]


@pytest.mark.parametrize(("case", "engine"), each_once(WRONG, ["thread", "process"]))
def test_what_is_wrong_names_the_record(
    tmp_path: Path, engine: Engine, case: tuple[Any, str, str]
) -> None:
    others, kind, words = case
    records = [record(number) for number in range(12)]
    records[10] = record(10, **others)
    source = shard(tmp_path, records)
    with sr.open(source, FEATURES, batch_size=4, engine=engine) as stream:
        assert len(next(stream)) == len(next(stream)) == 4
        with pytest.raises(sr.DataError, match=words) as caught:
            next(stream)
    assert type(caught.value).__name__ == kind
    assert (caught.value.record, caught.value.feature) == (10, next(iter(others)))
    assert str(caught.value.url).endswith(source)
