from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from streamrec.stores.base.pages import RETRIES
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.http import http_store
from streamrec.stores.s3.presign import get_object
from streamrec.stores.s3.s3_store import S3Store, parse_page
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
    from collections.abc import AsyncIterator
    from pathlib import Path


NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
HEAD = "s3://bucket/"
OBJECTS = st.lists(
    st.builds(
        ObjectInfo,
        st.text(st.characters(codec="utf-8", exclude_characters="\r", exclude_categories=["C"])),
        st.integers(0, 1 << 50),
        st.sampled_from(['"7ff8141cdd4bc356a77e67fa9c970f6f"', '"a-12"']),
    )
)


def document(objects: list[ObjectInfo], more: str = "", *, space: str = NAMESPACE) -> bytes:
    entries = [
        f"<Contents><Key>{escape(info.url)}</Key><LastModified>2026-05-17</LastModified>"
        f"<ETag>{escape(info.etag or '', {chr(34): '&quot;'})}</ETag><Size>{info.size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for info in objects
    ]
    declared = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return (
        f"{declared}<ListBucketResult{space}>{more}{''.join(entries)}</ListBucketResult>".encode()
    )


def under_head(objects: list[ObjectInfo]) -> list[ObjectInfo]:
    return [ObjectInfo(HEAD + info.url, info.size, info.etag) for info in objects]


@given(OBJECTS, st.booleans(), st.sampled_from([NAMESPACE, ""]))
def test_a_page_reads_as_it_was_written(
    objects: list[ObjectInfo], encoded: bool, space: str
) -> None:
    written = objects
    if encoded:
        written = [ObjectInfo(quote_plus(one.url), one.size, one.etag) for one in objects]
    more = "<EncodingType>url</EncodingType>" if encoded else ""
    page = parse_page(HEAD, HEAD, document(written, more, space=space))
    assert (page.objects, page.token) == (under_head(objects), None)


def test_another_page_follows() -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>"
    assert parse_page(HEAD, HEAD, document([], more)).token == "a&b"
    last = more.replace("true", "false")
    assert parse_page(HEAD, HEAD, document([], last)).token is None


def test_common_prefixes_are_no_objects() -> None:
    more = "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>"
    found = parse_page(HEAD, HEAD, document([ObjectInfo("b", 1, '"c"')], more))
    assert found.objects == under_head([ObjectInfo("b", 1, '"c"')])


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>' + document([])


@pytest.mark.parametrize(
    "page",
    [
        *(b"", b"<html>", b"\xff\xfe<", b"<ListBucketResult>", b"<Error><Code>X</Code></Error>"),
        BOMB,
        BOMB.decode().encode("utf-16"),
        document([], "<IsTruncated>true</IsTruncated>"),
        document([], "<Contents><Key>a</Key></Contents>"),
        document([], "<Contents><Size>1</Size></Contents>"),
        document([], "<Contents><Key>a</Key><Size>many</Size></Contents>"),
        document([], "<Contents><Key>a</Key><Size>-1</Size></Contents>"),
        document([], f"<Contents><Key>a</Key><Size>{1 << 63}</Size></Contents>"),
        document([], "<Prefix>&a;</Prefix>"),
    ],
    ids=range(14),
)
def test_what_is_no_listing(page: bytes) -> None:
    with pytest.raises(StoreMisbehaved, match="endpoint_url") as caught:
        parse_page("s3://bucket/train-", HEAD, page)
    assert caught.value.url == "s3://bucket/train-"


@given(st.binary())
def test_any_document(page: bytes) -> None:
    with pytest.raises(StoreMisbehaved):
        parse_page(HEAD, HEAD, page)


KEYS = {"key": "test", "secret": "testsecret"}


@asynccontextmanager
async def opened(options: dict[str, Any], **settings: Any) -> AsyncIterator[S3Store]:
    store = S3Store(options, **settings)
    try:
        yield store
        assert not in_use(store)
    finally:
        await store.aclose()


