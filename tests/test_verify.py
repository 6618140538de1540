from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import TYPE_CHECKING

import pytest

from streamrec.devstore import DevStore, Fault
from streamrec.errors import (
    ConfigError,
    CorruptCompression,
    CorruptLength,
    CorruptRecord,
    ObjectNotFound,
    TruncatedShard,
)
from streamrec.formats.tfrecord import frame
from streamrec.verify import ShardReport, check, index_of

if TYPE_CHECKING:
    from pathlib import Path

FRAMES = [frame(bytes([i]) * 10 * i) for i in range(20)]
SHARD = b"".join(FRAMES)


def checked(*urls: object, **options: object) -> list[ShardReport]:
    return asyncio.run(check([str(url) for url in urls], **options))  # type: ignore[arg-type]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_whole_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.verify.RANGE", 64)
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
    assert all(entry.etag for entry in index.entries)


def damage(place: int) -> bytes:
    return SHARD[:place] + bytes([SHARD[place] ^ 1]) + SHARD[place + 1 :]


BEGIN_OF_9 = sum(map(len, FRAMES[:9]))


@pytest.mark.parametrize("size", [13, 64, 1 << 20])
def test_behind_a_corrupt_payload_it_goes_on(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.verify.RANGE", size)
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


def test_behind_a_corrupt_length_nothing_is_known(tmp_path: Path) -> None:
    (report,) = checked(write(tmp_path / "s", damage(BEGIN_OF_9)))
    (fault,) = report.faults
    assert isinstance(fault, CorruptLength)
    assert report.records == 9
    assert report.unread == len(SHARD) - BEGIN_OF_9
    with pytest.raises(CorruptLength):
        index_of([report])


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


def test_a_shard_that_is_not_there_is_a_fault_of_its_own(tmp_path: Path) -> None:
    reports = checked(tmp_path / "a", write(tmp_path / "b", SHARD))
    assert [type(fault) for fault in reports[0].faults] == [ObjectNotFound]
    assert reports[1].records == 20
    with pytest.raises(ObjectNotFound, match="no object matches"):
        checked(tmp_path / "none-*")


def test_names_are_asked_for_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.verify.RANGE", 100)
    with DevStore() as store:
        store.put("data/s-0", SHARD)
        store.faults = [Fault(nth=2, status=503)]
        (report,) = checked("s3://data/s-0", storage_options=store.storage_options)
        assert report.faults == []
        assert (report.records, report.size) == (20, len(SHARD))


def test_wrong_options_are_said_as_they_are() -> None:
    with pytest.raises(ConfigError, match="not 'endpoint_url'"):
        checked("http://127.0.0.1:9/s", storage_options={"endpoint_url": "x"})
