from __future__ import annotations

import gzip
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec import encode_example, encode_jpeg
from streamrec.config import StreamSettings, validate
from streamrec.errors import ConfigError, CorruptRecord, FunctionFailed
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure import processing
from streamrec.measure.budget import BudgetSpent
from streamrec.measure.processing import measure_processing
from tests.measure.support import limits, place
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config import DatasetSettings
    from streamrec.measure.figures import Processing

pytestmark = pytest.mark.both_kernels

PICTURE = encode_jpeg(np.zeros((8, 8, 3), np.uint8))
RECORD = encode_example({"id": [7], "picture": [bytes(PICTURE)]})
SHARD = frame(RECORD) * 40
NUMBER = {"kind": "fixed", "dtype": "int64"}
FEATURES: dict[str, Any] = {"id": NUMBER, "picture": {"kind": "image"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "SECONDS", 0.0)


def settings(**values: Any) -> DatasetSettings:
    return validate(StreamSettings, {"source": ["s3://bucket/*"], "batch_size": 16, **values})


async def measured(
    values: Mapping[str, Any], shards: Mapping[str, bytes] | None = None, **allowed: Any
) -> Processing:
    async with place(shards or {"part-0": SHARD, "part-1": SHARD}, limits(**allowed)) as found:
        return await measure_processing(settings(**values), found.store, found.shards, found.budget)


@asynchronous
async def test_raw_records() -> None:
    found = await measured({})
    assert (found.records, found.bytes) == (80, 2 * len(SHARD))
    assert found.stored_bytes == found.bytes
    assert found.zstd_ratio is not None
    assert found.zstd_ratio > 10, "all records are the same"
    assert found.scan.records_per_second > 0
    assert found.crc.bytes_per_second > 0
    assert [found.decompress, found.parse, found.decode, found.transform] == [None] * 4


@asynchronous
async def test_pictures_are_decoded_behind_the_parser() -> None:
    found = await measured({"features": FEATURES})
    assert found.parse is not None
    assert found.decode is not None
    ratio = found.decode.bytes_per_second / found.decode.records_per_second
    assert ratio == pytest.approx(len(SHARD) / 40, rel=0.01)
    assert found.transform is None


@pytest.mark.parametrize("features", [{"id": NUMBER}, {"context": {"id": NUMBER}}, "infer"])
@asynchronous
async def test_without_pictures_nothing_is_decoded(features: Any) -> None:
    number_alone = frame(encode_example({"id": [7]})) * 5
    shards = {"x": number_alone if features == "infer" else SHARD}
    found = await measured({"features": features}, shards)
    assert found.parse is not None
    assert found.decode is None


@asynchronous
async def test_compressed_shards() -> None:
    stored = gzip.compress(SHARD)
    found = await measured({}, {"part-0.gz": stored})
    assert (found.records, found.stored_bytes) == (40, len(stored))
    assert found.bytes == len(SHARD)
    assert found.decompress is not None


@asynchronous
async def test_only_the_functions_count() -> None:
    def is_odd(columns: Mapping[str, Any]) -> Any:
        time.sleep(0.002)
        return columns["id"] % 2 == 1

    called: list[str] = []

    def add(columns: Mapping[str, Any]) -> Any:
        called.append("map")
        return {**columns, "twice": columns["id"] * 2}

    def keep_twice(batch: Any) -> Any:
        called.append("transform")
        return {"twice": batch["twice"]}

    functions = {"filter": is_odd, "map": add, "transform": keep_twice}
    found = await measured({"features": FEATURES, **functions})
    assert found.transform is not None
    assert 0 < found.transform.records_per_second < 16 / 0.002
    assert called == ["map", "transform"] * (len(called) // 2)
    assert called


@asynchronous
async def test_what_a_filter_drops_is_not_mapped() -> None:
    def nothing(columns: Mapping[str, Any]) -> Any:
        return columns["id"] < 0

    def fail(columns: Mapping[str, Any]) -> Any:
        raise KeyError("mapped")

    found = await measured({"features": {"id": NUMBER}, "filter": nothing, "map": fail})
    assert found.transform is not None


@asynchronous
async def test_a_function_that_fails_is_named() -> None:
    def fail(columns: Mapping[str, Any]) -> Any:
        raise KeyError("no")

    with pytest.raises(FunctionFailed, match="fail raised KeyError"):
        await measured({"map": fail})


@asynchronous
async def test_damaged_records_are_an_error() -> None:
    broken = bytearray(SHARD)
    broken[40] ^= 1
    with pytest.raises(CorruptRecord):
        await measured({}, {"part-0": bytes(broken)})


@asynchronous
async def test_a_sample_without_a_record_is_refused() -> None:
    with pytest.raises(ConfigError, match="more bytes"):
        await measured({}, {"part-0": frame(bytes(100_000))}, size=1000)


@asynchronous
async def test_the_sample_is_within_the_budget() -> None:
    with pytest.raises(BudgetSpent):
        await measured({}, requests=1)
    found = await measured({}, size=4000)
    assert found.stored_bytes <= 2000