async def no_sleep(seconds: float) -> None:
    """Time flies."""


def in_use(store: S3Store) -> int:
    """Return the number of connections that no range has given back."""
    session = store._client._session
    return len(session.connector._acquired) if session and session.connector else 0


@asynccontextmanager
async def devstore_bench() -> AsyncIterator[Bench]:
    async with DevStore() as devstore:
        wrong = {**devstore.storage_options, "key": "wrong"}
        store_opened = opened(devstore.storage_options, sleep=no_sleep)
        async with store_opened as store, opened(wrong) as denied:
            yield Bench(
                store,
                url=lambda name: f"s3://bucket/{name}",
                put=lambda name, data: devstore.put(f"bucket/{name}", data),
                denied=denied,
                devstore=devstore,
            )


class TestS3OnDevstore(
    StoreConformance, ListingConformance, WritingConformance, AccessConformance, FaultConformance
):
    @pytest.fixture
    def backend(self) -> Backend:
        return devstore_bench


@asynchronous
async def test_one_request_a_range_and_no_other() -> None:
    async with devstore_bench() as bench:
        assert bench.devstore
        bench.put("x", DATA)
        _, info = await read(bench.store, bench.url("x"), 0, 10)
        for start in (10, 20, 30):
            await read(bench.store, bench.url("x"), start, start + 10, etag=info.etag)
        records = bench.devstore.statistics.records
        assert Counter(each.kind for each in records) == {"GetObject": 4}
        assert {each.signed for each in records} == {"query"}
        assert {each.query["X-Amz-Algorithm"] for each in records} == {"AWS4-HMAC-SHA256"}
        assert len({each.query["X-Amz-Signature"] for each in records}) == 1
        assert [each.if_match for each in records] == [None, *[info.etag] * 3]


@asynchronous
async def test_listing_in_pages() -> None:
    names = [f"{number:04}" for number in range(2500)]
    async with devstore_bench() as bench:
        assert bench.devstore
        for name in ["\uffff", "\U00010000", "a b+%#?&=~", *names]:
            bench.put(f"in/{name}", b"")
        found = [info.url async for info in bench.store.list(bench.url("in/"))]
        wanted = [*names, "a b+%#?&=~", "\uffff", "\U00010000"]
        assert found == [bench.url(f"in/{name}") for name in wanted]
        queries = [each.query for each in bench.devstore.statistics.records]
        assert {"in/1999", "in/0999"} & {each.get("start-after") for each in queries}
        assert not any({"start-after", "continuation-token"} <= set(each) for each in queries)


@asynchronous
async def test_a_busy_page_does_not_begin_the_listing_again() -> None:
    async with devstore_bench() as bench:
        assert bench.devstore
        for number in range(1500):
            bench.put(f"{number:04}", b"")
        bench.devstore.faults = [FaultRule(nth=2, status=503)]
        found = [info.url async for info in bench.store.list(bench.url(""))]
        assert found == [bench.url(f"{number:04}") for number in range(1500)]
        queries = [set(each.query) for each in bench.devstore.statistics.records]
        assert sum(not query & {"start-after", "continuation-token"} for query in queries) == 1


