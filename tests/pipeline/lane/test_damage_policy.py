"""Which damage is read again; that a reader does what the policy says is tested with the reader."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec.errors import (
    AccessDenied,
    CorruptBudgetExceeded,
    CorruptLength,
    CorruptRecord,
    DataError,
    RecordTooLarge,
    StoreError,
    TruncatedShard,
)
from streamrec.formats.examples.example import Example
from streamrec.formats.shards.tfrecord import DamagedSpan
from streamrec.pipeline.lane.damage_policy import (
    FEW,
    CorruptionLog,
    DamagePolicy,
    Quarantine,
    corruption_log_of,
    object_name,
    with_way_on,
)
from streamrec.plan.order.shard_order import Extent
from streamrec.streams.sources import read_records
from tests.pipeline.received_ranges import SHARD, received
from tests.pipeline.small_datasets import settings_of

if TYPE_CHECKING:
    from pathlib import Path


URLS = ("s3://bucket/data/a.tfrecord", "s3://bucket/data/deep/b.tfrecord")


def damaged_span(offset: int = 16, content: bytes = b"damaged", **values: Any) -> DamagedSpan:
    facts: dict[str, Any] = {"record": 3, "records": 1, "exact": True, **values}
    fault = CorruptRecord("the CRC is wrong", offset=offset, record=3)
    return DamagedSpan(offset, np.frombuffer(content, np.uint8), fault=fault, **facts)


class FakeSink:
    """A sink that notes the spans it gets."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []
        self.closed = False

    def store(self, shard: int, damaged: DamagedSpan) -> asyncio.Future[None]:
        self.kept.append((shard, damaged.offset))
        return asyncio.get_running_loop().create_future()

    async def aclose(self) -> None:
        self.closed = True


# -- counting --------------------------------------------------------------------------------------


def test_what_is_skipped_is_counted_each_time() -> None:
    corruption_log = CorruptionLog(URLS, 2)
    corruption_log.skip(0, damaged_span(16))
    corruption_log.skip(1, damaged_span(16, b"more", unread=6))
    corruption_log.skip(0, damaged_span(16))
    assert corruption_log.statistics() == {
        "skipped_records": 3,
        "skipped_bytes": 24,
        "quarantined": 0,
    }
    assert corruption_log.met == 3


def test_a_number_is_of_different_records() -> None:
    corruption_log = CorruptionLog(URLS, 1)
    for _ in range(5):
        corruption_log.skip(0, damaged_span(16))
    with pytest.raises(CorruptBudgetExceeded) as caught:
        corruption_log.skip(1, damaged_span(16))
    error = caught.value
    assert (error.url, error.offset, error.record) == (URLS[1], 16, 3)
    assert (error.skipped_records, error.skipped_bytes) == (6, 42)


def test_what_goes_on_from_the_span_before_is_no_record_more() -> None:
    corruption_log = CorruptionLog(URLS, 1)
    corruption_log.skip(0, damaged_span(16, exact=False))
    corruption_log.skip(0, damaged_span(23, exact=False, records=0))
    assert corruption_log.statistics()["skipped_records"] == 1


@pytest.mark.parametrize(("met", "allowed"), [(0, 10), (FEW, 10), (5 * FEW, 50)])
def test_a_fraction_is_of_what_was_met(met: int, allowed: int) -> None:
    corruption_log = CorruptionLog(URLS, 0.01)
    corruption_log.met = met - allowed
    for offset in range(allowed):
        corruption_log.skip(0, damaged_span(offset))
    corruption_log.met = met - 1
    with pytest.raises(CorruptBudgetExceeded, match=r"corrupt_budget=0\.01"):
        corruption_log.skip(0, damaged_span(allowed))


def test_the_error_of_a_hopeless_lane_says_what_was_skipped() -> None:
    corruption_log = CorruptionLog(URLS, 5)
    corruption_log.skip(0, damaged_span())
    error = corruption_log.hopeless(1, 4)
    assert error.url == URLS[1]
    assert (error.skipped_records, error.skipped_bytes) == (1, 7)
    assert "4 shards or chunks in a row" in error.message


def test_urls_are_shown_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    corruption_log = CorruptionLog(["https://user:secret@host/a.tfrecord?key=secret"], 0)
    with pytest.raises(CorruptBudgetExceeded) as caught:
        corruption_log.skip(0, damaged_span())
    assert "secret" not in str(caught.value)
    assert "secret" not in caplog.text
    assert "a.tfrecord" in caplog.text


