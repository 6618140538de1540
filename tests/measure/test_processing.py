from __future__ import annotations

import gzip
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec import encode_example, encode_jpeg
from streamrec.config import StreamSettings, validate
from streamrec.errors import ConfigError, CorruptRecord, FunctionFailed
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure import processing
from streamrec.measure.budget import BudgetSpent
from streamrec.measure.figures import Stage
from streamrec.measure.processing import (
    SHARDS,
    ShardStart,
    UserFunctions,
    blocks_of,
    measure_processing,
    read_sample,
)
from streamrec.pipeline.batch.decoder import Decoder
from streamrec.pipeline.batch.functions import Function, Functions
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.order.shard_order import Extent
from tests.measure.support import limits, place
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config import DatasetSettings
    from streamrec.measure.figures import Processing
    from streamrec.pipeline.batch.batch import Batch


pytestmark = pytest.mark.both_kernels

CONTENT = frame(b"0123456789") * 1000


@asynchronous
async def test_shards_from_all_over_the_dataset_are_read() -> None:
    shards = {f"part-{number:02}": CONTENT for number in range(40)} | {"empty": b""}
    async with place(shards) as found:
        stored = await read_sample(found.store, found.shards, 4000, "auto")
        assert len(stored) == SHARDS
        assert len({one.url for one in stored}) == SHARDS
        assert all(one.data.tobytes() == CONTENT[:1000] for one in stored)
        assert {one.compression for one in stored} == {"none"}


@asynchronous
async def test_empty_shards_give_no_sample() -> None:
    async with place({"x": b""}) as found:
        with pytest.raises(ConfigError, match="empty"):
            await read_sample(found.store, found.shards, 4000, "auto")


@pytest.mark.parametrize("length", [200, 10**6])
def test_compressed_bytes_are_decompressed_as_far_as_they_go(length: int) -> None:
    whole = gzip.compress(np.random.default_rng(0).bytes(1000) * 50)
    data = np.frombuffer(whole[:length], np.uint8)
    stored, frames = ShardStart("x", data, "gzip").frames()
    assert gzip.decompress(whole).startswith(frames.tobytes())
    assert len(stored.data) == len(data)
    if length > len(whole):
        assert len(frames) == 50_000


@pytest.mark.parametrize(("enough", "given"), [(1 << 20, 1 << 20), (100, 8 * 2000)])
def test_no_more_is_decompressed_than_is_enough(
    enough: int, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight bytes for each that was read; zeros would give a thousand."""
    monkeypatch.setattr(processing, "ENOUGH", enough)
    data = np.frombuffer(gzip.compress(bytes(2 << 20))[:2000], np.uint8)
    _, frames = ShardStart("x", data, "gzip").frames()
    assert len(frames) == given


def test_the_blocks_are_those_of_whole_records() -> None:
    frames = np.frombuffer(CONTENT[:-3], np.uint8)
    blocks = blocks_of("x", frames, check_crc=True, most=100)
    assert sum(len(block) for block in blocks) == 999


def test_damage_in_the_first_record_is_an_error() -> None:
    frames = np.frombuffer(b"x" * 100, np.uint8)
    with pytest.raises(ValueError, match="length"):
        blocks_of("x", frames, check_crc=True, most=100)


ONE_FEATURE = {"id": {"kind": "fixed", "dtype": "int64"}}


def test_where_nothing_is_left_no_function_is_called() -> None:
    def nothing(columns: Mapping[str, Any]) -> Any:
        return columns["id"] < 0

    def never(columns: Any) -> Any:
        raise AssertionError(columns)

    functions = Functions(
        Function("filter", nothing), Function("map", never), Function("transform", never)
    )
    content = frame(encode_example({"id": [1]}))
    (block,) = blocks_of("x", np.frombuffer(content, np.uint8), check_crc=True, most=1000)
    with closing(Decoder(ONE_FEATURE, ["x"])) as decoder:
        span = RecordSpan.of(Extent(0, 0, 0), block)
        assert UserFunctions(functions, ONE_FEATURE, ["x"], decoder).seconds(span) > 0


def test_a_filter_alone_needs_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = Functions(Function("filter", lambda columns: columns["id"] > 0))
    content = frame(encode_example({"id": [1]}))
    (block,) = blocks_of("x", np.frombuffer(content, np.uint8), check_crc=True, most=1000)
    with closing(Decoder(ONE_FEATURE, ["x"])) as decoder:
        monkeypatch.setattr(decoder, "columns", None)
        span = RecordSpan.of(Extent(0, 0, 0), block)
        assert UserFunctions(functions, ONE_FEATURE, ["x"], decoder).seconds(span) > 0


def test_each_function_gets_what_the_one_before_it_gave() -> None:
    seen: list[Any] = []

    def is_even(columns: Mapping[str, Any]) -> Any:
        return columns["id"] % 2 == 0

    def tenfold(columns: Mapping[str, Any]) -> dict[str, Any]:
        return {"tens": columns["id"] * 10}

    def look(batch: Batch) -> dict[str, Any]:
        seen.append((len(batch), batch["tens"].tolist(), batch.origin.records.tolist()))
        return dict(batch)

    functions = Functions(
        Function("filter", is_even), Function("map", tenfold), Function("transform", look)
    )
    content = b"".join(frame(encode_example({"id": [number]})) for number in range(5))
    (block,) = blocks_of("x", np.frombuffer(content, np.uint8), check_crc=True, most=1000)
    with closing(Decoder(ONE_FEATURE, ["x"])) as decoder:
        users = UserFunctions(functions, ONE_FEATURE, ["x"], decoder)
        assert users.seconds(RecordSpan.of(Extent(0, 0, 0), block)) > 0
    assert seen == [(3, [0, 20, 40], [0, 2, 4])]


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


def test_noise_leaves_records_their_size() -> None:
    both = Stage(bytes_per_second=200.0, records_per_second=2.0)
    first = Stage(bytes_per_second=100.0, records_per_second=1.0)
    decode = processing._beyond(both, first)  # both together were the faster step
    assert decode.bytes_per_second / decode.records_per_second == pytest.approx(100.0)


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
