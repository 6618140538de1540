from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

import streamrec as sr
from streamrec import kernel
from streamrec.datasets.indexes import IndexCheck
from streamrec.datasets.verify import ShardReport, check, index_of
from streamrec.errors import (
    MalformedIndex,
    StaleIndex,
)
from streamrec.formats.shards.index import Index
from streamrec.formats.shards.index_names import index_url
from tests.stores.http_server import serving
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.both_kernels

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
    said = (
        "the index says that the shard has 361 bytes and 11 records, and it has 360 and 10 intact"
    )
    assert messages(found) == [f"{said} ones"]
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
