"""Arrays whose shapes are in the records, from a shard to the training loop, whoever reads."""

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
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config.keywords import Engine

FEATURES = {
    "id": sr.FixedLenFeature((), "int64"),
    "volume": sr.ShapedFeature(("deep", "high", 2), "float16", raw=True),
    "tokens": sr.ShapedFeature("form", "int64", rank=2),
}


def volume(number: int) -> Any:
    shape = (number % 4, 1 + number % 3, 2)
    return np.arange(np.prod(shape), dtype=np.float16).reshape(shape) + number


def tokens(number: int) -> Any:
    return np.full((1 + number % 2, number % 5), number)


def record(number: int, **others: Any) -> bytes:
    deep, high, _ = volume(number).shape
    own = {"id": number, "deep": deep, "high": high, "form": tokens(number).shape}
    values = {"volume": volume(number).astype("<f2").tobytes(), "tokens": tokens(number)}
    return sr.encode_example({**own, **values, **others})


def shard(tmp_path: Path, records: list[bytes]) -> str:
    path = tmp_path / "arrays.tfrecord"
    path.write_bytes(b"".join(map(frame, records)))
    return str(path)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return shard(tmp_path, [record(number) for number in range(20)])


def check(batches: list[Any]) -> None:
    assert [len(batch) for batch in batches] == [8, 8, 4]
    for batch in batches:
        for row, number in enumerate(batch["id"].tolist()):
            for name, wanted in (("volume", volume(number)), ("tokens", tokens(number))):
                assert batch[name][row].dtype == batch[name].values.dtype
                np.testing.assert_array_equal(batch[name][row], wanted)
        assert batch["volume"].values.dtype == np.float16
        batch["volume"].values[:] = 0


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_batches_of_a_plain_for(source: str, engine: Engine) -> None:
    with sr.open(source, FEATURES, batch_size=8, engine=engine) as stream:
        check(list(stream))


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_single_records(source: str, engine: Engine) -> None:
    with sr.open(source, FEATURES, engine=engine) as stream:
        for number, row in enumerate(stream):
            np.testing.assert_array_equal(row["volume"], volume(number))
            np.testing.assert_array_equal(row["tokens"], tokens(number))


@asynchronous
async def test_through_a_feeder(source: str, tmp_path: Path) -> None:
    values = {"source": source, "features": describe(FEATURES), "batch_size": 8}
    settings = validate(DatasetSettings, values)
    dataset = await Dataset.open(settings)
    async with Feeder({"arrays": dataset}) as feeder:
        address = await feeder.listen(f"unix://{tmp_path}/feeder.sock")
        async with sr.connect(f"{address}#arrays", rank=0, world_size=1) as stream:
            check([batch async for batch in stream])
    await dataset.aclose()


def test_narrowed_by_the_setting(source: str) -> None:
    options: Any = {"batch_size": 8, "engine": "thread", "dtypes": "int32"}
    with sr.open(source, FEATURES, **options) as stream:
        batch = next(stream)
    assert batch["tokens"].values.dtype == np.int32
    assert batch["volume"].values.dtype == np.float16
    np.testing.assert_array_equal(batch["tokens"][7], tokens(7))


def test_functions_get_them_and_may_give_them(source: str) -> None:
    def doubled(columns: Any) -> Any:
        arrays = columns["volume"]
        return {"id": columns["id"], "volume": sr.Arrays(2 * arrays.values, *shapes_of(arrays))}

    def shapes_of(arrays: Any) -> Any:
        return arrays.offsets, arrays.shapes

    options: Any = {"batch_size": 8, "engine": "thread", "map": doubled}
    with sr.open(source, FEATURES, **options) as stream:
        batch = next(stream)
    np.testing.assert_array_equal(batch["volume"][7], 2 * volume(7))


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_a_batch_of_corrupt_records_alone_has_arrays_of_no_values(
    tmp_path: Path, engine: Engine
) -> None:
    source = shard(tmp_path, [record(number) for number in range(4)])
    damaged = bytearray((tmp_path / "arrays.tfrecord").read_bytes())
    for number in (2, 3):
        begin = damaged.index(record(number))
        damaged[begin + 1] ^= 255
    (tmp_path / "arrays.tfrecord").write_bytes(damaged)
    options: Any = {"on_corrupt": "skip", "corrupt_budget": 2, "remainder": "pad"}
    options |= {"batch_size": 2, "lanes": 1, "steps_per_epoch": 2, "engine": engine}
    with sr.open(source, FEATURES, **options) as stream:
        *_, last = stream
    assert not last.mask.any()
    assert [array.size for array in last["volume"]] == [0, 0]


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_what_is_wrong_names_the_record(tmp_path: Path, engine: Engine) -> None:
    records = [record(number) for number in range(12)]
    records[10] = record(10, high=2**62)
    source = shard(tmp_path, records)
    with sr.open(source, FEATURES, batch_size=4, engine=engine) as stream:
        assert len(next(stream)) == len(next(stream)) == 4
        with pytest.raises(sr.WrongFeatureType, match="fits no array") as caught:
            next(stream)
    assert (caught.value.record, caught.value.feature) == (10, "volume")
    assert str(caught.value.url).endswith(source)