def test_objects_are_named_without_secrets(tmp_path: Path) -> None:
    urls = [f"https://host/dir/{name}?sig=swordfish{n}" for n, name in enumerate("aab")]

    async def keep() -> None:
        quarantine = Quarantine(str(tmp_path), urls, {})
        for shard in range(len(urls)):
            await quarantine.store(shard, damaged_span())
        await quarantine.aclose()

    asyncio.run(keep())
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == len(urls), "each has one of its own"
    assert names[-1] == object_name("b", damaged_span())
    assert "swordfish" not in str(names)


# -- keeping ---------------------------------------------------------------------------------------


def test_each_span_is_kept_once() -> None:
    async def skip() -> FakeSink:
        sink = FakeSink()
        corruption_log = CorruptionLog(URLS, 2, sink)
        assert corruption_log.skip(0, damaged_span(16)) is not None
        assert corruption_log.skip(0, damaged_span(16)) is None
        assert corruption_log.skip(1, damaged_span(16)) is not None
        assert corruption_log.statistics()["quarantined"] == 2
        await corruption_log.aclose()
        return sink

    sink = asyncio.run(skip())
    assert sink.kept == [(0, 16), (1, 16)]
    assert sink.closed


def test_what_is_too_much_is_not_kept() -> None:
    sink = FakeSink()
    with pytest.raises(CorruptBudgetExceeded):
        CorruptionLog(URLS, 0, sink).skip(0, damaged_span())
    assert sink.kept == []


def test_an_object_says_all_that_is_known(tmp_path: Path) -> None:
    """Beneath the quarantine's URL it lies as the shard does beneath the shards' directory."""
    span = damaged_span(unread=5)

    async def keep() -> None:
        quarantine = Quarantine(f"file://{tmp_path}/kept/", URLS, {})
        try:
            await quarantine.store(1, span)
        finally:
            await quarantine.aclose()

    asyncio.run(keep())
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path == tmp_path / "kept" / object_name("deep/b.tfrecord", span)
    (record,) = read_records(str(path))
    feature = Example.FromString(record).features.feature
    numbers = {
        name: feature[name].int64_list.value[0]
        for name in ("begin", "end", "record", "unread", "is_one_record")
    }
    assert numbers == {"begin": 16, "end": 23, "record": 3, "unread": 5, "is_one_record": 1}
    assert feature["url"].bytes_list.value[0].decode() == URLS[1]
    assert feature["bytes"].bytes_list.value[0] == b"damaged"
    assert feature["reason"].bytes_list.value[0].startswith(b"CorruptRecord: the CRC is wrong")


def kept(root: Path, urls: list[str], number: int) -> list[str]:
    """Store a span of one of the shards; return the files below the test's directory."""

    async def keep() -> None:
        quarantine = Quarantine(str(root / "a/b"), urls, {})
        try:
            await quarantine.store(number, damaged_span())
        finally:
            await quarantine.aclose()

    asyncio.run(keep())
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["../../../evil", "../x", "./x", "a//../b", "..", ".", "/etc/x"])
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    (found,) = kept(tmp_path, ["s3://bucket/t/x", f"s3://bucket/t/{name}"], 1)
    assert found.startswith("a/b/")
    assert ".." not in found


def test_a_link_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/deep").symlink_to(tmp_path)
    with pytest.raises(AccessDenied, match="link"):
        kept(tmp_path, ["s3://bucket/t/x", "s3://bucket/t/deep/y"], 1)
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no directory")

    async def keep() -> None:
        quarantine = Quarantine(str(tmp_path / "kept"), URLS, {})
        try:
            with pytest.raises(StoreError):
                await quarantine.store(0, damaged_span())
        finally:
            await quarantine.aclose()

    asyncio.run(keep())


def test_an_error_that_nobody_waits_for_warns_of_nothing(tmp_path: Path) -> None:
    """The run may end for another reason while a span is being written."""
    (tmp_path / "kept").write_text("no directory")

    async def abandon() -> None:
        quarantine = Quarantine(str(tmp_path / "kept"), URLS, {})
        done = quarantine.store(0, damaged_span())
        await asyncio.wait([done])
        await quarantine.aclose()

    asyncio.run(abandon())


