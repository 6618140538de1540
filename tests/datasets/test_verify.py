from __future__ import annotations

import asyncio
import gzip
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.datasets.verify import ShardReport, check, index_of
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import (
    ConfigError,
    CorruptCompression,
    CorruptLength,
    CorruptRecord,
    ObjectNotFound,
    OutOfMemory,
    RecordTooLarge,
    TruncatedShard,
)
from streamrec.formats.shards.compression import HEAD, Compressor, detect
from streamrec.formats.shards.tfrecord import frame
from tests.formats.damaged_shards import damaged_shards, oracle
from tests.support import examples

pytestmark = pytest.mark.both_kernels

FRAMES = [frame(bytes([i]) * 10 * i) for i in range(20)]
SHARD = b"".join(FRAMES)


def checked(*urls: object, **options: object) -> list[ShardReport]:
    return asyncio.run(check([str(url) for url in urls], **options))  # type: ignore[arg-type]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_whole_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.datasets.verify.RANGE", 64)
    for number in range(12):
        write(tmp_path / f"s-{number:02}", SHARD[: sum(map(len, FRAMES[:number]))])
    seen: list[tuple[int, int]] = []
    reports = checked(
        tmp_path / "s-*",
        chunk_bytes=100,
        progress=lambda _, done, total: seen.append((done, total)),
    )
    assert [report.records for report in reports] == list(range(12))
    assert not any(report.faults for report in reports)
    size = sum(report.size for report in reports)
    assert seen[-1] == (size, size)
    index = index_of(reports)
    assert index.records == 66
    assert [entry.name for entry in index.entries] == [f"s-{number:02}" for number in range(12)]
    assert all(len(entry.crcs) == len(entry.begins) for entry in index.entries)
    assert all(0 not in entry.crcs for entry in index.entries)


def damage(place: int) -> bytes:
    return SHARD[:place] + bytes([SHARD[place] ^ 1]) + SHARD[place + 1 :]


BEGIN_OF_9 = sum(map(len, FRAMES[:9]))


