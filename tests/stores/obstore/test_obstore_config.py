from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("obstore", reason="obstore is not installed; pip install streamrec[obstore]")

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from streamrec.errors import ConfigError
from streamrec.stores.http.transport import transport_of
from streamrec.stores.obstore.obstore_config import Connection, s3_config, split_place
from tests.support import asynchronous

if TYPE_CHECKING:
    from tests.stores.certificates import Authority


@pytest.mark.parametrize(
    ("url", "place", "key"),
    [
        ("s3://bucket/a/b?c#d", "s3://bucket", "a/b?c#d"),
        ("S3A://bucket/a", "s3://bucket", "a"),
        ("gcs://bucket/a", "gs://bucket", "a"),
        ("az://container/", "az://container", ""),
        ("abfs://c@account.dfs.core.windows.net/x", "abfs://c@account.dfs.core.windows.net", "x"),
        ("https://host:1/a%20b", "https://host:1", "a%20b"),
    ],
)
def test_places(url: str, place: str, key: str) -> None:
    assert split_place(url) == (place, key)


@pytest.mark.parametrize("url", ["s3://", "/data", "https://h/x?sig=untold", "http://u:untold@h/x"])
def test_what_has_no_place(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_place(url)
    assert "untold" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({"key": "a", "secret": "b", "profile": "c"}, {}),
        ({"endpoint_url": "http://h:1"}, {"endpoint": "http://h:1"}),
        (
            {"client_kwargs": {"endpoint_url": "http://h:1", "region_name": "eu-west-3"}},
            {"endpoint": "http://h:1", "region": "eu-west-3"},
        ),
        ({"requester_pays": True, "anon": True}, {"request_payer": True, "skip_signature": True}),
        (
            {"config_kwargs": {"s3": {"addressing_style": "virtual"}}},
            {"virtual_hosted_style_request": True},
        ),
        ({"config_kwargs": {"s3": {"addressing_style": "path"}}, "verify": False}, {}),
        (
            {"s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "kkk"}},
            {"server_side_encryption": "sse-c", "sse_customer_key_base64": "a2tr"},
        ),
    ],
)
def test_s3s_options(options: dict[str, Any], config: dict[str, Any]) -> None:
    assert s3_config(options) == config


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"version_aware": True}, "version_aware"),
        ({"s3_additional_kwargs": {"ExpectedBucketOwner": "1"}}, "ExpectedBucketOwner"),
        ({"loop": None}, "loop"),
    ],
)
def test_what_obstore_does_not_do(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'"):
        s3_config(options)


@pytest.mark.parametrize(
    ("place", "options", "kind"),
    [
        ("s3://bucket", {"key": "a", "secret": "b"}, S3Store),
        ("https://host", {"headers": {"X-Token": "open"}}, HTTPStore),
        ("az://container", {"account_name": "a", "account_key": "a2tr"}, AzureStore),
        ("gs://bucket", {"skip_signature": True, "proxy": "http://p:1"}, GCSStore),
    ],
)
@asynchronous
async def test_clients(place: str, options: dict[str, Any], kind: type) -> None:
    connection = Connection(options)
    assert isinstance(await connection.open(place), kind)
    await connection.aclose()


@asynchronous
async def test_credentials_are_those_of_the_other_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fromoutside")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "untold")
    for options, key in (({}, "fromoutside"), ({"key": "own", "secret": "s"}, "own")):
        connection = Connection(options)
        found = await connection._credentials()
        assert found["access_key_id"] == key
        assert found["expires_at"] is None
        await connection.aclose()
        await connection.aclose()


@asynchronous
async def test_how_servers_are_reached(authority: Authority) -> None:
    connection = Connection({})
    client = await connection._client_config(
        transport_of({"verify": authority.file, "proxy": "http://p:1"})
    )
    assert client["read_timeout"] == "60000ms"
    assert client["proxy_url"] == "http://p:1"
    assert b"BEGIN CERTIFICATE" in client["root_certificate"]
    assert "allow_invalid_certificates" not in client
    assert (await connection._client_config(transport_of({"verify": False})))[
        "allow_invalid_certificates"
    ]
