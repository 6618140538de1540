from __future__ import annotations

import asyncio
import gzip
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec import kernel
from streamrec.datasets.verify import IndexCheck, ShardReport, check, index_of
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import (
    ConfigError,
    CorruptCompression,
    CorruptLength,
    CorruptRecord,
    MalformedIndex,
    ObjectNotFound,
    OutOfMemory,
    RecordTooLarge,
    StaleIndex,
    TruncatedShard,
)
from streamrec.formats.shards.compression import HEAD, Compressor, detect
from streamrec.formats.shards.index import Index, index_url
from streamrec.formats.shards.tfrecord import frame
from tests.formats.damaged_shards import damaged_shards, oracle
from tests.stores.http_server import serving
from tests.support import asynchronous, examples

CHUNK = 80
"""Bytes: three records of 36 bytes each begin in a chunk."""
CRC = kernel.masked_crc32c(bytes(20))


class Indexed:
    """Two shards of 10 records, and the index beside them."""

    def __init__(self, directory: Path) -> None:
        self.shards = [str(directory / f"train-0000{i}-of-00002.tfrecord") for i in range(2)]
        for shard in self.shards:
            with sr.TFRecordWriter(shard) as writer:
                writer.write_many(bytes(20) for _ in range(10))
        self.place = directory / "train.streamrec-index"
        assert str(self.place) == index_url(self.shards)
        reports = asyncio.run(check(self.shards, chunk_bytes=CHUNK))
        self.index = index_of(reports)
        self.write(*self.index.entries)

    def write(self, *entries: Any) -> None:
        self.place.write_bytes(Index(entries).encode())

    def change(self, **changes: Any) -> None:
        """Change the entry of the first shard; its columns by k: by."""
        first, second = self.index.entries
        for name in ("begins", "first_records", "crcs"):
            if name in changes:
                column = list(getattr(first, name))
                for k, by in changes[name].items():
                    column[k] += by
                changes[name] = column
        self.write(replace(first, **changes), second)

    def check(self, *shards: str) -> IndexCheck:
        found, reports = check_all(list(shards) or self.shards)
        assert not any(report.faults for report in reports)
        return found


def check_all(shards: Any, **options: Any) -> tuple[IndexCheck, list[ShardReport]]:
    found = IndexCheck()
    return found, asyncio.run(check(shards, index=found, **options))


@pytest.fixture
def indexed(tmp_path: Path) -> Indexed:
    return Indexed(tmp_path)


def messages(found: IndexCheck) -> list[str]:
    assert {type(fault) for fault in found.faults} <= {StaleIndex}
    return [fault.message.split(";")[0] for fault in found.faults]


def test_an_index_that_is_right(indexed: Indexed) -> None:
    found = indexed.check()
    assert (found.url, found.faults) == (str(indexed.place), [])


def test_a_single_shard_is_compared_with_the_index_of_all(indexed: Indexed) -> None:
    indexed.change(records=11)
    assert len(indexed.check(indexed.shards[0]).faults) == 1
    assert not indexed.check(indexed.shards[1]).faults


def test_where_no_index_stands_nothing_is_compared(indexed: Indexed) -> None:
    indexed.place.unlink()
    found = indexed.check()
    assert (found.url, found.faults) == (None, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"begins": {1: 1}},
            "the index says that record 3 begins at byte 109, and record 4 begins at byte 144",
        ),
        (
            {"begins": {1: -1}},
            "the index says that record 3 begins at byte 107, and record 3 begins at byte 108",
        ),
        (
            {"begins": {2: -36}},
            "the index says that record 6 begins at byte 180, and record 5 begins at byte 180",
        ),
        (
            {"first_records": {1: -1}},
            "the index says that record 2 begins at byte 108, and record 3 begins at byte 108",
        ),
        (
            {"begins": {3: 1}, "records": 10},
            "the index says that record 9 begins at byte 325, and no record begins there or after "
            "it",
        ),
        (
            {"crcs": {1: 1}},
            "the index says that the record at byte 108 has the CRC 0x{other:08x}, and it has "
            "0x{crc:08x}",
        ),
        ({"crcs": {1: -CRC}}, None),
        ({"records": 9 + 2}, "the index says that the shard has 11 records, and it has 10"),
        ({"size": 361}, "the index says that the shard has 361 bytes, and it has 360"),
    ],
)
def test_each_number_that_is_wrong_is_named(
    indexed: Indexed, changes: dict[str, Any], message: str | None
) -> None:
    indexed.change(**changes)
    found = indexed.check()
    expected = [] if message is None else [message.format(crc=CRC, other=CRC + 1)]
    assert messages(found) == expected, "a CRC of 0 is not known"
    assert [fault.url for fault in found.faults] == indexed.shards[: len(expected)]  # type: ignore[attr-defined]


