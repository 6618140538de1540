"""Misbehaving stores over real sockets, through the whole engine.

For each fault: no record is lost, repeated or reordered, the statistics say what happened, and what
will not pass is an error of the right type that names the object.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.devstore import FaultRule
from streamrec.errors import (
    AccessDenied,
    CorruptRecord,
    ObjectChanged,
    ObjectNotFound,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.flow.retry import Backoff
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.fetch import range_downloader
from streamrec.plan.reading.concurrency import Hedging
from tests import proxied_stores as stores
from tests.pipeline.small_datasets import payload
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.streams.stream import Stream
    from tests.proxied_stores import ProxiedStore

SHARDS, RECORDS, SIZE = 4, 60, 9_000
"""Half a MB a shard: two ranges or three, the first of 256 KiB, with the smallest budget."""
NAMES = [f"part-{shard:05}.tfrecord" for shard in range(4)]
EXPECTED = [payload(shard, n, SIZE) for n in range(RECORDS) for shard in range(SHARDS)]

BACKENDS = [
    pytest.param(stores.s3, id="s3"),
    pytest.param(stores.gcs, id="gcs"),
    pytest.param(stores.http, id="http"),
    pytest.param(
        stores.ceph,
        id="ceph",
        marks=[
            pytest.mark.ceph,
            pytest.mark.night,
            pytest.mark.skipif(not stores.CEPH, reason="there is no Ceph; see .ci/ceph.sh"),
        ],
    ),
    pytest.param(
        stores.emulator,
        id="emulator",
        marks=[
            pytest.mark.xdist_group("gcs"),
            pytest.mark.night,
            pytest.mark.skipif(not stores.EMULATOR, reason="no emulator runs; see .ci/gcs.sh"),
        ],
    ),
]


@pytest.fixture(params=BACKENDS)
def proxied(request: pytest.FixtureRequest) -> Iterator[ProxiedStore]:
    with request.param() as found:
        for shard in range(SHARDS):
            found.put(f"part-{shard:05}.tfrecord", shard_of(shard))
        yield found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """No long waits between attempts; what the store asked for (Retry-After) is noted instead."""
    asked: list[float | None] = []

    class Noted(Backoff):
        def next(self, at_least: float | None = None) -> float:
            asked.append(at_least)
            return super().next()

    monkeypatch.setattr(range_downloader, "Backoff", partial(Noted, base=0.001, longest=0.01))
    return asked


@pytest.fixture
def unhedged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hedge nothing, so that counts of requests do not depend on the machine's speed."""
    monkeypatch.setattr(Hedging, "allows", lambda *_, **__: False)


def shard_of(shard: int) -> bytes:
    return b"".join(frame(payload(shard, n, SIZE)) for n in range(RECORDS))


def opened(proxied: ProxiedStore, **more: Any) -> Stream:
    settings = {"batch_size": 16, "memory_budget": "8MiB", "engine": "thread", **more}
    source = [proxied.url(name) for name in NAMES]
    return sr.open(source, storage_options=proxied.options or None, **settings)


def deliver(proxied: ProxiedStore, *rules: FaultRule, **more: Any) -> dict[str, Any]:
    """Read everything, hold it against the order; what the statistics say."""
    proxied.proxy.fail(*rules)
    records: list[bytes] = []
    with opened(proxied, **more) as stream:
        for batch in stream:
            records += batch.records.to_list()
        statistics = stream.statistics()
    assert records == EXPECTED
    assert statistics["records"] == len(EXPECTED)
    assert statistics["bytes_used"] == SHARDS * len(shard_of(0))
    assert statistics["in_flight"] == 0
    assert statistics["hedges"] == statistics["hedges_won"] + statistics["hedges_lost"]
    # a request that was given up may never have reached the store
    given_up = statistics["hedges_lost"] + statistics["cut"]
    assert statistics["requests"] - given_up <= proxied.proxy.requests
    assert proxied.proxy.applied > 0 or not rules, "the fault has happened"
    return statistics


def refused(proxied: ProxiedStore, error: type[Exception], *rules: FaultRule, **more: Any) -> Any:
    """Read until it fails; the error, which names an object of the store."""
    proxied.proxy.fail(*rules)
    records: list[bytes] = []
    with opened(proxied, **more) as stream, pytest.raises(error) as caught:
        for batch in stream:
            records += batch.records.to_list()
    assert records == EXPECTED[: len(records)], "what came before it was right"
    assert type(caught.value) is error
    url = getattr(caught.value, "url", None)
    assert url is not None
    assert url.startswith(proxied.root)
    return caught.value


# -- what passes -----------------------------------------------------------------------------------


def test_without_any_fault_nothing_is_asked_for_twice(
    proxied: ProxiedStore, unhedged: None
) -> None:
    statistics = deliver(proxied)
    assert statistics["bytes_read"] == statistics["bytes_used"]
    assert statistics["retries"] == statistics["throttled"] == statistics["refetched"] == 0
    assert statistics["requests"] == proxied.proxy.requests


