from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import (
    ConfigError,
    DataError,
    MalformedExample,
    MissingFeature,
    StoreUnavailable,
    WrongFeatureType,
)
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import encode_example, encode_sequence_example
from streamrec.formats.examples.specs import FixedLenFeature, VarLenFeature
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.open import Stores
from tests.pipeline.small_datasets import settings_of, write, write_index
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path


FIRST = frame(encode_example({"x": 1}))


def keep_those_with_x(columns: Mapping[str, Any]) -> Any:
    return columns["x"] > 0


@asynchronous
async def test_features_are_inferred_from_the_first_records(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").touch()
    (tmp_path / "b.tfrecord").write_bytes(frame(encode_example({"x": [1, 2], "y": b"z"})))
    dataset = await Dataset.open(settings_of(str(tmp_path / "*"), features="infer"))
    features = dataset.settings.features
    assert isinstance(features, dict)
    assert sorted(features) == ["x", "y"]
    assert list(features["x"]["shape"]) == [2]
    await dataset.aclose()


@asynchronous
async def test_features_are_inferred_from_other_shards_too(tmp_path: Path) -> None:
    """A gap, or a list of another length, may be in one of them alone."""
    for name, record in (("a", {"x": 1, "y": 2}), ("b", {"x": 1}), ("c", {"x": [1, 2], "y": 2})):
        (tmp_path / name).write_bytes(frame(encode_example(record)))
    dataset = await Dataset.open(settings_of(str(tmp_path / "*"), features="infer"))
    assert dataset.settings.features == describe(
        {"x": VarLenFeature("int64"), "y": VarLenFeature("int64")}
    )
    await dataset.aclose()


@pytest.mark.parametrize("settings", [{}, {"filter": keep_those_with_x}], ids=["", "filter"])
@pytest.mark.parametrize(
    ("later", "kind"), [({"y": 1}, MissingFeature), ({"x": [1, 2]}, WrongFeatureType)]
)
@asynchronous
async def test_an_error_says_that_the_features_were_inferred(
    later: dict[str, Any], kind: type[DataError], settings: dict[str, Any], tmp_path: Path
) -> None:
    shard = tmp_path / "a"
    shard.write_bytes(600 * FIRST + frame(encode_example(later)))
    words = "the specs were inferred from .*: give those that `streamrec info` prints"
    for features in ("infer", describe({"x": FixedLenFeature((), "int64")})):
        dataset = await Dataset.open(settings_of(str(shard), features=features, **settings))
        async with dataset.run(rank=0, world_size=1, batch_size=601, position=None) as run:
            with pytest.raises(kind):
                await run.receive()
            with pytest.raises(kind) as caught:
                await run.receive()
        await dataset.aclose()
        assert len(re.findall(words, str(caught.value))) == (features == "infer")


@asynchronous
async def test_nothing_to_infer_features_from(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(ConfigError, match=r"all shards are empty \(the first is .*/a.tfrecord\)"):
        await Dataset.open(settings_of(str(tmp_path / "*"), features="infer"))


@pytest.mark.parametrize(
    ("second", "kind", "words", "fields"),
    [
        (b"\xff", MalformedExample, "not a serialized", {}),
        (encode_example({"x": b"y"}), WrongFeatureType, "holds bytes", {"feature": "x"}),
    ],
    ids=["no Example", "another kind"],
)
@asynchronous
async def test_a_record_that_features_cannot_be_inferred_from_is_named(
    second: bytes, kind: type[DataError], words: str, fields: dict[str, str], tmp_path: Path
) -> None:
    source = tmp_path / "a.tfrecord"
    source.write_bytes(FIRST + frame(second))
    with pytest.raises(kind, match=words) as caught:
        await Dataset.open(settings_of(str(source), features="infer"))
    place = {"url": str(source), "offset": len(FIRST), "record": 1}
    assert caught.value.fields() == place | fields


@asynchronous
async def test_the_very_first_record_is_named_too(tmp_path: Path) -> None:
    source = tmp_path / "a.tfrecord"
    source.write_bytes(frame(b"\xff"))
    with pytest.raises(MalformedExample) as caught:
        await Dataset.open(settings_of(str(source), features="infer"))
    assert caught.value.fields() == {"url": str(source), "offset": 0, "record": 0}


@asynchronous
async def test_features_that_are_not_inferred_are_refused_with_their_place(tmp_path: Path) -> None:
    source = tmp_path / "a.tfrecord"
    source.write_bytes(FIRST + frame(encode_sequence_example(None, {"x": []})))
    words = rf"{source}, offset {len(FIRST)}, record 1: the record is a SequenceExample"
    with pytest.raises(ConfigError, match=words):
        await Dataset.open(settings_of(str(source), features="infer"))


class Silent:
    """A store that never answers."""

    @asynccontextmanager
    async def open_range(self, *_: Any, **__: Any) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    async def list(self, *_: Any, **__: Any) -> AsyncIterator[ObjectInfo]:
        await asyncio.Event().wait()
        yield ObjectInfo("")

    async def aclose(self) -> None:
        """Do nothing, as nothing is open."""


@pytest.mark.parametrize(
    ("source", "settings", "words"),
    [
        ("memory://x/*", {}, r"memory://x/\*: the listing stalls: .* after 0 names"),
        ("memory://x/a", {"features": "infer"}, "memory://x/a: opening stalls: inferring"),
        ("memory://x/a", {"index": True}, "memory://x/.*: opening stalls: reading the index"),
        ("memory://x/a", {"index": "memory://i"}, "memory://i: opening stalls"),
    ],
    ids=["listing", "features", "an index beside the shards", "an index elsewhere"],
)
@asynchronous
async def test_a_store_that_never_answers(
    source: str, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stores, "store_for", lambda *_: Silent())
    with pytest.raises(StoreUnavailable, match=words):
        await Dataset.open(settings_of(source, stall_timeout=0.01, **settings))


def compression_of(source: str) -> str:
    """Return the compression of a dataset with an index beside its shards."""

    async def main() -> str:
        dataset = await Dataset.open(settings_of(source, index=True))
        await dataset.aclose()
        return dataset.settings.compression

    return asyncio.run(main())


def test_an_index_of_no_record(tmp_path: Path) -> None:
    source = write(tmp_path, ((), ()))
    write_index(source, 200)
    with pytest.raises(ConfigError, match="counts no record"):
        compression_of(source)


def test_with_an_index_nothing_is_looked_for_as_compressed(tmp_path: Path) -> None:
    source = write(tmp_path, ((10,), (20,)))
    write_index(source, 200)
    assert compression_of(source) == "none"
