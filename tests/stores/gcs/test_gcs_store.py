from __future__ import annotations

import asyncio
import gzip
import json
import logging
import time
import traceback
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from google.auth import _helpers
from google.auth.credentials import Credentials

import streamrec as sr
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectChanged,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.stores.base.troubles import code_of, refusal
from streamrec.stores.blocking import Folder, write_object
from streamrec.stores.gcs.gcs_store import GCSStore, _parse_page
from tests.stores.conformance import (
    DATA,
    AccessConformance,
    Backend,
    Bench,
    FaultConformance,
    ListingConformance,
    StoreConformance,
    WritingConformance,
    read,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from streamrec.stores.base.protocol import ObjectInfo, Store


PART = 1 << 20


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as devstore:
        devstore.objects.create_bucket("bucket")
        yield devstore


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.stores.base.new_object.PART", PART)


@pytest.mark.parametrize("size", [0, 10, PART - 1, PART, 3 * PART + 7])
def test_written(store: DevStore, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    write_object("gs://bucket/a b/ü%2F?", data[:size], store.gcs_options)
    assert store.objects["bucket/a b/ü%2F?"] == data[:size]


def test_nothing_is_seen_before_the_end(store: DevStore) -> None:
    writer = sr.TFRecordWriter("gs://bucket/x", storage_options=store.gcs_options)
    writer.write(bytes(2 * PART))
    assert dict(store.objects) == {}
    writer.discard()
    assert dict(store.objects) == {}


@pytest.mark.parametrize(
    ("fault", "kind", "aborts"),
    [
        (FaultRule(method="PUT", nth=2, status=403), AccessDenied, 1),
        (FaultRule(method="POST", nth=1, status=403), AccessDenied, 0),
        (FaultRule(method="PUT", nth=3, status=400), StoreError, 1),
    ],
    ids=["part", "beginning", "end"],
)
def test_what_fails_leaves_nothing(
    store: DevStore, fault: FaultRule, kind: type[Exception], aborts: int
) -> None:
    store.faults = [fault]
    with pytest.raises(kind):
        write_object("gs://bucket/x", bytes(2 * PART + 1), store.gcs_options)
    assert dict(store.objects) == {}
    # An upload that nobody ends stays in the store for a week.
    assert [each.method for each in store.statistics.records].count("DELETE") == aborts


def test_a_lost_answer_to_the_last_step_is_looked_up(store: DevStore) -> None:
    """The store has made the object; the request that is sent again finds no upload."""
    store.faults = [FaultRule(method="PUT", nth=3, reset_after=0)]
    data = bytes(range(256)) * (2 * PART // 256) + b"end"
    write_object("gs://bucket/x", data, store.gcs_options)
    assert store.objects["bucket/x"] == data


def test_an_abort_that_is_not_answered_is_given_up(
    store: DevStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.stores.base.new_object.ABORT_SECONDS", 0.01)
    store.faults = [FaultRule(method="DELETE", stall_after=0)]
    writer = sr.TFRecordWriter("gs://bucket/x", storage_options=store.gcs_options)
    writer.write(bytes(2 * PART))
    writer.discard()
    assert dict(store.objects) == {}


def test_a_part_that_the_store_was_too_busy_for_is_sent_again(store: DevStore) -> None:
    store.faults = [FaultRule(method="PUT", nth=1, status=503)]
    write_object("gs://bucket/x", bytes(2 * PART), store.gcs_options)
    assert len(store.objects["bucket/x"]) == 2 * PART


def test_objects_are_copied_and_removed(store: DevStore) -> None:
    folder = Folder("gs://bucket/a b/", store.gcs_options)
    folder.write("x", b"one")
    folder.publish({"x": "y/z"}, {"x": 3})
    assert dict(store.objects) == {"bucket/a b/x": b"one", "bucket/a b/y/z": b"one"}
    folder.remove("x", "y/z", "never")
    assert folder.sizes() == {}


def test_a_dataset_by_size(store: DevStore) -> None:
    with sr.ShardedWriter(
        "gs://bucket/d/x.tfrecord", shard_bytes=50, storage_options=store.gcs_options
    ) as writer:
        writer.write_many([b"%030d" % n for n in range(3)])
    assert sorted(store.objects) == [
        *(f"bucket/d/x-0000{n}-of-00003.tfrecord" for n in range(3)),
        "bucket/d/x.streamrec-index",
        "bucket/d/x.streamrec-manifest.json",
    ]


def test_many_shards_wait_in_files(store: DevStore) -> None:
    with sr.ShardedWriter(
        "gs://bucket/x", shards=9, index=False, storage_options=store.gcs_options
    ) as writer:
        writer.write_many([b"%d" % n for n in range(9)])
        assert list(store.objects) == ["bucket/.x.task-00000-of-00001.streamrec-part"]
    assert len(store.objects) == 10


@asynccontextmanager
async def opened(options: dict[str, Any], **settings: Any) -> AsyncIterator[GCSStore]:
    store = GCSStore(options, **settings)
    try:
        yield store
        assert not in_use(store)
    finally:
        await store.aclose()


def in_use(store: GCSStore) -> int:
    """Connections that no range gave back."""
    session = store._client._session if store._client else None
    return len(session.connector._acquired) if session and session.connector else 0


@asynccontextmanager
async def devstore_bench(**settings: Any) -> AsyncIterator[Bench]:
    async with DevStore() as devstore:
        async with (
            opened(devstore.gcs_options, **settings) as store,
            opened({**devstore.gcs_options, "token": "wrong"}) as denied,
        ):
            yield Bench(
                store,
                url=lambda name: f"gs://bucket/{name}",
                put=lambda name, data: devstore.put(f"bucket/{name}", data),
                denied=denied,
                devstore=devstore,
            )


@asynccontextmanager
async def issued_bench(
    now: Callable[[], float] = time.time, **settings: Any
) -> AsyncIterator[tuple[GCSStore, DevStore]]:
    """Yield a store whose tokens devstore issues, and which end after an hour."""
    async with DevStore(now=now) as devstore:
        devstore.tokens.clear()
        options = {"token": Issued(devstore), "endpoint_url": devstore.endpoint}
        async with opened(options, **settings) as store:
            yield store, devstore


class Issued(Credentials):
    """Google's credentials that ask devstore, as those of a service account ask Google."""

    def __init__(self, devstore: DevStore) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._devstore = devstore

    def refresh(self, request: Any) -> None:
        answer = request(self._devstore.token_url, method="POST", body=b"grant")
        self.token = json.loads(answer.data)["access_token"]
        self.expiry = datetime.fromtimestamp(self._devstore.tokens[self.token], UTC).replace(
            tzinfo=None
        )


async def listed(store: Store, prefix: str) -> list[ObjectInfo]:
    return [info async for info in store.list(prefix)]


class TestGCSStore(
    StoreConformance, ListingConformance, WritingConformance, AccessConformance, FaultConformance
):
    @pytest.fixture
    def backend(self) -> Backend:
        return devstore_bench


class TestRequests:
    @asynchronous
    async def test_no_request_without_need(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            _, info = await read(bench.store, bench.url("x"), 0, 10)
            for start in (10, 20, 30):
                await read(bench.store, bench.url("x"), start, start + 10, etag=info.etag)
            records = bench.devstore.statistics.records
            assert Counter(each.kind for each in records) == {"objects.get media": 4}
            assert {each.signed for each in records} == {"header"}
            pins = [each.query.get("generation") for each in records]
            assert pins == [None, *[info.etag] * 3]

    @asynchronous
    async def test_listing_in_pages(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            names = [*(f"{number:04}" for number in range(2500)), "a +%", "\uffff", "\U00010000"]
            for name in reversed(names):
                bench.put(f"in/{name}", b"")
            found = [info.url for info in await listed(bench.store, bench.url("in/"))]
            assert found == [bench.url(f"in/{name}") for name in names]
            queries = [each.query for each in bench.devstore.statistics.records]
            assert {tuple(sorted(query)) for query in queries} == {
                ("fields", "prefix"),
                ("fields", "pageToken", "prefix"),
                ("fields", "prefix", "startOffset"),
            }
            starts = [query["startOffset"] for query in queries if "startOffset" in query]
            assert "in/1999" in starts

    @asynchronous
    async def test_a_busy_page_does_not_begin_the_listing_again(self) -> None:
        naps: list[float] = []

        async def sleep(seconds: float) -> None:
            naps.append(seconds)

        async with devstore_bench(sleep=sleep) as bench:
            assert bench.devstore
            for number in range(1500):
                bench.put(f"{number:04}", b"")
            bench.devstore.faults = [
                FaultRule(nth=2, status=503, retry_after=7),
                FaultRule(nth=3, truncate_after=1),
            ]
            assert len(await listed(bench.store, bench.url(""))) == 1500
            queries = [set(each.query) for each in bench.devstore.statistics.records]
            assert sum(not query & {"startOffset", "pageToken"} for query in queries) == 1
            assert sorted(7 <= nap <= 9 for nap in naps) == [False, True]
            bench.devstore.faults = [FaultRule(status=503, retry_after=7)]
            with pytest.raises(StoreUnavailable):
                await listed(bench.store, bench.url(""))
            assert len(bench.devstore.statistics.records) == len(queries) + 4

    @asynchronous
    async def test_requester_pays(self) -> None:
        async with DevStore() as devstore:
            devstore.put("bucket/x", DATA)
            for option, project in [("payer", "payer"), (True, "ours")]:
                options = {**devstore.gcs_options, "requester_pays": option, "project": "ours"}
                async with opened(options) as store:
                    await read(store, "gs://bucket/x", 0, 10)
                    await listed(store, "gs://bucket/")
                payers = {each.query.get("userProject") for each in devstore.statistics.records}
                assert payers == {project}
                devstore.statistics.clear()

    @asynchronous
    async def test_who_pays_must_be_said(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            text = "Bucket is a requester pays bucket but no user project provided."
            bench.devstore.faults = [FaultRule(status=400, code="required")]
            with pytest.raises(StoreError) as plain:
                await read(bench.store, bench.url("x"), 0, 1)
            assert "requester_pays" not in str(plain.value)
            for document in (text, json.dumps({"error": {"code": 400, "message": text}})):
                assert code_of(document.encode()) == "UserProjectMissing"
            assert "requester_pays" in str(refusal("gs://b/x", 400, code="UserProjectMissing"))

    @asynchronous
    async def test_anonymous(self) -> None:
        async with DevStore(anonymous=True) as devstore:
            devstore.put("bucket/x", DATA)
            options = {"token": "anon", "endpoint_url": devstore.endpoint}
            async with opened(options) as store:
                assert (await read(store, "gcs://bucket/x", 0, 10))[0] == DATA[:10]
                [info] = await listed(store, "gcs://bucket/")
                assert info.url == "gcs://bucket/x"
            assert {each.signed for each in devstore.statistics.records} == {None}

    @asynchronous
    async def test_anonymous_where_nobody_is(self) -> None:
        async with DevStore() as devstore:
            devstore.put("bucket/x", DATA)
            async with opened({"token": "anon", "endpoint_url": devstore.endpoint}) as store:
                with pytest.raises(AccessDenied, match="storage_options"):
                    await read(store, "gs://bucket/x", 0, 10)
            assert len(devstore.statistics.records) == 1

    @asynchronous
    async def test_emulator_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with DevStore() as devstore:
            devstore.put("bucket/x", DATA)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", devstore.endpoint.removeprefix("http://"))
            async with opened({"token": "testtoken"}) as store:
                assert (await read(store, "gs://bucket/x", 0, 10))[0] == DATA[:10]


class TestToken:
    @asynchronous
    async def test_one_401_renews_the_token_once(self) -> None:
        async with issued_bench() as (store, devstore):
            devstore.put("bucket/x", DATA)
            await read(store, "gs://bucket/x", 0, 10)
            devstore.tokens.clear()
            many = (read(store, "gs://bucket/x", at, at + 1) for at in range(20))
            answers = await asyncio.gather(*many)
            assert b"".join(data for data, _ in answers) == DATA[:20]
            assert len(devstore.tokens) == 1
            statuses = Counter(each.status for each in devstore.statistics.records)
            assert statuses == {206: 21, 401: 20}

    @asynchronous
    async def test_a_second_401_is_a_refusal(self) -> None:
        async with issued_bench() as (store, devstore):
            devstore.put("bucket/x", DATA)
            await read(store, "gs://bucket/x", 0, 10)
            devstore.faults = [FaultRule(status=401)]
            for call in (read(store, "gs://bucket/x", 0, 10), listed(store, "gs://bucket/")):
                devstore.statistics.clear()
                with pytest.raises(AccessDenied, match="log in again") as caught:
                    await call
                assert caught.value.url in ("gs://bucket/x", "gs://bucket/")
                assert [each.status for each in devstore.statistics.records] == [401, 401]

    @asynchronous
    async def test_a_bare_token_cannot_be_renewed(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            assert bench.denied
            with pytest.raises(AccessDenied, match=r"log in again.*'token'") as caught:
                await read(bench.denied, bench.url("x"), 0, 10)
            assert "wrong" not in str(caught.value)
            assert [each.status for each in bench.devstore.statistics.records] == [401]

    @asynchronous
    async def test_a_token_that_expires_in_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [1e9]
        monkeypatch.setattr(
            _helpers, "utcnow", lambda: datetime.fromtimestamp(now[0], UTC).replace(tzinfo=None)
        )
        async with issued_bench(now=lambda: now[0]) as (store, devstore):
            devstore.put("bucket/x", DATA)
            for later in (0, 3000, 3599, 3601, 10_000):
                now[0] = 1e9 + later
                await read(store, "gs://bucket/x", 0, 10)
            assert len(devstore.tokens) == 3
            assert {each.status for each in devstore.statistics.records} == {206}

    @pytest.mark.parametrize("status", [403, 404])
    @asynchronous
    async def test_what_will_not_pass_fails_at_once(self, status: int) -> None:
        kind = AccessDenied if status == 403 else ObjectNotFound
        async with issued_bench() as (store, devstore):
            devstore.faults = [FaultRule(status=status)]
            with pytest.raises(kind):
                await read(store, "gs://bucket/x", 0, 10)
            with pytest.raises(kind):
                await listed(store, "gs://bucket/")
            assert len(devstore.statistics.records) == 2

    @asynchronous
    async def test_a_403_that_means_slower(self) -> None:
        async def sleep(seconds: float) -> None:
            assert 2 <= seconds <= 10

        async with issued_bench(sleep=sleep) as (store, devstore):
            limit = {"status": 403, "code": "rateLimitExceeded", "retry_after": 2}
            devstore.faults = [FaultRule.model_validate(limit)]
            with pytest.raises(StoreUnavailable) as caught:
                await listed(store, "gs://bucket/")
            assert caught.value.retry_after == 2.0


class TestVersions:
    @asynchronous
    async def test_both_generations_are_named(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            [before] = await listed(bench.store, bench.url(""))
            bench.put("x", DATA)  # the same bytes, written anew
            [after] = await listed(bench.store, bench.url(""))
            with pytest.raises(ObjectChanged, match=f"{before.etag}.*{after.etag}"):
                await read(bench.store, bench.url("x"), 0, 10, etag=before.etag)
            last = list(bench.devstore.statistics.records)[-2:]
            assert [each.status for each in last] == [404, 206]

    @asynchronous
    async def test_a_deleted_object_is_not_found(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            [before] = await listed(bench.store, bench.url(""))
            del bench.devstore.objects["bucket/x"]
            with pytest.raises(ObjectNotFound):
                await read(bench.store, bench.url("x"), 0, 10, etag=before.etag)

    @asynchronous
    async def test_an_answer_without_a_version(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            [info] = await listed(bench.store, bench.url(""))
            bench.devstore.faults = [FaultRule(headers={"x-goog-generation": "7"})]
            with pytest.raises(ObjectChanged, match=f"{info.etag}.* 7;"):
                await read(bench.store, bench.url("x"), 0, 10, etag=info.etag)


class TestEncoding:
    @asynchronous
    async def test_stored_bytes_by_ranges(self) -> None:
        packed = gzip.compress(DATA, mtime=0)
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.devstore.put("bucket/x", packed, {"Content-Encoding": "gzip"})
            bench.put("y", DATA)
            infos = {info.url[-1]: info for info in await listed(bench.store, bench.url(""))}
            assert (infos["x"].encoding, infos["y"].encoding) == ("gzip", None)
            for start, stop in [(0, 10), (10, len(packed)), (0, 1 << 20)]:
                pin = infos["x"].etag
                data, info = await read(bench.store, bench.url("x"), start, stop, etag=pin)
                assert data == packed[start:stop]
                assert info == infos["x"]
            assert (await read(bench.store, bench.url("y"), 0, 10))[1].encoding is None

    @pytest.mark.parametrize(
        "headers",
        [
            {"x-goog-stored-content-encoding": "gzip"},
            {"Content-Encoding": "gzip"},
            {"x-goog-stored-content-encoding": "br", "Content-Encoding": "gzip"},
        ],
    )
    @asynchronous
    async def test_bytes_that_are_not_the_stored_ones(self, headers: dict[str, str]) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(headers=headers)]
            with pytest.raises(StoreMisbehaved, match="range does not match the object"):
                await read(bench.store, bench.url("x"), 0, 10)


@pytest.mark.parametrize(
    "page",
    [
        *(b"<html>", b"[]", b"\xff", b'{"items": 1}', b'{"items": ["x"]}', b"[" * 100_000),
        *(b'{"items": [{"size": "1"}]}', b'{"items": [{"name": 1, "size": "1"}]}'),
        *(b'{"items": [{"name": "x", "size": "-1"}]}', b'{"items": [{"name": "x", "size": null}]}'),
    ],
)
def test_no_gcs_behind_the_endpoint(page: bytes) -> None:
    with pytest.raises(StoreMisbehaved, match="endpoint_url"):
        _parse_page("gs://bucket/", "gs://bucket/", page)


@asynchronous
async def test_unreachable_endpoint() -> None:
    async def no_sleep(seconds: float) -> None: ...

    options = {"token": "anon", "endpoint_url": "http://127.0.0.1:1"}
    async with opened(options, sleep=no_sleep) as store:
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await read(store, "gs://bucket/x", 0, 10)
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await listed(store, "gs://bucket/")


@pytest.mark.parametrize("url", ["gs://", "gs:///x", "gs://bucket", "gs://bucket/"])
@asynchronous
async def test_url_without_an_object(url: str) -> None:
    async with opened({"token": "anon"}) as store:
        with pytest.raises(ConfigError, match="gs://bucket/object"):
            await read(store, url, 0, 10)


@asynchronous
async def test_a_session_of_gcsfs_reads_nothing() -> None:
    async with DevStore() as devstore:
        devstore.put("bucket/x", DATA)
        for session, words in [
            ({"trust_env": True}, None),
            ({"proxy": "http://p"}, "'proxy' and 'verify'"),
        ]:
            async with opened({**devstore.gcs_options, "session_kwargs": session}) as store:
                if words is None:
                    await read(store, "gs://bucket/x", 0, 10)
                    continue
                with pytest.raises(ConfigError, match=words):
                    await read(store, "gs://bucket/x", 0, 10)


@asynchronous
async def test_buckets_are_named_in_full() -> None:
    async with opened({"token": "anon"}) as store:
        with pytest.raises(ConfigError, match="in full"):
            await listed(store, "gs://buck")


@pytest.mark.parametrize("fault", [{"status": 401}, {"status": 403}, {"refuse": True}])
@asynchronous
async def test_secrets_stay_secret(fault: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with DevStore(token="ya29-untold") as devstore:
        devstore.faults = [FaultRule.model_validate(fault)]
        async with opened(devstore.gcs_options) as store:
            with pytest.raises(StoreError) as caught:
                await read(store, "gs://bucket/x", 0, 10)
            assert store._client
            shown = [repr(store), repr(store._client), repr(store._bearer)]
    shown += [str(caught.value), repr(caught.value), caplog.text]
    shown += traceback.format_exception(caught.value)
    assert "gs://bucket/x" in str(caught.value)
    assert "untold" not in "\n".join(shown)


@asynchronous
async def test_closing_unused() -> None:
    store = GCSStore()
    await store.aclose()