BROKEN = {
    "before the answer": FaultRule(ranged=True, every=3, refuse=True),
    "before the body": FaultRule(ranged=True, every=3, reset_after=0),
    "in the body": FaultRule(ranged=True, every=3, reset_after=20_000),
    "too short": FaultRule(ranged=True, every=3, truncate_after=20_000),
    "empty": FaultRule(ranged=True, every=3, truncate_after=0),
}


@pytest.mark.parametrize("fault", BROKEN.values(), ids=list(BROKEN))
def test_connections_that_break_go_on_at_their_last_byte(
    proxied: ProxiedStore, fault: FaultRule, unhedged: None
) -> None:
    statistics = deliver(proxied, fault)
    by_aiohttp = (
        proxied.proxy.requests - statistics["requests"]
    )  # where a connection was used before
    assert statistics["retries"] + by_aiohttp > 0
    assert statistics["bytes_read"] == statistics["bytes_used"]


def test_the_engine_process_goes_on_too_and_tells(proxied: ProxiedStore) -> None:
    statistics = deliver(proxied, BROKEN["in the body"], engine="process")
    assert statistics["retries"] > 0
    assert statistics["bytes_read"] >= statistics["bytes_used"]


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (429, "SlowDown")])
def test_a_storm_of_refusals(
    proxied: ProxiedStore, status: int, code: str, impatient: list[float | None], unhedged: None
) -> None:
    statistics = deliver(
        proxied, FaultRule(ranged=True, first=6, status=status, code=code, retry_after=7)
    )
    assert statistics["throttled"] == statistics["retries"] == 6
    assert impatient == [7.0] * 6, "Retry-After was heard"
    assert statistics["bytes_read"] == statistics["bytes_used"]


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_broken_store_is_asked_again(proxied: ProxiedStore, status: int, unhedged: None) -> None:
    statistics = deliver(
        proxied, FaultRule(ranged=True, every=3, status=status, code="InternalError")
    )
    assert statistics["retries"] > 0
    assert statistics["throttled"] == 0


@pytest.mark.parametrize("place", [0, 20_000])
def test_stalls_are_hedged_or_cut(
    proxied: ProxiedStore, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_downloader, "SILENCE", 2.0)
    statistics = deliver(proxied, FaultRule(ranged=True, nth=2, stall_after=place))
    assert statistics["hedges_won"] + statistics["cut"] > 0


def test_stalls_are_cut_where_nothing_is_hedged(
    proxied: ProxiedStore, unhedged: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_downloader, "SILENCE", 1.0)
    statistics = deliver(proxied, FaultRule(ranged=True, first=3, stall_after=20_000))
    assert statistics["cut"] >= 3
    assert statistics["hedges"] == 0


def test_an_outage(proxied: ProxiedStore, unhedged: None) -> None:
    """Bodies break off, then connections are refused, then the store answers 503 for a while."""
    phases = {
        3: FaultRule(ranged=True, reset_after=10_000),
        6: FaultRule(ranged=True, refuse=True),
        40: FaultRule(ranged=True, status=503, code="SlowDown"),
    }

    def pass_by(number: int) -> None:
        if number in phases:
            proxied.proxy.fail(phases[number])
        elif number == 50:
            proxied.proxy.fail()

    proxied.proxy.before = pass_by
    statistics = deliver(proxied)
    assert proxied.proxy.requests > 50
    assert statistics["retries"] > 20
    assert statistics["throttled"] == 10
    assert statistics["bytes_read"] == statistics["bytes_used"]


@pytest.mark.parametrize("place", [3, 9, 500, SIZE + 13, 40 * (SIZE + 16) + 20])
def test_a_byte_that_is_wrong_once_is_read_again(
    proxied: ProxiedStore, place: int, unhedged: None
) -> None:
    """The byte is in a length, a record or their CRCs, in the first range or a later one."""
    flip = FaultRule(path="part-00002", holding=place, flip_object_at=place, first=1)
    statistics = deliver(proxied, flip)
    assert statistics["refetched"] == 1
    assert statistics["retries"] == 0


def test_a_store_that_answers_200_with_the_right_range(
    proxied: ProxiedStore, unhedged: None
) -> None:
    statistics = deliver(proxied, FaultRule(ranged=True, partial_status=200))
    assert statistics["bytes_read"] == statistics["bytes_used"]
    assert statistics["retries"] == 0


# -- what does not ---------------------------------------------------------------------------------


def test_a_byte_that_stays_wrong_is_corrupt(proxied: ProxiedStore) -> None:
    flip = FaultRule(ranged=True, path="part-00002", flip_object_at=3 * (SIZE + 16) + 500)
    error = refused(proxied, CorruptRecord, flip)
    assert error.url == proxied.url("part-00002.tfrecord")
    assert (error.offset, error.record) == (3 * (SIZE + 16), 3)


