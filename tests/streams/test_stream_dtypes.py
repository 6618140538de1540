"""Batches have narrower dtypes where the setting says so, whoever reads; overflow is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.feeder.server.server import Feeder
from streamrec.formats.examples.descriptions import describe
from streamrec.pipeline.dataset import Dataset

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = {
    "id": sr.FixedLenFeature((), "int64"),
    "tokens": sr.RaggedFeature("int64"),
    "x": sr.FixedLenFeature((), "float32"),
}
DTYPES: dict[str, Any] = {"id": "int32", "tokens": "uint16", "x": "float16"}


@pytest.fixture
def source(tmp_path: Path) -> str:
    for shard in range(2):
        with sr.TFRecordWriter(tmp_path / f"{shard}.tfrecord") as writer:
            writer.write_many(
                {"id": 1000 * shard + i, "tokens": [*range(i)], "x": i / 2} for i in range(10)
            )
    return str(tmp_path / "*.tfrecord")


def found(batch: Any) -> dict[str, str]:
    return {n: str(getattr(column, "values", column).dtype) for n, column in batch.items()}


@pytest.mark.parametrize("engine", ["thread", "process"])
@pytest.mark.parametrize("features", [FEATURES, "infer"])
def test_of_a_stream(source: str, features: Any, engine: Any) -> None:
    with (
        sr.open(source, features, batch_size=4, engine="thread") as wide,
        sr.open(source, features, batch_size=4, engine=engine, dtypes=DTYPES) as narrow,
    ):
        for one, other in zip(wide, narrow, strict=True):
            assert found(other) == DTYPES
            assert other.next_position == one.next_position
            np.testing.assert_array_equal(other["id"], one["id"])
            np.testing.assert_array_equal(other["x"], one["x"])
            assert other["tokens"].to_list() == one["tokens"].to_list()


def test_of_single_records(source: str) -> None:
    (record,) = sr.take(sr.open(source, FEATURES, engine="thread", dtypes=np.int32), 1)
    assert (record["id"].dtype, record["tokens"].dtype) == (np.int32, np.int32)
    assert record["x"].dtype == np.float32


def test_functions_see_the_narrow_columns(source: str) -> None:
    seen = []

    def keep(columns: Any) -> Any:
        seen.append(columns["id"].dtype)
        return columns["id"] % 2 == 0

    with sr.open(
        source, FEATURES, batch_size=4, engine="thread", dtypes="int16", filter=keep
    ) as stream:
        assert all(batch["id"].dtype == np.int16 for batch in stream)
    assert set(seen) == {np.dtype(np.int16)}


async def _from_a_feeder(source: str) -> list[Any]:
    named = {"source": source, "features": describe(FEATURES), "batch_size": 4, "dtypes": DTYPES}
    dataset = await Dataset.open(validate(DatasetSettings, named))
    try:
        async with Feeder({"data": dataset}) as feeder:
            address = await feeder.listen("tcp://127.0.0.1:0")
            async with sr.connect(f"{address}/data") as stream:
                return [batch async for batch in stream]
    finally:
        await dataset.aclose()


def test_on_the_wire(source: str) -> None:
    batches = asyncio.run(_from_a_feeder(source))
    assert [found(batch) for batch in batches] == [DTYPES] * 5


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_what_does_not_fit_is_an_error_that_says_where(source: str, engine: Any) -> None:
    with sr.open(source, FEATURES, batch_size=20, engine=engine, dtypes={"id": "int8"}) as stream:
        with pytest.raises(sr.WrongFeatureType) as caught:
            next(iter(stream))
    assert (caught.value.feature, caught.value.record) == ("id", 0)
    assert "-128 to 127" in str(caught.value)


def test_a_wrong_one_is_refused_before_anything_is_read() -> None:
    with pytest.raises(sr.ConfigError, match="'idd', but the features are"):
        sr.open("nowhere", FEATURES, dtypes={"idd": "int32"})
    with pytest.raises(sr.ConfigError, match="'dtypes' has no effect on raw records"):
        sr.open("nowhere", dtypes="int32")