@pytest.mark.parametrize("fault", [{"latency": 3600}, {"stall_after": 20}], ids=str)
@asynchronous
async def test_a_page_that_does_not_come_is_cut_and_asked_for_again(
    fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_store, "DOCUMENT_SECONDS", 0.05)
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    async with DevStore() as devstore:
        devstore.put("bucket/a", b"")
        devstore.faults = [FaultRule.model_validate(fault)]
        async with opened(devstore.storage_options, sleep=sleep) as store:
            with pytest.raises(StoreUnavailable, match=r"s3://bucket/a: a page .* 0\.05 s"):
                [info async for info in store.list("s3://bucket/a")]
        assert len(naps) == RETRIES


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchBucket", ObjectNotFound),
        (403, "AccessDenied", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (400, "ExpiredToken", AccessDenied),
        (503, "SlowDown", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (400, "InvalidArgument", StoreError),
        (403, "InvalidObjectState", StoreError),
    ],
)
@asynchronous
async def test_refusals_mean_the_same_in_listings_and_ranges(
    status: int, code: str, kind: type[StoreError]
) -> None:
    async with DevStore() as devstore:
        devstore.faults = [FaultRule(status=status, code=code, retry_after=0)]
        async with opened(devstore.storage_options, sleep=no_sleep) as store:
            with pytest.raises(kind) as listing:
                [info async for info in store.list("s3://bucket/a")]
            with pytest.raises(kind) as reading:
                await read(store, "s3://bucket/a", 0, 10)
    assert type(listing.value) is type(reading.value) is kind
    assert str(listing.value) == str(reading.value)
    assert listing.value.url == "s3://bucket/a"
    if isinstance(listing.value, StoreUnavailable) and isinstance(reading.value, StoreUnavailable):
        assert listing.value.retry_after == reading.value.retry_after == 0.0


@asynchronous
async def test_unreachable_endpoint() -> None:
    async with opened({**KEYS, "endpoint_url": "http://127.0.0.1:1"}, sleep=no_sleep) as store:
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            [info async for info in store.list("s3://bucket/")]
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await read(store, "s3://bucket/x", 0, 10)


@asynchronous
async def test_no_s3_behind_the_endpoint() -> None:
    async with DevStore() as devstore:
        devstore.faults = [FaultRule(headers={"Content-Type": "text/html"}, truncate_after=40)]
        async with opened(devstore.storage_options, sleep=no_sleep) as store:
            devstore.put("bucket/x", DATA)
            with pytest.raises((StoreMisbehaved, StoreUnavailable)):
                [info async for info in store.list("s3://bucket/")]


@asynchronous
async def test_bucket_in_another_region() -> None:
    async with devstore_bench() as bench:
        assert bench.devstore
        bench.put("x", DATA)
        elsewhere = FaultRule(
            nth=1,
            status=400,
            code="AuthorizationHeaderMalformed",
            headers={"x-amz-bucket-region": "eu-west-3"},
        )
        bench.devstore.faults = [elsewhere]
        for start in (0, 10):
            await read(bench.store, bench.url("x"), start, start + 10)
        scopes = [
            each.query["X-Amz-Credential"].split("/")[2]
            for each in bench.devstore.statistics.records
        ]
        assert scopes == ["us-east-1", "eu-west-3", "eu-west-3"]


@asynchronous
async def test_listing_a_bucket_in_another_region() -> None:
    async with devstore_bench() as bench:
        assert bench.devstore
        bench.put("x", DATA)
        headers = {"x-amz-bucket-region": "eu-west-3", "Location": "http://127.0.0.1:1/"}
        moved = FaultRule(nth=1, status=301, code="PermanentRedirect", headers=headers)
        bench.devstore.faults = [moved]
        assert [info.url async for info in bench.store.list(bench.url(""))] == [bench.url("x")]
        scopes = [
            each.query["X-Amz-Credential"].split("/")[2]
            for each in bench.devstore.statistics.records
        ]
        assert scopes == ["us-east-1", "eu-west-3"]


@pytest.mark.parametrize("name", ["a b+c%d&e=f", "ü/#?", "<&>\"'", "  ", "*~"])
@asynchronous
async def test_odd_names_are_listed_as_they_are(name: str) -> None:
    async with devstore_bench() as bench:
        bench.put(name, b"")
        for prefix in ("", name[:1], name):
            found = [info.url async for info in bench.store.list(bench.url(prefix))]
            assert found == [bench.url(name)]