def test_an_object_that_changes_in_mid_epoch(proxied: ProxiedStore, unhedged: None) -> None:
    if not proxied.pins:
        pytest.skip("it names no version with the content")

    def change(number: int) -> None:
        if number == SHARDS + 1:
            for shard in range(SHARDS):
                proxied.put(f"part-{shard:05}.tfrecord", shard_of(shard)[::-1])

    proxied.proxy.before = change
    error = refused(proxied, ObjectChanged, max_concurrency=1)
    assert "version" in str(error)


def test_an_object_that_is_gone(proxied: ProxiedStore) -> None:
    missing = FaultRule(ranged=True, path="part-00001", status=404, code="NoSuchKey")
    error = refused(proxied, ObjectNotFound, missing)
    assert error.fields() == {"url": proxied.url("part-00001.tfrecord"), "offset": 0}


def test_access_that_is_denied(proxied: ProxiedStore, impatient: list[float | None]) -> None:
    denied = FaultRule(ranged=True, path="part-00001", status=403, code="AccessDenied")
    error = refused(proxied, AccessDenied, denied)
    assert error.fields() == {"url": proxied.url("part-00001.tfrecord"), "offset": 0}
    assert impatient == [], "it will not pass"
    assert not any(str(secret) in str(error) for secret in proxied.options.values())


@pytest.mark.parametrize("written", ["bytes 7-20/100", "bytes 0-1/*", ""])
def test_a_wrong_content_range(proxied: ProxiedStore, written: str) -> None:
    error = refused(proxied, StoreMisbehaved, FaultRule(ranged=True, content_range=written))
    assert (written or "missing") in str(error)
    assert error.offset == 0


def test_a_store_that_never_answers(proxied: ProxiedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_downloader, "PATIENCE_AT_START", 0.2)
    error = refused(proxied, StoreUnavailable, FaultRule(ranged=True, refuse=True))
    assert "fetch stalls" in str(error)
    assert error.offset == 0


def test_a_store_that_goes_for_good(proxied: ProxiedStore) -> None:
    """The store has answered before, so stall_timeout alone limits the wait."""
    gone = FaultRule(ranged=True, refuse=True)
    numbers = count(1)

    def leave(_: int) -> None:
        if next(numbers) == 5:
            proxied.proxy.fail(gone)

    proxied.proxy.before = leave
    error = refused(proxied, StoreUnavailable, max_concurrency=1, stall_timeout=0.5)
    assert "stalls" in str(error)


# -- credentials -----------------------------------------------------------------------------------


@pytest.fixture(params=[param for param in BACKENDS if param.id in ("s3", "ceph")])
def signed(request: pytest.FixtureRequest) -> Iterator[ProxiedStore]:
    with request.param() as found:
        for shard in range(SHARDS):
            found.put(f"part-{shard:05}.tfrecord", shard_of(shard))
        yield found


def test_signatures_that_have_expired_are_renewed_once(
    signed: ProxiedStore, unhedged: None
) -> None:
    expired = FaultRule(ranged=True, nth=3, status=400, code="ExpiredToken")
    statistics = deliver(signed, expired)
    assert statistics["bytes_read"] == statistics["bytes_used"]
    assert statistics["retries"] == 0, "a renewal is no failure"


def test_a_store_that_refuses_renewed_signatures(signed: ProxiedStore) -> None:
    expired = FaultRule(ranged=True, path="part-00001", status=400, code="ExpiredToken")
    error = refused(signed, AccessDenied, expired)
    assert error.url == signed.url("part-00001.tfrecord")


# -- cancellation ----------------------------------------------------------------------------------


@asynchronous
async def leave_in_mid_fetch(proxied: ProxiedStore) -> None:
    before = asyncio.all_tasks()
    async with opened(proxied, engine=None) as stream:
        async for _ in stream:
            break
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("place", [0, 20_000])
def test_leaving_in_mid_fetch_leaves_nothing_behind(proxied: ProxiedStore, place: int) -> None:
    """The last ranges stall; sockets and tasks that stay open are warnings, and so errors.

    Those before them must not: the first batch needs the beginning of every shard, and a GET that
    is repeated on another connection counts twice.
    """

    def stall(number: int) -> None:
        if number == 2 * SHARDS - 1:
            proxied.proxy.fail(FaultRule(ranged=True, stall_after=place))

    proxied.proxy.before = stall
    leave_in_mid_fetch(proxied)


@asynchronous
async def cancel_in_mid_fetch(proxied: ProxiedStore) -> None:
    before = asyncio.all_tasks()
    asked, call = asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe
    proxied.proxy.before = lambda _: call(asked.set)
    stream = opened(proxied, engine=None)
    async with stream:
        task = asyncio.create_task(anext(aiter(stream)))
        await asked.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        proxied.proxy.fail()
        records = [record async for batch in stream for record in batch.records.to_list()]
        assert records == EXPECTED, "no batch is lost with the wait for it"
    assert asyncio.all_tasks() == before


def test_a_cancelled_wait_loses_nothing(
    proxied: ProxiedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_downloader, "SILENCE", 0.3)
    proxied.proxy.fail(FaultRule(ranged=True, stall_after=0))
    cancel_in_mid_fetch(proxied)
