from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.errors import (
    ConfigError,
    CorruptLength,
    CorruptRecord,
    ObjectNotFound,
    RecordTooLarge,
    TruncatedShard,
)
from streamrec.formats.shards.tfrecord import frame
from streamrec.streams.sources import batches
from tests.feeder.support import until
from tests.forked_children import in_forked_child
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.both_kernels

RECORDS = [f"record {i}".encode() * (i % 4) for i in range(50)]
OFFSETS = [sum(len(frame(record)) for record in RECORDS[:i]) for i in range(51)]
FEW = settings(
    deadline=None,
    max_examples=examples(10),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
each_compression = pytest.mark.parametrize("compression", ["none", "gzip", "zlib", "zstd"])


def write(path: Path, compression: str = "none") -> str:
    with sr.TFRecordWriter(path, compression) as writer:
        writer.write_many(RECORDS)
    return str(path)


@pytest.mark.parametrize("beyond", [1, 16, 1 << 30])
@each_compression
def test_an_offset_behind_the_end(tmp_path: Path, compression: str, beyond: int) -> None:
    url = write(tmp_path / "x", compression)
    with pytest.raises(TruncatedShard, match=f"the shard has {OFFSETS[-1]} ") as caught:
        list(sr.read_records(url, OFFSETS[-1] + beyond))
    assert f"from byte {OFFSETS[-1] + beyond} on" in caught.value.message
    assert list(sr.read_records(url, OFFSETS[-1])) == []


def test_a_place_is_bound_when_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x")
    monkeypatch.chdir(tmp_path)
    records = sr.read_records("x")
    monkeypatch.chdir("/")
    assert list(records) == RECORDS


@each_compression
def test_all(tmp_path: Path, compression: str) -> None:
    assert list(sr.read_records(write(tmp_path / "x", compression))) == RECORDS


@FEW
@given(first=st.integers(0, 50))
@each_compression
def test_from_any_record(tmp_path: Path, compression: str, first: int) -> None:
    url = write(tmp_path / "x", compression)
    assert list(sr.read_records(url, OFFSETS[first])) == RECORDS[first:]
    assert list(sr.read_records(url, OFFSETS[first], compression=compression)) == RECORDS[first:]


@each_compression
def test_from_the_middle_of_a_record(tmp_path: Path, compression: str) -> None:
    with pytest.raises(CorruptLength) as caught:
        list(sr.read_records(write(tmp_path / "x", compression), OFFSETS[10] + 3))
    assert caught.value.offset == OFFSETS[10] + 3


# Python 3.12 and later warn of each fork of a process with several threads, as this one is.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_begins_anew_or_not_at_all(tmp_path: Path) -> None:
    url = write(tmp_path / "x")
    records = sr.read_records(url)
    assert next(records) == RECORDS[0]
    error = in_forked_child(lambda: list(records))
    assert isinstance(error, ConfigError)
    assert "was forked from the one whose thread reads" in str(error)
    assert in_forked_child(records.close) is None  # type: ignore[attr-defined]
    assert in_forked_child(lambda: list(sr.read_records(url))) == RECORDS
    assert list(records) == RECORDS[1:]


def test_nothing_happens_before_the_first_record(tmp_path: Path) -> None:
    records = sr.read_records(str(tmp_path / "none"))
    with pytest.raises(ObjectNotFound):
        next(records)


def test_it_can_be_left_early(tmp_path: Path) -> None:
    records = sr.read_records(write(tmp_path / "x"))
    assert next(iter(records)) == RECORDS[0]
    del records
    gc.collect()


@pytest.mark.parametrize("few", [1, None])
def test_nothing_of_it_is_left(
    tmp_path: Path, few: int | None, started_threads: Callable[[], set[str]]
) -> None:
    settings = validate(DatasetSettings, {"source": write(tmp_path / "x"), "batch_size": 4})
    found = batches(settings)
    assert len(list(itertools.islice(found, few))) == (few or 13)
    found.close()
    # A thread that reads a file ends by itself, soon after.
    until(lambda: not {n for n in started_threads() if n.startswith("streamrec")})


def test_records_before_a_fault_come_first(tmp_path: Path) -> None:
    path = tmp_path / "x"
    data = bytearray(b"".join(map(frame, RECORDS)))
    data[OFFSETS[8] - 1] ^= 1
    path.write_bytes(data)
    records = sr.read_records(str(path))
    assert [next(records) for _ in range(7)] == RECORDS[:7]
    with pytest.raises(CorruptRecord):
        next(records)
    assert list(sr.read_records(str(path), check_crc=False)) == RECORDS


def test_several_shards_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x1")
    write(tmp_path / "x2")
    with pytest.raises(ConfigError, match="need one shard, but the source has 2"):
        next(sr.read_records(f"{tmp_path}/x*"))
    assert list(sr.read_records(f"{tmp_path}/*2")) == RECORDS


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="'compression' is 'rar'"):
        next(sr.read_records("x", compression="rar"))