@asynchronous
async def test_region_that_does_not_help() -> None:
    async with devstore_bench() as bench:
        assert bench.devstore
        headers = {"x-amz-bucket-region": "eu-west-3", "Location": "http://127.0.0.1:1/"}
        bench.devstore.faults = [FaultRule(status=301, code="PermanentRedirect", headers=headers)]
        with pytest.raises(StoreError, match="region_name") as caught:
            await read(bench.store, bench.url("x"), 0, 10)
        assert type(caught.value) is StoreError
        assert len(bench.devstore.statistics.records) == 2


@asynchronous
async def test_anonymous() -> None:
    async with DevStore(anonymous=True) as devstore:
        devstore.put("bucket/x", DATA)
        async with opened({"anon": True, "endpoint_url": devstore.endpoint}) as store:
            assert (await read(store, "s3://bucket/x", 0, 10))[0] == DATA[:10]
            assert [info.url async for info in store.list("s3://bucket/")] == ["s3://bucket/x"]
        assert {each.signed for each in devstore.statistics.records} == {None}


@asynchronous
async def test_no_credentials() -> None:
    async with DevStore() as devstore, opened({"endpoint_url": devstore.endpoint}) as store:
        with pytest.raises(AccessDenied, match="anon=True"):
            await read(store, "s3://bucket/x", 0, 10)
        with pytest.raises(AccessDenied, match="anon=True"):
            [info async for info in store.list("s3://bucket/")]


@asynchronous
async def test_profile_and_endpoint_in_client_kwargs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[ours]\naws_access_key_id = test\naws_secret_access_key = testsecret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    async with DevStore() as devstore:
        devstore.put("bucket/x", DATA)
        options = {"profile": "ours", "client_kwargs": {"endpoint_url": devstore.endpoint}}
        async with opened(options) as store:
            assert (await read(store, "s3a://bucket/x", 0, 10))[0] == DATA[:10]
            assert [info.url async for info in store.list("s3a://bucket/")] == ["s3a://bucket/x"]
        with pytest.raises(ConfigError, match="theirs"):
            async with opened({**options, "profile": "theirs"}) as store:
                await read(store, "s3://bucket/x", 0, 10)


@asynchronous
async def test_kept_signature_is_renewed_when_it_is_refused() -> None:
    async with devstore_bench() as bench:
        assert bench.devstore
        bench.put("x", DATA)
        await read(bench.store, bench.url("x"), 0, 10)
        bench.devstore.faults = [FaultRule(nth=1, status=403, code="AccessDenied")]
        await read(bench.store, bench.url("x"), 0, 10)
        assert [each.status for each in bench.devstore.statistics.records] == [206, 403, 206]
        bench.devstore.faults = [FaultRule(status=403, code="AccessDenied")]
        with pytest.raises(AccessDenied):
            await read(bench.store, bench.url("x"), 0, 10)
        assert len(bench.devstore.statistics.records) == 5


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 403, "code": "SignatureDoesNotMatch"},
        {"status": 503},
        {"status": 412, "code": "PreconditionFailed"},
        {"refuse": True},
        {"truncate_after": 1},
        {"content_range": "nonsense"},
        {"headers": {"Content-Encoding": "br"}},
    ],
)
@asynchronous
async def test_secrets_stay_secret(fault: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with DevStore(keys={"AKIDUNTOLD": "testsecret"}) as devstore:
        devstore.put("bucket/x", DATA)
        devstore.faults = [FaultRule.model_validate(fault)]
        async with opened({**devstore.storage_options, "token": "tokenuntold"}) as store:
            with pytest.raises(StoreError) as caught:
                await read(store, "s3://bucket/x", 0, 10)
            signed, _ = await store._signer("bucket").sign("", get_object("bucket", "x"))
            shown = [repr(store), repr(store._signer("bucket")), repr(signed), str(store)]
    shown += [str(caught.value), repr(caught.value), caplog.text]
    shown += traceback.format_exception(caught.value)
    text = "\n".join(shown)
    assert "s3://bucket/x" in text
    for secret in ("AKIDUNTOLD", "testsecret", "tokenuntold", "X-Amz", "Signature="):
        assert secret not in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"foo": 1}, "no option 'foo'"),
        ({"endpoint": "http://127.0.0.1:1"}, "no option 'endpoint'.*'endpoint_url'"),
        ({"endpoint_url": "nonsense"}, "Invalid endpoint"),
        ({"client_kwargs": "nonsense"}, "'client_kwargs' must be a mapping"),
        ({"config_kwargs": {"nonsense": 1}}, "nonsense"),
        ({"key": "a", "username": "b"}, "not both"),
    ],
)
@asynchronous
async def test_options_that_do_not_serve(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with opened({**KEYS, **options}) as store:
            await read(store, "s3://bucket/x", 0, 10)


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "s3://bucket", "s3://bucket/"])
@asynchronous
async def test_url_without_an_object(url: str) -> None:
    async with opened(KEYS) as store:
        with pytest.raises(ConfigError, match="s3://bucket/object"):
            await read(store, url, 0, 10)


