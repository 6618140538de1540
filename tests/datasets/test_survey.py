from __future__ import annotations

import asyncio
import gzip
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.datasets import survey as module
from streamrec.datasets.survey import FEW, PlacedRecord, Selection, Survey, groups, survey
from streamrec.datasets.writer import TFRecordWriter
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    CorruptRecord,
    ObjectNotFound,
    StoreUnavailable,
    TruncatedShard,
)
from streamrec.formats.examples.example import encode_example, encode_sequence_example
from streamrec.formats.examples.specs import FixedLenFeature, VarLenFeature
from streamrec.formats.shards.tfrecord import frame

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


pytestmark = pytest.mark.both_kernels


def write_shard(path: Path, payloads: list[bytes]) -> str:
    path.write_bytes(b"".join(map(frame, payloads)))
    return str(path)


def read(selection: Selection) -> list[PlacedRecord]:
    found = list(groups(selection))
    assert all(found), "no group is empty"
    return [record for group in found for record in group]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    directory = tmp_path_factory.mktemp("shards")
    counts = {"a": 300, "b": 0, "c": 5}
    return tuple(
        write_shard(directory / name, [f"{name}{i}".encode() for i in range(count)])
        for name, count in counts.items()
    )


@pytest.fixture(scope="module")
def short_shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return shards whose names end with the number of their records."""
    directory = tmp_path_factory.mktemp("short")
    return tuple(
        write_shard(directory / f"{name}{count}", [b"%d" % i for i in range(count)])
        for name, count in {"c": 1, "a": 3, "b": 2}.items()
    )


def everything(shards: tuple[str, ...]) -> list[PlacedRecord]:
    first, _, last = shards
    return [
        *(PlacedRecord(f"a{i}".encode(), first, i) for i in range(300)),
        *(PlacedRecord(f"c{i}".encode(), last, i) for i in range(5)),
    ]


def test_all(shards: tuple[str, ...]) -> None:
    assert read(Selection(shards)) == everything(shards)


@given(count=st.integers(1, 310) | st.none(), skip=st.integers(0, 304))
def test_some(shards: tuple[str, ...], count: int | None, skip: int) -> None:
    expected = everything(shards)[skip : None if count is None else skip + count]
    assert read(Selection(shards, count, skip=skip)) == expected


@given(skip=st.integers(0, 30), named=st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_shards_come_in_the_order_and_as_often_as_they_are_named(
    short_shards: tuple[str, ...], skip: int, named: list[int]
) -> None:
    urls = tuple(short_shards[k] for k in named)
    expected = [PlacedRecord(b"%d" % i, url, i) for url in urls for i in range(int(url[-1]))]
    skip %= len(expected)
    assert read(Selection(urls, skip=skip)) == expected[skip:]


def test_from_an_offset(shards: tuple[str, ...]) -> None:
    found = read(Selection(shards[:1], offset=len(frame(b"a0")) * 2))
    assert [record.payload for record in found[:2]] == [b"a2", b"a3"]


def test_from_the_end(shards: tuple[str, ...]) -> None:
    assert read(Selection(shards[2:], offset=5 * len(frame(b"c0")))) == []


def test_an_offset_into_several(shards: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="need one shard, but the source has 3"):
        read(Selection(shards, offset=1))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound):
        read(Selection((str(tmp_path / "none"),)))


def test_few_records_are_read_sparingly() -> None:
    few, many = (Selection(("x",), n).settings() for n in (FEW, FEW + 1))
    assert few.max_concurrency == 1
    assert many.max_concurrency == "auto"
    assert Selection(("x",)).settings().memory_budget == many.memory_budget


def test_the_reader_may_stop(shards: tuple[str, ...]) -> None:
    for group in groups(Selection(shards)):
        assert group[0].payload == b"a0"
        break


def look(*urls: str, scan: bool = False, options: Mapping[str, Any] | None = None) -> Survey:
    return asyncio.run(survey(urls, options or {}, scan=scan))


def write(path: Path, *payloads: bytes) -> str:
    path.write_bytes(b"".join(map(frame, payloads)))
    return str(path)


def examples(count: int) -> list[bytes]:
    return [encode_example({"id": i, "text": b"x" * 100}) for i in range(count)]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is larger than 1 kB is sampled, by 20 records."""
    monkeypatch.setattr(module, "SMALL", 1000)
    monkeypatch.setattr(module, "SAMPLE_RECORDS", 20)