def test_all_wrong_numbers_are_named_in_the_order_of_the_shards(indexed: Indexed) -> None:
    first, second = indexed.index.entries
    indexed.write(replace(first, size=400, records=12), replace(second, records=11))
    assert messages(indexed.check()) == [
        "the index says that the shard has 12 records, and it has 10",
        "the index says that the shard has 400 bytes, and it has 360",
        "the index says that the shard has 11 records, and it has 10",
    ]


def test_a_shard_that_the_index_does_not_know(indexed: Indexed) -> None:
    indexed.write(indexed.index.entries[0])
    (message,) = messages(indexed.check())
    assert message.startswith("the index has no shard of this name (train-00001-of-00002.tfrecord)")


def test_an_index_that_is_damaged(indexed: Indexed) -> None:
    indexed.place.write_bytes(indexed.place.read_bytes()[:-1])
    (fault,) = indexed.check().faults
    assert isinstance(fault, MalformedIndex)
    assert fault.url == str(indexed.place)


def test_of_a_damaged_shard_the_size_alone_is_compared(indexed: Indexed, tmp_path: Path) -> None:
    indexed.change(records=11, size=361)
    path = tmp_path / "train-00000-of-00002.tfrecord"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    found, reports = check_all(indexed.shards)
    assert [len(report.faults) for report in reports] == [1, 0]
    assert messages(found) == ["the index says that the shard has 361 bytes, and it has 360"]
    path.unlink()
    found, reports = check_all(indexed.shards)
    assert [len(report.faults) for report in reports] == [1, 0]
    assert not found.faults


@pytest.mark.parametrize("chunk", [1, 37, 10_000])
def test_the_chunks_of_an_index_need_not_be_those_of_the_check(
    indexed: Indexed, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard comes in pieces, so that chunks begin at the ends and beginnings of blocks."""
    monkeypatch.setattr("streamrec.datasets.verify.RANGE", 50)
    indexed.write(*index_of(asyncio.run(check(indexed.shards, chunk_bytes=chunk))).entries)
    assert not indexed.check().faults


@pytest.mark.parametrize(
    "shards", [("s3://a/k", "s3://b/k"), ("s3://a/k", "gs://a/k"), ("s3://a/k", "k")]
)
def test_shards_that_share_no_directory_have_no_index(shards: tuple[str, ...]) -> None:
    stores: Any = None  # nothing is asked for
    found = IndexCheck()
    asyncio.run(found.find(stores, shards))
    assert (found.url, found.faults) == (None, [])


@asynchronous
async def test_http_shards_that_differ_in_their_query_alone(tmp_path: Path) -> None:
    def write() -> None:
        for shard in range(2):
            with sr.TFRecordWriter(tmp_path / str(shard)) as writer:
                writer.write_many(bytes([shard]) * (10 + shard) for _ in range(4 + shard))

    await asyncio.to_thread(write)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(tmp_path / request.query["shard"])

    async with serving(answer) as url:
        urls = [f"{url}/get?shard={shard}" for shard in range(2)]
        place = tmp_path / "index"
        data = index_of(await check(urls)).encode()
        place.write_bytes(data)
        for source in (urls, urls[1:], urls[:1]):
            stream = sr.open(source, index=str(place), engine="thread")
            assert len(await asyncio.to_thread(list, stream)) == sum(
                4 + int(one[-1]) for one in source
            )


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
