from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from s3fs import S3FileSystem

from streamrec.stores.s3.s3_client import SigningClient, get_object, list_objects
from streamrec.stores.s3.s3_options import sdk_options
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OPTIONS = {"key": "test", "secret": "testsecret", "endpoint_url": "http://127.0.0.1:1"}
CUSTOMER = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
LISTING = list_objects("bucket", "train-", "/", "token")


@asynccontextmanager
async def opened(options: dict[str, Any]) -> AsyncIterator[SigningClient]:
    filesystem = S3FileSystem(**sdk_options(options), asynchronous=True, skip_instance_cache=True)
    client = SigningClient(filesystem)
    try:
        yield client
    finally:
        await client.aclose()


def query_of(address: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


@asynchronous
async def test_a_listing() -> None:
    async with opened(OPTIONS) as client:
        address, headers = await client.sign(LISTING, 900)
    asked = {name: value for name, value in query_of(address).items() if "Amz" not in name}
    assert asked == {
        "list-type": "2",
        "encoding-type": "url",
        "prefix": "train-",
        "delimiter": "/",
        "continuation-token": "token",
    }
    assert urlsplit(address).path == "/bucket"
    assert headers == {}


@asynchronous
async def test_each_operation_has_headers_of_its_own() -> None:
    options = {**OPTIONS, "requester_pays": True, "s3_additional_kwargs": CUSTOMER}
    async with opened(options) as client:
        for _ in range(2):
            _, listing = await client.sign(LISTING, 900)
            _, reading = await client.sign(get_object("bucket", "key"), 900)
            assert set(listing) == {"x-amz-request-payer"}
            assert len(reading) == 4
            assert set(listing) < set(reading)


@asynchronous
async def test_renewed_clients_are_closed_in_the_end() -> None:
    async with opened(OPTIONS) as client:
        await client.renew()  # there is none: nothing to renew
        assert client._client is None
        await client.sign(LISTING, 900)
        before = client._client
        await client.renew()
        await client.sign(LISTING, 900)
        assert client._client is not before
        assert client._retired == [before]
    assert client._retired == []


@asynchronous
async def test_closing_makes_no_client() -> None:
    async with opened(OPTIONS) as client:
        pass
    assert client._filesystem._s3 is None