@asynchronous
async def test_buckets_are_named_in_full() -> None:
    async with opened(KEYS) as store:
        with pytest.raises(ConfigError, match="in full"):
            [info async for info in store.list("s3://buck")]


@asynchronous
async def test_bucket_name_that_s3_does_not_allow() -> None:
    async with opened(KEYS) as store:
        with pytest.raises(ConfigError, match="bucket"):
            await read(store, "s3://no bucket/x", 0, 10)


@asynchronous
async def test_closing_unused() -> None:
    store = S3Store(KEYS)
    await store.aclose()
    await asyncio.sleep(0)


async def part_of(bench: Bench, listed: ObjectInfo, begin: int) -> None:
    """Read ten bytes of an object that responses name otherwise than its listing."""
    data, info = await read(bench.store, listed.url, begin, begin + 10, etag=listed.etag)
    assert data == DATA[begin : begin + 10]
    assert info.etag == '"other"'


class TestOtherNamesInListings:
    """Swift's S3 API lists objects of several parts with other ETags than it answers with."""

    @asynchronous
    async def test_the_listing_confirms_once(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            (listed,) = [found async for found in bench.store.list(bench.url(""))]
            bench.devstore.faults = [FaultRule(method="GET", path="/x$", etag="other")]
            bench.devstore.statistics.records.clear()
            await asyncio.gather(*(part_of(bench, listed, begin) for begin in range(0, 30, 10)))
            await part_of(bench, listed, 30)
            asked = [each.query for each in bench.devstore.statistics.records]
            assert sum("list-type" in query for query in asked) == 1

    @asynchronous
    async def test_a_second_version_is_a_change(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            (listed,) = [found async for found in bench.store.list(bench.url(""))]
            for etag in ("other", "third"):
                bench.devstore.faults = [FaultRule(method="GET", path="/x$", etag=etag)]
                if etag == "other":
                    await read(bench.store, listed.url, 0, 10, etag=listed.etag)
            with pytest.raises(ObjectChanged):
                await read(bench.store, listed.url, 10, 20, etag=listed.etag)

    @asynchronous
    async def test_a_version_that_was_read_is_never_taken_for_another(self) -> None:
        async with devstore_bench() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            (listed,) = [found async for found in bench.store.list(bench.url(""))]
            await read(bench.store, listed.url, 0, 10, etag=listed.etag)
            bench.devstore.faults = [FaultRule(method="GET", path="/x$", etag="other")]
            with pytest.raises(ObjectChanged):
                await read(bench.store, listed.url, 10, 20, etag=listed.etag)

    @asynchronous
    async def test_an_object_that_was_replaced_since_its_listing_is_refused(self) -> None:
        async with devstore_bench() as bench:
            bench.put("x", DATA)
            (listed,) = [found async for found in bench.store.list(bench.url(""))]
            bench.put("x", DATA[::-1])
            with pytest.raises(ObjectChanged):
                await read(bench.store, listed.url, 0, 10, etag=listed.etag)
