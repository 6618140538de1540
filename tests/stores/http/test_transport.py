from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import pytest

from streamrec.devstore import DevStore
from streamrec.errors import AccessDenied, ConfigError, StoreError, StoreUnavailable
from streamrec.stores.base.foreign_errors import tls_trouble
from streamrec.stores.http.http_store import HttpStore
from streamrec.stores.http.transport import AUTHORITIES, Transport, transport_of
from streamrec.stores.s3.s3_options import s3_transport, sdk_options
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
from tests.stores.http_server import opened
from tests.stores.s3.test_s3_store import KEYS
from tests.stores.s3.test_s3_store import opened as opened_s3
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.stores.certificates import Authority


class TestHttps(StoreConformance, FaultConformance):
    @pytest.fixture
    def backend(self, authority: Authority) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with DevStore(anonymous=True, tls=authority.server) as devstore:
                async with opened({"verify": authority.file}) as store:
                    yield Bench(
                        store,
                        url=lambda name: devstore.url("bucket/" + quote(name)),
                        put=lambda name, data: devstore.put(f"bucket/{name}", data),
                        devstore=devstore,
                    )

        return make


class TestS3OverTls(StoreConformance, ListingConformance, AccessConformance, FaultConformance):
    @pytest.fixture
    def backend(self, authority: Authority) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with DevStore(tls=authority.server) as devstore:
                options = {**devstore.storage_options, "verify": authority.file}
                async with opened_s3(options) as store:
                    async with opened_s3({**options, "key": "wrong"}) as denied:
                        yield Bench(
                            store,
                            url=lambda name: f"s3://bucket/{name}",
                            put=lambda name, data: devstore.put(f"bucket/{name}", data),
                            denied=denied,
                            devstore=devstore,
                        )

        return make


async def read_http(server: DevStore, options: dict[str, Any]) -> None:
    async with opened(options) as store:
        await read(store, server.url("bucket/x"), 0, 10)


async def read_s3(server: DevStore, options: dict[str, Any]) -> None:
    async with opened_s3({**server.storage_options, **options}) as store:
        await read(store, "s3://bucket/x", 0, 10)


async def list_s3(server: DevStore, options: dict[str, Any]) -> None:
    async with opened_s3({**server.storage_options, **options}) as store:
        assert [info.size async for info in store.list("s3://bucket/")] == [len(DATA)]


EVERY_PATH = pytest.mark.parametrize("path", [read_http, read_s3, list_s3])


@EVERY_PATH
@asynchronous
async def test_unknown_authority(path: Any, authority: Authority) -> None:
    async with DevStore(anonymous=True, tls=authority.server) as server:
        server.put("bucket/x", DATA)
        with pytest.raises(StoreError, match=r"not trusted.*'verify' in storage_options") as caught:
            await path(server, {})
        assert type(caught.value) is StoreError
        assert not caught.value.retryable
        await path(server, {"verify": False})


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"])
@EVERY_PATH
@asynchronous
async def test_authority_from_the_environment(
    path: Any, name: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, authority.file)
    async with DevStore(anonymous=True, tls=authority.server) as server:
        server.put("bucket/x", DATA)
        if path is read_http and name == "AWS_CA_BUNDLE":
            with pytest.raises(StoreError, match="not trusted"):
                await path(server, {})
        else:
            await path(server, {})


@EVERY_PATH
@asynchronous
async def test_certificate_of_another_host(path: Any, authority: Authority) -> None:
    async with DevStore(anonymous=True, tls=authority.context("host.example")) as server:
        server.put("bucket/x", DATA)
        with pytest.raises(StoreError, match="use a name that the certificate holds"):
            await path(server, {"verify": authority.file})


@asynchronous
async def test_outdated_certificate(authority: Authority) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=1)
    tls = authority.context("127.0.0.1", until=long_ago)
    async with DevStore(anonymous=True, tls=tls) as server:
        with pytest.raises(StoreError, match="renew it on the server"):
            await read_http(server, {"ca_bundle": authority.file})


@asynchronous
async def test_no_tls_behind_https() -> None:
    async with DevStore(anonymous=True) as server, opened() as store:
        url = server.url("bucket/x").replace("http:", "https:")
        with pytest.raises(StoreError, match=r"does not speak TLS.*check http or https") as caught:
            await read(store, url, 0, 10)
        assert not caught.value.retryable


@asynchronous
async def test_handshake_that_breaks_off() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, opened() as store:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable):
            await read(store, f"https://127.0.0.1:{port}/x", 0, 10)


