from __future__ import annotations

import base64
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web

from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, StoreUnavailable
from streamrec.stores.s3.presign import get_object
from streamrec.stores.s3.s3_options import (
    check_options,
    mapping_of,
    reason_to_fall_back,
    sdk_options,
)
from tests.stores.conformance import (
    DATA,
    AccessConformance,
    Backend,
    Bench,
    FaultConformance,
    ListingConformance,
    StoreConformance,
    read,
)
from tests.stores.http_server import serving
from tests.stores.s3.test_s3_store import KEYS, opened
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SLOW = {"version_aware": True}
CUSTOMER_KEY = "k" * 32


@pytest.mark.parametrize("name", ["asynchronous", "loop", "skip_instance_cache"])
def test_what_is_ours(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is set by streamrec itself"):
        check_options({name: None})


@pytest.mark.parametrize("name", ["Range", "IfMatch", "PartNumber"])
def test_what_would_change_the_object(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' in 's3_additional_kwargs'"):
        check_options({"s3_additional_kwargs": {name: 1}})


def test_what_has_no_effect_is_taken() -> None:
    check_options(
        {"default_block_size": 5, "cache_regions": True, "s3_additional_kwargs": {"MaxKeys": 1}}
    )


@pytest.mark.parametrize(
    ("options", "bucket", "words"),
    [
        ({}, "bucket", None),
        ({"version_aware": False}, "bucket", None),
        ({"version_aware": True}, "bucket", "versionId"),
        ({}, "name--euw3-az1--x-s3", "directory bucket"),
        ({}, "arn:aws:s3::1:accesspoint/name.mrap", "multi-region"),
        ({}, "arn:aws:s3:eu-west-3:1:accesspoint/name", None),
    ],
)
def test_reasons(options: dict[str, Any], bucket: str, words: str | None) -> None:
    reason = reason_to_fall_back(options, bucket)
    assert reason is words is None or (words is not None and words in (reason or ""))


def test_what_the_user_says_wins() -> None:
    given = {"key": "a", "config_kwargs": {"retries": {"max_attempts": 7}}}
    options = sdk_options(given)
    assert options["config_kwargs"] == {
        "signature_version": "s3v4",
        "retries": {"max_attempts": 7},
    }
    assert options["client_kwargs"] == {}
    assert sdk_options({}, region="eu-west-3")["client_kwargs"] == {"region_name": "eu-west-3"}
    assert given == {"key": "a", "config_kwargs": {"retries": {"max_attempts": 7}}}


def test_mappings_are_copied() -> None:
    options = {"client_kwargs": {"verify": False}}
    mapping_of(options, "client_kwargs")["verify"] = True
    assert options == {"client_kwargs": {"verify": False}}
    with pytest.raises(ConfigError, match="must be a mapping"):
        mapping_of({"client_kwargs": 1}, "client_kwargs")


class TestFallback(StoreConformance, ListingConformance, AccessConformance, FaultConformance):
    """s3fs as it is: an asynchronous filesystem in the running loop."""

    @pytest.fixture
    def backend(self) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with DevStore() as devstore:
                options = {**devstore.storage_options, **SLOW}
                async with opened(options) as store, opened({**options, "key": "no"}) as denied:
                    yield Bench(
                        store,
                        url=lambda name: f"s3://bucket/{name}",
                        put=lambda name, data: devstore.put(f"bucket/{name}", data),
                        denied=denied,
                        devstore=devstore,
                    )

        return make

    @asynchronous
    async def test_stalled_body_is_cancelled(self, backend: Backend) -> None:
        """A piece comes whole or not at all."""


@asynchronous
async def test_falling_back_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "streamrec")
    async with DevStore() as devstore:
        for bucket in ("one", "two"):
            devstore.put(f"{bucket}/x", DATA)
        async with opened({**devstore.storage_options, **SLOW}) as store:
            for bucket in ("one", "two", "one"):
                await read(store, f"s3://{bucket}/x", 0, 10)
        assert {each.signed for each in devstore.statistics.records} == {"header"}
    assert [record.name for record in caplog.records] == ["streamrec.stores.s3.s3_store"] * 2
    assert "s3://one is read through s3fs" in caplog.messages[0]
    assert "s3://two" in caplog.messages[1]
    assert "versionId" in caplog.messages[0]
    assert "testsecret" not in caplog.text


@asynchronous
async def test_nothing_is_said_on_the_fast_path(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "streamrec")
    async with DevStore() as devstore:
        devstore.put("bucket/x", DATA)
        async with opened({**devstore.storage_options, "default_block_size": 1 << 20}) as store:
            await read(store, "s3://bucket/x", 0, 10)
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {}),
        ({"requester_pays": True}, {"x-amz-request-payer": "requester"}),
        (
            {"s3_additional_kwargs": {"ExpectedBucketOwner": "123", "StorageClass": "X"}},
            {"x-amz-expected-bucket-owner": "123"},
        ),
        (
            {
                "s3_additional_kwargs": {
                    "SSECustomerAlgorithm": "AES256",
                    "SSECustomerKey": CUSTOMER_KEY,
                }
            },
            {
                "x-amz-server-side-encryption-customer-algorithm": "AES256",
                "x-amz-server-side-encryption-customer-key": base64.b64encode(
                    CUSTOMER_KEY.encode()
                ).decode(),
                "x-amz-server-side-encryption-customer-key-md5": "mT2HRsMGJ5IX5C+0rreZ8Q==",
            },
        ),
    ],
    ids=["none", "requester pays", "owner", "customer's key"],
)  # fmt: skip
@asynchronous
async def test_what_is_signed_is_sent(options: dict[str, Any], sent: dict[str, str]) -> None:
    seen: list[tuple[dict[str, str], str]] = []

    async def answer(request: web.Request) -> web.Response:
        own = {k.lower(): v for k, v in request.headers.items() if k.lower().startswith("x-amz")}
        seen.append((own, request.query["X-Amz-SignedHeaders"]))
        return web.Response(body=DATA)

    async with serving(answer) as server:
        async with opened({**KEYS, **options, "endpoint_url": server}) as store:
            for key in ("x", "y"):
                assert (await read(store, f"s3://bucket/{key}", 0, 10))[0] == DATA[:10]
            signed, _ = await store._signer("bucket").sign("", get_object("bucket", "x"))
    assert [headers for headers, _ in seen] == [sent, sent]
    for _, names in seen:
        assert names.split(";") == sorted(["host", *sent])
    assert CUSTOMER_KEY not in repr(signed)


