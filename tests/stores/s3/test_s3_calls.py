from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiobotocore.session import AioSession
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st
from s3fs import S3FileSystem

from streamrec.stores.s3.s3_calls import (
    Call,
    Endpoint,
    GetObject,
    ListObjects,
    plain_endpoint,
    sign,
)
from streamrec.stores.s3.s3_client import SigningClient
from streamrec.stores.s3.s3_options import sdk_options
from tests.support import examples

KEYS = {"key": "test", "secret": "testsecret"}
CUSTOM = {**KEYS, "endpoint_url": "http://127.0.0.1:1"}
NOW = datetime(2026, 5, 17, 12, 30, tzinfo=UTC)
CALLS: list[Call] = [
    GetObject("bucket", "key"),
    GetObject("bucket", "a b/ü+%#?&=~.tfrecord"),
    GetObject("bucket", "/leading//double/../dots/./"),
    GetObject("bu-cket-0", "a\nb"),
    ListObjects("bucket", "", "", ""),
    ListObjects("bucket", "a b/ü+%#?&=~", "/", ""),
    ListObjects("bucket", "train-", "", "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM="),
    ListObjects("bucket", "train-", "", after="train-ü+%#?&=~"),
]
PLAIN: list[dict[str, Any]] = [
    CUSTOM,
    {**CUSTOM, "endpoint_url": "https://store.example:8443/"},
    {**CUSTOM, "client_kwargs": {"region_name": "eu-west-3", "verify": False}},
    {**CUSTOM, "token": "to/ken=="},
    {**CUSTOM, "requester_pays": True},
    {**CUSTOM, "config_kwargs": {"s3": {"addressing_style": "path"}, "read_timeout": 3}},
    {"anon": True, "endpoint_url": "http://127.0.0.1:1"},
    {**KEYS, "client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}},
    KEYS,
    {**KEYS, "client_kwargs": {"region_name": "us-east-1"}},
    {**KEYS, "client_kwargs": {"region_name": "us-west-2"}},
    {**KEYS, "client_kwargs": {"region_name": "eu-west-3"}, "requester_pays": True},
    {"anon": True, "client_kwargs": {"region_name": "ap-southeast-2"}},
    {"username": "test", "password": "testsecret"},
]


def filesystem(options: dict[str, Any]) -> Any:
    return S3FileSystem(**sdk_options(options), asynchronous=True, skip_instance_cache=True)


def endpoint_of(options: dict[str, Any], environment: dict[str, str] | None = None) -> Any:
    session = AioSession()
    return plain_endpoint(
        filesystem(options), session.get_config_variable, environment or session.get_scoped_config()
    )


def ours(options: dict[str, Any], call: Call) -> Any:
    of = filesystem(options)
    endpoint = endpoint_of(options)
    assert endpoint is not None
    credentials = None if of.anon else Credentials(of.key, of.secret, of.token)
    return sign(call, endpoint, credentials, 900, pays=bool(of.requester_pays))


async def theirs(options: dict[str, Any], calls: list[Call]) -> list[Any]:
    client = SigningClient(filesystem(options))
    try:
        return [await client.sign(call, 900) for call in calls]
    finally:
        await client.aclose()


def parts(signed: Any) -> Any:
    """Return the parts of a signed URL that must be equal, with the query in any order."""
    address, headers = signed
    split = urlsplit(address)
    query = parse_qs(split.query, keep_blank_values=True)
    return split[:2], split.path or "/", query, dict(headers)


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None))


@pytest.mark.parametrize("options", PLAIN, ids=count())
def test_the_same_as_the_clients(options: dict[str, Any]) -> None:
    for call, expected in zip(CALLS, asyncio.run(theirs(options, CALLS)), strict=True):
        assert parts(ours(options, call)) == parts(expected)


@settings(max_examples=examples(5), deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), min_size=20))
def test_the_same_for_any_key_and_prefix(names: list[str]) -> None:
    calls: list[Call] = [GetObject("bucket", name) for name in names]
    calls += [ListObjects("bucket", name, "/", name, name) for name in names]
    expected = asyncio.run(theirs(CUSTOM, calls))
    assert [parts(ours(CUSTOM, call)) for call in calls] == [parts(one) for one in expected]


@pytest.mark.parametrize(
    "options",
    [
        {**CUSTOM, "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256"}},
        {**CUSTOM, "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
        {**CUSTOM, "config_kwargs": {"s3": {"payload_signing_enabled": True}}},
        {**CUSTOM, "config_kwargs": {"signature_version": "s3"}},
        {**CUSTOM, "config_kwargs": {"region_name": "eu-west-3"}},
        {**CUSTOM, "client_kwargs": {"aws_access_key_id": "x"}},
        {**CUSTOM, "client_kwargs": {"endpoint_url": "http://127.0.0.1:2"}},
        {**CUSTOM, "endpoint_url": "http://127.0.0.1:1/path"},
        {**CUSTOM, "endpoint_url": "nonsense"},
        {**CUSTOM, "endpoint_url": "https://s3.eu-west-3.amazonaws.com"},
        {**CUSTOM, "cache_regions": True},
        {**CUSTOM, "anon": True, "requester_pays": True},
        {**CUSTOM, "secret": None},
        {**CUSTOM, "nonsense": 1},
        {"token": "token", "endpoint_url": "http://127.0.0.1:1"},
        {**KEYS, "use_ssl": False},
        {**KEYS, "client_kwargs": {"region_name": "cn-north-1"}},
        {**KEYS, "client_kwargs": {"region_name": "us-gov-west-1"}},
        {**KEYS, "client_kwargs": {"region_name": "nowhere"}},
        {**KEYS, "config_kwargs": {"s3": {"addressing_style": "path"}}},
        {**KEYS, "config_kwargs": {"s3": {"use_accelerate_endpoint": True}}},
    ],
    ids=count(),
)
def test_what_is_left_to_the_client(options: dict[str, Any]) -> None:
    assert endpoint_of(options) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_USE_FIPS_ENDPOINT", "true"),
        ("AWS_USE_DUALSTACK_ENDPOINT", "true"),
        ("AWS_DEFAULTS_MODE", "standard"),
        ("AWS_SIGV4A_SIGNING_REGION_SET", "*"),
        ("AWS_AUTH_SCHEME_PREFERENCE", "sigv4a"),
        ("AWS_S3_US_EAST_1_REGIONAL_ENDPOINT", "regional"),
    ],
)
def test_variables_that_change_the_rules(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endpoint_of(KEYS) == Endpoint(None)
    monkeypatch.setenv(name, value)
    assert endpoint_of(KEYS) is None


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "services"])
def test_endpoints_that_are_named_elsewhere(name: str) -> None:
    assert endpoint_of(KEYS, {name: "http://127.0.0.1:2"}) is None
    assert endpoint_of(CUSTOM, {name: "http://127.0.0.1:2"}) == Endpoint(None, "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "bucket",
    [
        *("with.dots", "Upper", "under_score", "ab", "a" * 64, "xn--bucket", "no bucket"),
        *("alias-s3alias", "name--ol-s3", "arn:aws:s3:eu-west-3:1:accesspoint/name"),
    ],
)
def test_buckets_that_are_left_to_the_client(bucket: str) -> None:
    signing = partial(sign, credentials=Credentials("a", "b"), seconds=900, pays=False)
    for endpoint in (Endpoint("eu-west-3"), Endpoint(None, "http://127.0.0.1:1")):
        assert signing(GetObject(bucket, "key"), endpoint) is None
        assert signing(ListObjects(bucket, "", "", ""), endpoint) is None