@asynccontextmanager
async def proxy(*, status: int = 200) -> AsyncIterator[tuple[str, list[str]]]:
    """Tunnels what it is asked for; its URL, and the first lines of requests."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.append(head.partition(" HTTP")[0])
        writer.write(f"HTTP/1.1 {status} whatever\r\n\r\n".encode())
        if status == 200:
            host, _, port = head.split()[1].rpartition(":")
            there = await asyncio.open_connection(host, int(port))
            await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
        writer.close()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


@EVERY_PATH
@asynchronous
async def test_proxy_by_option(path: Any, authority: Authority) -> None:
    async with DevStore(anonymous=True, tls=authority.server) as server, proxy() as (url, seen):
        server.put("bucket/x", DATA)
        await path(server, {"verify": authority.file, "proxy": url})
        assert set(seen) == {f"CONNECT {server.endpoint.removeprefix('https://')}"}


@EVERY_PATH
@asynchronous
async def test_proxy_by_environment(
    path: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with DevStore(anonymous=True, tls=authority.server) as server, proxy() as (url, seen):
        server.put("bucket/x", DATA)
        monkeypatch.setenv("HTTPS_PROXY", url)
        await path(server, {"verify": authority.file})
        assert set(seen) == {f"CONNECT {server.endpoint.removeprefix('https://')}"}
        seen.clear()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        await path(server, {"verify": authority.file})
        assert not seen


@asynchronous
async def test_proxy_that_refuses(authority: Authority) -> None:
    async with DevStore(anonymous=True, tls=authority.server) as server:
        async with proxy(status=407) as (url, _):
            with pytest.raises(AccessDenied, match="proxy requires credentials"):
                await read_http(server, {"verify": authority.file, "proxy": url})
        with pytest.raises(StoreUnavailable, match="the proxy cannot be reached"):
            await read_http(server, {"verify": authority.file, "proxy": "http://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ({}, {}, Transport()),
        ({"verify": True}, {}, Transport()),
        ({"verify": False}, {"SSL_CERT_FILE": "{file}"}, Transport(check=False)),
        ({"verify": "{file}"}, {"SSL_CERT_FILE": "/none"}, Transport(authority="{file}")),
        ({"ca_bundle": "{file}"}, {}, Transport(authority="{file}")),
        ({}, {"SSL_CERT_FILE": "{file}"}, Transport(authority="{file}")),
        ({"verify": True}, {"SSL_CERT_FILE": "{file}"}, Transport(authority="{file}")),
        (
            {},
            {"REQUESTS_CA_BUNDLE": "{file}", "SSL_CERT_FILE": "/x"},
            Transport(authority="{file}"),
        ),
        ({}, {"AWS_CA_BUNDLE": "/none", "SSL_CERT_FILE": ""}, Transport()),
        ({"proxy": "http://p:1"}, {}, Transport(proxy="http://p:1")),
    ],
)
def test_what_the_options_say(
    options: dict[str, Any],
    environment: dict[str, str],
    expected: Transport,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def filled(text: Any) -> Any:
        return authority.file if text == "{file}" else text

    for name in AUTHORITIES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, filled(value))
    found = transport_of({name: filled(value) for name, value in options.items()})
    wanted = Transport(expected.check, filled(expected.authority), proxy=expected.proxy)
    assert found == wanted


def test_contexts_are_built_when_they_are_needed(authority: Authority) -> None:
    assert Transport().tls is True
    assert Transport(check=False).tls is False
    checked = Transport(authority=authority.file).tls
    assert isinstance(checked, ssl.SSLContext)
    assert checked.verify_mode is ssl.CERT_REQUIRED
    assert len(checked.get_ca_certs()) == 1


@asynchronous
async def test_plain_http_builds_none(authority: Authority) -> None:
    async with DevStore() as devstore:
        devstore.put("bucket/x", DATA)
        async with opened_s3({**devstore.storage_options, "verify": authority.file}) as store:
            await read(store, "s3://bucket/x", 0, 10)
            assert "tls" not in vars(store._client._transport)


def test_own_certificate(tmp_path: Path, authority: Authority) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(authority.pem("client.example"))
    for certificate in (str(own), (str(own), str(own))):
        options = {"config_kwargs": {"client_cert": certificate}, "verify": False}
        context = s3_transport(options).tls
        assert isinstance(context, ssl.SSLContext)
        assert context.verify_mode is ssl.CERT_NONE
    own.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"own\.pem cannot be used"):
        _ = Transport(certificate=str(own)).tls


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"verify": "/none.pem"}, "'verify' names /none.pem, which is not a file"),
        ({"verify": "/"}, "not a file"),
        ({"proxy": "host:3128"}, "such as http://host:3128"),
    ],
)
def test_options_that_do_not_serve(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        HttpStore(options)
    with pytest.raises(ConfigError, match=words):
        s3_transport({**KEYS, **options})


def test_botocores_own_names(authority: Authority) -> None:
    options = {
        "client_kwargs": {"verify": authority.file},
        "config_kwargs": {"proxies": {"https": "http://p:1"}},
    }
    expected = Transport(authority=authority.file, proxy="http://p:1")
    assert s3_transport(options) == expected
    assert s3_transport({"verify": authority.file, "proxy": "http://p:1"}) == expected
    told = sdk_options({"verify": authority.file, "proxy": "http://p:1"})
    assert told["client_kwargs"] == {"verify": authority.file}
    assert told["config_kwargs"]["proxies"] == {"http": "http://p:1", "https": "http://p:1"}
    assert not {"verify", "proxy"}.intersection(told)


def test_what_is_no_trouble_with_tls() -> None:
    assert tls_trouble(OSError()) is None
    assert tls_trouble("reset") is None
    key = SimpleNamespace(host="h", port=1, is_ssl=True)
    broken = aiohttp.ClientConnectorSSLError(key, ssl.SSLEOFError())
    assert tls_trouble(broken) is None