# -- settings --------------------------------------------------------------------------------------


def test_nothing_is_skipped_by_default() -> None:
    assert corruption_log_of(settings_of("x"), URLS) is None


def test_the_settings_of_skipping() -> None:
    corruption_log = corruption_log_of(settings_of("x", on_corrupt="skip", corrupt_budget=1), URLS)
    assert corruption_log is not None
    assert corruption_log.skip(0, damaged_span()) is None
    asyncio.run(corruption_log.aclose())


def test_records_that_an_index_counts_and_no_span_does() -> None:
    corruption_log = CorruptionLog(URLS, 4)
    chunk = Extent(5, 0, shard=1, begin=16, end=99, first_record=3, records=9)
    corruption_log.skip(1, damaged_span(16, exact=False))
    corruption_log.miss(chunk, 0)
    corruption_log.miss(chunk, -1)
    assert corruption_log.statistics()["skipped_records"] == 1
    corruption_log.miss(chunk, 3)
    corruption_log.miss(chunk, 3)
    assert corruption_log.statistics() == {
        "skipped_records": 7,
        "skipped_bytes": 7,
        "quarantined": 0,
    }
    with pytest.raises(CorruptBudgetExceeded, match="more are missing from the chunk") as caught:
        corruption_log.miss(replace(chunk, begin=40), 1)
    error = caught.value
    assert (error.url, error.offset, error.record) == (URLS[1], 40, 3)
    assert error.skipped_records == 8


WHOLE = Extent(0, 0, shard=0)
SIZE = len(SHARD)


def fault_at(offset: int, kind: type[DataError] = CorruptRecord) -> DataError:
    return kind("it is damaged", offset=offset, record=0)


def policy(*, skips: bool) -> DamagePolicy:
    made = DamagePolicy(Counter(), CorruptionLog(["s"], 9) if skips else None)
    made.enter(WHOLE)
    return made


def decided(made: DamagePolicy, fault: DataError, start: int = 0) -> str:
    """Return what a policy does with a fault in a range from ``start`` to the shard's end."""
    try:
        return "again" if made.rereads(fault, received(WHOLE, start, SIZE)) else "skip"
    except DataError as error:
        assert (type(error), error.fields()) == (type(fault), fault.fields())
        return "raise"


@pytest.mark.parametrize(("skips", "then"), [(False, "raise"), (True, "skip")])
def test_a_fault_that_is_met_twice_is_certain(skips: bool, then: str) -> None:
    made = policy(skips=skips)
    assert [decided(made, fault_at(40)), decided(made, fault_at(40), 40)] == ["again", then]


@pytest.mark.parametrize(("skips", "then"), [(False, "again"), (True, "skip")])
def test_where_damage_is_skipped_no_byte_is_read_a_third_time(skips: bool, then: str) -> None:
    made = policy(skips=skips)
    assert [decided(made, fault_at(40)), decided(made, fault_at(60), 40)] == ["again", then]
    made.enter(WHOLE)
    assert decided(made, fault_at(60)) == ("again" if skips else "raise")


@pytest.mark.parametrize(
    ("kind", "skips", "then"),
    [
        (TruncatedShard, False, "raise"),
        (TruncatedShard, True, "skip"),
        (RecordTooLarge, False, "raise"),
        (RecordTooLarge, True, "raise"),
    ],
)
def test_what_reading_again_cannot_change(kind: type[DataError], skips: bool, then: str) -> None:
    assert decided(policy(skips=skips), fault_at(40, kind)) == then


def test_decompressed_bytes_are_not_read_again() -> None:
    read = received(WHOLE, 0, SIZE)
    read.inflated = True
    assert not policy(skips=True).rereads(fault_at(40), read)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (CorruptRecord("bad; fetch it again", url="u", offset=0, record=0), True),
        (TruncatedShard("bad; fetch it again", url="u", offset=40, record=2), True),
        (CorruptLength("not a TFRecord file; set compression", url="u", offset=0), False),
    ],
)
def test_a_fault_tells_how_a_stream_goes_on(fault: DataError, told: bool) -> None:
    raised = with_way_on(fault)
    assert ('with on_corrupt="skip" a stream goes on without it' in raised.message) == told
    assert (type(raised), raised.fields()) == (type(fault), fault.fields())