class TestCounting:
    def test_small_shards_are_counted(self, tmp_path: Path) -> None:
        urls = [write(tmp_path / f"{i}", *examples(i)) for i in range(4)]
        found = look(*urls)
        assert (found.shards, found.records, found.estimated) == (tuple(urls), 6, False)
        assert found.bytes == sum(len(frame(payload)) for i in range(4) for payload in examples(i))
        assert found.looked_at == 6

    @pytest.mark.usefixtures("large")
    def test_large_ones_are_estimated(self, tmp_path: Path) -> None:
        write(tmp_path / "one", *examples(1000))
        found = look(str(tmp_path / "*"))
        assert found.estimated
        assert found.records == pytest.approx(1000, rel=0.02)
        assert 20 <= found.looked_at < 1000

    def test_many_small_ones_are_estimated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each would cost a request."""
        monkeypatch.setattr(module, "FEW_SHARDS", 9)
        for number in range(10):
            write(tmp_path / f"{number:02}", *examples(20))
        found = look(str(tmp_path / "*"))
        assert (found.estimated, found.records, found.looked_at) == (True, 200, 160)
        assert look(*found.shards[:9]).records == 180
        assert look(*found.shards, scan=True).records == 200

    @pytest.mark.usefixtures("large")
    def test_or_counted_when_asked(self, tmp_path: Path) -> None:
        found = look(write(tmp_path / "one", *examples(1500)), scan=True)
        assert (found.records, found.estimated, found.looked_at) == (1500, False, 1000)

    @pytest.mark.usefixtures("large")
    def test_a_sample_of_large_records_ends_by_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "SAMPLE_BYTES", 1)
        found = look(write(tmp_path / "one", *[b"\n\0" * 50_000] * 4))
        assert found.records == 4

    def test_progress(self, tmp_path: Path) -> None:
        said: list[tuple[str, int, int]] = []
        url = write(tmp_path / "one", *examples(3))
        size = (tmp_path / "one").stat().st_size
        asyncio.run(survey([url], {}, progress=lambda *facts: said.append(facts)))
        assert said[-1] == ("reading", size, size)


class TestFeatures:
    def test_inferred(self, tmp_path: Path) -> None:
        payloads = [encode_example({"id": i, "n": [1.0] * i}) for i in range(3)]
        found = look(write(tmp_path / "one", *payloads))
        expected = {"id": FixedLenFeature((), "int64"), "n": VarLenFeature("float32")}
        assert (found.features, found.note) == (expected, None)

    def test_no_examples(self, tmp_path: Path) -> None:
        url = write(tmp_path / "one", encode_example({}), b"\xff\xff")
        found = look(url)
        assert found.features is None
        assert f"record 1 of {url} is not a tf.train.Example" in str(found.note)

    def test_of_several_shards_the_one_is_named(self, tmp_path: Path) -> None:
        urls = [
            write(tmp_path / "one", encode_example({"a": 1}), encode_example({"a": 2})),
            write(tmp_path / "two", encode_example({"a": 3}), encode_example({"a": b"1"})),
        ]
        assert f"{urls[1]}, record 1, feature a: the feature holds bytes" in str(look(*urls).note)

    def test_sequence_examples(self, tmp_path: Path) -> None:
        url = write(tmp_path / "one", encode_sequence_example(None, {"x": []}))
        assert f"{url}, record 0: the record is a SequenceExample" in str(look(url).note)

    def test_kinds_that_differ(self, tmp_path: Path) -> None:
        payloads = encode_example({"a": 1}), encode_example({"a": b"1"})
        found = look(write(tmp_path / "one", *payloads))
        assert found.records == 2
        assert "feature a" in str(found.note)

    def test_no_records(self, tmp_path: Path) -> None:
        found = look(write(tmp_path / "one"))
        assert (found.records, found.features, found.note) == (0, None, "there are no records")


class TestCompression:
    @pytest.mark.parametrize("name", ["gzip", "zlib", "zstd"])
    def test_counted(self, tmp_path: Path, name: str) -> None:
        with TFRecordWriter(tmp_path / "one", name) as writer:
            writer.write_many(examples(300))
        found = look(str(tmp_path / "one"))
        assert (found.compression, found.records, found.estimated) == (name, 300, False)
        assert found.bytes == (tmp_path / "one").stat().st_size
        assert found.looked_at == 300

    @pytest.mark.usefixtures("large")
    @pytest.mark.parametrize("name", ["gzip", "zlib", "zstd"])
    def test_estimated_by_the_bytes_that_are_stored(self, tmp_path: Path, name: str) -> None:
        random = Random(1)
        with TFRecordWriter(tmp_path / "one", name) as writer:
            writer.write_many({"text": random.randbytes(50) + bytes(50)} for _ in range(1000))
        found = look(str(tmp_path / "one"))
        assert found.estimated
        assert found.records == pytest.approx(1000, rel=0.2)

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "one").write_bytes(gzip.compress(frame(b"x"))[:-1])
        with pytest.raises(TruncatedShard, match="inside its gzip stream"):
            look(str(tmp_path / "one"))

    def test_mixed(self, tmp_path: Path) -> None:
        (tmp_path / "one").write_bytes(gzip.compress(b""))
        write(tmp_path / "two", b"x")
        assert look(str(tmp_path / "*")).compression == "mixed: gzip, none"

    def test_a_length_that_looks_like_zlib(self, tmp_path: Path) -> None:
        assert look(write(tmp_path / "one", bytes(0x178))).compression == "none"


class TestStores:
    def test_names_are_asked_for_their_size(self, store: DevStore) -> None:
        names = [f"s3://data/numbers-0000{i}-of-00003.tfrecord" for i in range(3)]
        assert look(*names, options=store.storage_options).bytes == 3 * 2188
        assert store.statistics.by_kind["ListObjectsV2"] == 0

    def test_a_moment_of_trouble_is_survived(self, store: DevStore) -> None:
        store.faults = [FaultRule(first=1, status=503)]
        assert look(store.url("data/kinds.tfrecord")).records == 15

    def test_more_than_a_moment(self, store: DevStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "RETRIES", 1)
        store.faults = [FaultRule(status=503)]
        with pytest.raises(StoreUnavailable):
            look(store.url("data/kinds.tfrecord"))

    def test_a_missing_one_of_many(self, store: DevStore) -> None:
        names = [store.url(f"data/{name}.tfrecord") for name in ("kinds", "none", "sizes")]
        with pytest.raises(ObjectNotFound):
            look(*names)

    def test_a_denied_bucket(self, store: DevStore) -> None:
        with pytest.raises(AccessDenied):
            look("s3://data/kinds.tfrecord", options={**store.storage_options, "key": "wrong"})

    def test_a_corrupt_record(self, tmp_path: Path) -> None:
        url = write(tmp_path / "one", b"x")
        (tmp_path / "one").write_bytes(frame(b"x")[:-1] + b"!")
        with pytest.raises(CorruptRecord, match="CRC32C"):
            look(url)