@pytest.mark.parametrize(
    ("style", "host", "path"),
    [
        ("path", "host:1", "/bucket/x"),
        ("virtual", "bucket.host:1", "/x"),
        (None, "host:1", "/bucket/x"),
    ],
)
@asynchronous
async def test_addressing_style(style: str | None, host: str, path: str) -> None:
    config = {"config_kwargs": {"s3": {"addressing_style": style}}} if style else {}
    async with opened({**KEYS, **config, "endpoint_url": "http://host:1"}) as store:
        signed, _ = await store._signer("bucket").sign("", get_object("bucket", "x"))
    assert urlsplit(signed.address)[1:3] == (host, path)


@asynchronous
async def test_accelerated_endpoint() -> None:
    config = {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}
    async with opened({**KEYS, **config}) as store:
        signed, _ = await store._signer("bucket").sign("", get_object("bucket", "x"))
    assert urlsplit(signed.address).hostname == "bucket.s3-accelerate.amazonaws.com"
    assert parse_qs(urlsplit(signed.address).query)["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]


@asynchronous
async def test_directory_bucket_goes_beside(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "streamrec")
    async with opened({**KEYS, "endpoint_url": "http://127.0.0.1:1"}) as store:
        with pytest.raises(StoreUnavailable):
            await read(store, "s3://name--euw3-az1--x-s3/x", 0, 10)
    assert "directory bucket" in caplog.text