@pytest.mark.parametrize("size", [13, 64, 1 << 20])
def test_behind_a_corrupt_payload_it_goes_on(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.datasets.verify.RANGE", size)
    data = bytearray(damage(BEGIN_OF_9 + 12))
    data[BEGIN_OF_9 + len(FRAMES[9]) + 14] ^= 1
    data[-1] ^= 1
    (report,) = checked(write(tmp_path / "s", bytes(data)))
    assert [(type(f), f.fields()["record"]) for f in report.faults] == [
        (CorruptRecord, 9),
        (CorruptRecord, 10),
        (CorruptRecord, 19),
    ]
    assert report.faults[0].fields()["offset"] == BEGIN_OF_9
    assert report.records == 20
    assert report.unread == 0


@pytest.mark.parametrize("size", [13, 64, 1 << 20])
def test_behind_a_corrupt_length_it_goes_on(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.datasets.verify.RANGE", size)
    data = damage(BEGIN_OF_9)
    (report,) = checked(write(tmp_path / "s", data[:-2] + b"??"))
    assert [(type(f), f.fields()["record"]) for f in report.faults] == [
        (CorruptLength, 9),
        (CorruptRecord, 19),
    ]
    assert report.records == 20
    assert report.lost == len(FRAMES[9]) + len(FRAMES[19])
    assert report.unread == 0
    with pytest.raises(CorruptLength):
        index_of([report])


def test_garbage_between_records(tmp_path: Path) -> None:
    data = SHARD[:BEGIN_OF_9] + b"nothing that anyone knows" + SHARD[BEGIN_OF_9:]
    (report,) = checked(write(tmp_path / "s", data))
    (fault,) = report.faults
    assert isinstance(fault, CorruptLength)
    assert fault.offset == BEGIN_OF_9
    assert (report.records, report.lost) == (20, len("nothing that anyone knows"))


@settings(max_examples=examples(50))
@given(
    shard=damaged_shards(),
    size=st.sampled_from([5, 64, 1 << 20]),
    packed=st.sampled_from([None, "gzip", "zstd"]),
)
def test_every_fault_is_named_by_the_rules_of_the_pipeline(
    shard: bytes, size: int, packed: Any
) -> None:
    if packed is None and detect(shard[:HEAD]) != "none":
        return  # it is no plain shard any more
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamrec.datasets.verify.RANGE", size)
        (report,) = checked(write(Path(directory) / "s", compressed(packed, shard)))
    whole, gaps = oracle(shard)
    assert [(f.fields()["offset"], f.fields()["record"]) for f in report.faults] == [
        (gap.begin, gap.number) for gap in gaps
    ]
    assert report.records == len(whole) + sum(gap.exact for gap in gaps)
    assert report.lost == sum(gap.end - gap.begin for gap in gaps)
    assert report.unread == 0


def compressed(kind: Any, shard: bytes) -> bytes:
    if kind is None:
        return shard
    stream = Compressor(kind)
    return stream.compress(shard) + stream.finish()


def test_a_shard_that_was_cut(tmp_path: Path) -> None:
    (report,) = checked(write(tmp_path / "s", SHARD[:-3]))
    (fault,) = report.faults
    assert isinstance(fault, TruncatedShard)
    assert report.records == 19


@pytest.mark.parametrize(("kind", "pack"), [("gzip", gzip.compress), ("zlib", zlib.compress)])
def test_compressed_shards_are_checked_and_not_indexed(
    tmp_path: Path, kind: str, pack: type[bytes]
) -> None:
    good = pack(SHARD)
    reports = checked(write(tmp_path / "a", good), write(tmp_path / "b", good[:-6]))
    assert [report.compression for report in reports] == [kind, kind]
    assert reports[0].records == 20
    assert not reports[0].faults
    assert isinstance(reports[1].faults[0], TruncatedShard)
    with pytest.raises(ConfigError, match=f"compressed .{kind}."):
        index_of(reports)


def test_damage_in_a_compressed_stream(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(SHARD))
    data[-8] ^= 1  # its checksum
    (report,) = checked(write(tmp_path / "s.gz", bytes(data)))
    assert [type(fault) for fault in report.faults] == [CorruptCompression]
    assert 0 < report.unread <= len(data)


def test_faults_before_that_of_the_compressed_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.datasets.verify.INFLATED", 100)
    data = gzip.compress(damage(BEGIN_OF_9)) + gzip.compress(SHARD[:50]) + b"junk"
    (report,) = checked(write(tmp_path / "s.gz", data))
    assert [type(fault) for fault in report.faults] == [CorruptLength, CorruptCompression]
    (fields,) = [fault.fields() for fault in report.faults[1:]]
    assert fields["offset"] == len(data) - 4
    assert report.unread == 4
    assert report.records == 22
    assert report.lost == len(FRAMES[9]) + 50 - len(FRAMES[0]) - len(FRAMES[1])


def test_a_plain_shard_that_is_to_be_compressed(tmp_path: Path) -> None:
    (report,) = checked(write(tmp_path / "s.gz", b"?" * 40))
    assert [type(fault) for fault in report.faults] == [CorruptCompression]
    assert (report.records, report.lost, report.unread) == (0, 0, 40)


def test_a_shard_that_is_not_there_is_a_fault_of_its_own(tmp_path: Path) -> None:
    reports = checked(tmp_path / "a", write(tmp_path / "b", SHARD))
    assert [type(fault) for fault in reports[0].faults] == [ObjectNotFound]
    assert reports[1].records == 20
    assert reports[0].faults[0].fields()["offset"] == 0
    with pytest.raises(ObjectNotFound, match="no object matches"):
        checked(tmp_path / "none-*")


def test_names_are_asked_for_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.datasets.verify.RANGE", 100)
    with DevStore() as store:
        store.put("data/s-0", SHARD)
        store.faults = [FaultRule(nth=2, status=503)]
        (report,) = checked("s3://data/s-0", storage_options=store.storage_options)
        assert report.faults == []
        assert (report.records, report.size) == (20, len(SHARD))


def test_wrong_options_are_said_as_they_are() -> None:
    with pytest.raises(ConfigError, match="no option 'endpoint_url'"):
        checked("http://127.0.0.1:9/s", storage_options={"endpoint_url": "x"})


@pytest.mark.parametrize("kind", ["none", "gzip", "zlib", "zstd"])
@pytest.mark.parametrize("size", [13, 1 << 20])
def test_a_record_that_is_too_large_is_passed_over(
    tmp_path: Path, kind: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.datasets.verify.RANGE", size)
    data = FRAMES[3] + frame(bytes(500)) + FRAMES[4]
    if kind != "none":
        stream = Compressor(kind)
        data = stream.compress(data) + stream.finish()
    path = write(tmp_path / "s", data)
    (report,) = checked(path, largest=499)
    assert [(type(fault), fault.fields()["offset"]) for fault in report.faults] == [
        (RecordTooLarge, len(FRAMES[3]))
    ]
    assert (report.records, report.lost) == (3, 516)
    (report,) = checked(path, largest=500)
    assert (report.records, report.faults) == (3, [])


def test_no_memory_is_a_fault_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr("streamrec.datasets.verify.FrameScanner.scan", refuse)
    path = write(tmp_path / "s", SHARD)
    (report,) = checked(path)
    (fault,) = report.faults
    assert isinstance(fault, OutOfMemory)
    assert fault.fields() == {"url": str(path)}