@each_compression
def test_a_record_that_is_too_large(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "x", compression)
    longest = max(map(len, RECORDS))
    assert list(sr.read_records(path, max_record_bytes=longest)) == RECORDS
    with pytest.raises(RecordTooLarge, match=f"has {longest} bytes"):
        list(sr.read_records(path, max_record_bytes=longest - 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(3):
        with sr.TFRecordWriter(tmp_path / f"part-{shard}.tfrecord") as writer:
            for record in range(4):
                writer.write(sr.encode_example({"id": record, "words": ["w"] * (record % 2)}))
    return tmp_path


class TestShards:
    def test_a_glob_is_listed(self, folder: Path) -> None:
        found = sr.shards(folder / "part-*.tfrecord")
        assert found == [f"{folder}/part-{shard}.tfrecord" for shard in range(3)]

    def test_they_can_be_split_by_hand(self, folder: Path) -> None:
        first, *rest = sr.shards(f"{folder}/*.tfrecord")
        with sr.open(first, engine="thread") as validation, sr.open(rest, engine="thread") as train:
            assert (len(list(validation)), len(list(train))) == (4, 8)

    @pytest.mark.parametrize("name", ["a%20b", "a%2520b", "%C3%A9", "100%", "a b", "a[1]", "{a,b}"])
    def test_they_can_be_read_whatever_their_names(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        url = write(tmp_path / name / f"{name}.tfrecord")
        for pattern in (f"{tmp_path}/*/*", f"file://{tmp_path}/*/*"):
            found = sr.shards(pattern)
            assert sr.shards(found) == found
            assert list(sr.read_records(found[0])) == RECORDS
            assert len(list(sr.open(found, engine="thread"))) == len(RECORDS)
        assert sr.shards(f"{tmp_path}/*/*") == [url]

    def test_names_are_not_looked_up(self) -> None:
        assert sr.shards(["s3://b/y", "s3://b/x"]) == ["s3://b/x", "s3://b/y"]

    def test_nothing_matches(self, folder: Path) -> None:
        with pytest.raises(sr.ObjectNotFound, match="no object matches"):
            sr.shards(f"{folder}/*.tfrec")

    def test_what_is_no_source(self) -> None:
        with pytest.raises(sr.ConfigError, match="cannot name shards"):
            sr.shards(5)  # type: ignore[arg-type]


class TestInferFeatures:
    def test_specs_by_name(self, folder: Path) -> None:
        assert sr.infer_features(f"{folder}/*") == {
            "id": sr.FixedLenFeature((), "int64"),
            "words": sr.VarLenFeature(bytes),
        }

    def test_a_stream_takes_them(self, folder: Path) -> None:
        features = sr.infer_features(f"{folder}/*")
        with sr.open(f"{folder}/*", features, batch_size=12, engine="thread") as stream:
            (batch,) = stream
        assert sorted(batch["id"].tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]

    def test_no_examples(self, tmp_path: Path) -> None:
        with sr.TFRecordWriter(tmp_path / "raw") as writer:
            writer.write(b"\xff\xff")
        with pytest.raises(sr.MalformedExample, match="record 0"):
            sr.infer_features(tmp_path / "raw")
