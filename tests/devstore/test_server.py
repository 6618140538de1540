from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import aiohttp
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from yarl import URL

from streamrec.devstore import DevStore, FaultRule
from streamrec.devstore.objects import DirectoryObjects
from streamrec.devstore.refusals import Refusal
from streamrec.devstore.server import _abort, check_bearer, check_signature
from tests.stores.certificates import Authority
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SIGNED = 1_700_000_000.0  # 2023-11-14T22:13:20Z
QUERY = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": "test/20231114/us-east-1/s3/aws4_request",
    "X-Amz-Date": "20231114T221320Z",
    "X-Amz-Expires": "60",
    "X-Amz-SignedHeaders": "host",
    "X-Amz-Signature": "ab" * 32,
}
HEADER = (
    "AWS4-HMAC-SHA256 Credential=test/20231114/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=abab"
)


def refusal(
    headers: dict[str, str] | None = None, query: dict[str, str] | None = None, **options: Any
) -> tuple[int, str] | None:
    now = options.pop("now", SIGNED)
    try:
        check_signature(CIMultiDict(headers or {}), query or {}, {"test"}, now, **options)
    except Refusal as error:
        return error.status, error.code
    return None


def test_a_signature_in_the_header_passes() -> None:
    assert refusal({"authorization": HEADER}) is None


def test_a_signature_in_the_query_passes() -> None:
    assert refusal(query=QUERY) is None


def test_what_botocore_signs_passes() -> None:
    request = AWSRequest("GET", "http://127.0.0.1/bucket/key")
    S3SigV4Auth(Credentials("test", "testsecret"), "s3", "us-east-1").add_auth(request)
    assert refusal(dict(request.headers)) is None


def test_what_botocore_presigns_passes() -> None:
    request = AWSRequest("GET", "http://127.0.0.1/bucket/key")
    signer = S3SigV4QueryAuth(Credentials("test", "testsecret"), "s3", "us-east-1", expires=60)
    signer.add_auth(request)
    assert refusal(query=dict(URL(request.url).query), now=0.0) is None


def test_anonymous_is_refused_unless_switched_on() -> None:
    assert refusal() == (403, "AccessDenied")
    assert refusal(anonymous=True) is None


@pytest.mark.parametrize("options", [{}, {"anonymous": True}])
def test_an_unknown_key_is_refused_even_where_anonymous_passes(options: dict[str, Any]) -> None:
    wrong = {"Authorization": HEADER.replace("=test/", "=guest/")}
    assert refusal(wrong, **options) == (403, "InvalidAccessKeyId")


def test_a_presigned_url_passes_until_it_expires() -> None:
    assert refusal(query=QUERY, now=SIGNED + 60) is None
    assert refusal(query=QUERY, now=SIGNED + 60.5) == (403, "AccessDenied")


@pytest.mark.parametrize("name", ["X-Amz-Date", "X-Amz-Expires"])
def test_a_presigned_url_needs_its_life(name: str) -> None:
    query = {key: value for key, value in QUERY.items() if key != name}
    assert refusal(query=query) == (400, "AuthorizationQueryParametersError")


@pytest.mark.parametrize(
    "wrong",
    [
        {"X-Amz-Expires": "0"},
        {"X-Amz-Expires": "-1"},
        {"X-Amz-Expires": "604801"},
        {"X-Amz-Expires": "9" * 5000},
        {"X-Amz-Expires": "soon"},
        {"X-Amz-Date": "2023-11-14T22:13:20Z"},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, str]) -> None:
    assert refusal(query=QUERY | wrong) == (400, "AuthorizationQueryParametersError")


def test_a_credential_of_another_service_is_refused() -> None:
    other = {"X-Amz-Credential": "test/20231114/us-east-1/ec2/aws4_request"}
    assert refusal(query=QUERY | other) == (400, "InvalidRequest")


def test_the_outdated_signature_is_refused() -> None:
    assert refusal({"Authorization": "AWS test:abab"}) == (400, "InvalidRequest")
    outdated = {"AWSAccessKeyId": "test", "Signature": "x", "Expires": "9999999999"}
    assert refusal(query=outdated) == (403, "AccessDenied")


@given(st.text(min_size=1, max_size=80))
def test_any_other_authorization_is_refused(text: str) -> None:
    assert refusal({"Authorization": text}) == (400, "InvalidRequest")


TOKENS = {"good": 100.0, "old": 50.0}


@pytest.mark.parametrize("header", ["Bearer good", "bearer good "])
def test_a_known_token_passes(header: str) -> None:
    check_bearer({"Authorization": header}, TOKENS, 60.0)


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize(
    "header", ["Bearer old", "Bearer none", "Bearer", "Basic good", "AWS4-HMAC-SHA256 good", ""]
)
def test_other_tokens_are_refused_wherever_they_come(header: str, anonymous: bool) -> None:
    with pytest.raises(Refusal) as caught:
        check_bearer({"Authorization": header}, TOKENS, 60.0, anonymous=anonymous)
    assert (caught.value.status, caught.value.code) == (401, "authError")
    assert caught.value.headers["WWW-Authenticate"].startswith("Bearer ")


def test_nobody_passes_where_anybody_may() -> None:
    check_bearer({}, TOKENS, 60.0, anonymous=True)
    with pytest.raises(Refusal) as caught:
        check_bearer({}, TOKENS, 60.0)
    assert (caught.value.status, caught.value.code) == (401, "required")


DATA = bytes(range(100))


class Naps:
    """A sleep that only remembers."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


class TestAnswers:
    @asynchronous
    async def test_plain_http_reads_where_anonymous_may(self) -> None:
        async with DevStore(anonymous=True) as store, aiohttp.ClientSession() as session:
            etag = store.put("b/a/k", DATA)
            headers = {"Range": "bytes=90-"}
            async with session.get(store.url("b/a/k"), headers=headers) as answer:
                assert answer.status == 206
                assert answer.headers["ETag"] == f'"{etag}"'
                assert answer.headers["Content-Range"] == "bytes 90-99/100"
                assert await answer.read() == DATA[90:]

    @asynchronous
    async def test_a_request_without_signature_is_refused(self) -> None:
        async with DevStore() as store, aiohttp.ClientSession() as session:
            store.put("b/k", DATA)
            async with session.get(store.url("b/k")) as answer:
                assert answer.status == 403
                assert answer.content_type == "application/xml"
                assert "<Code>AccessDenied</Code>" in await answer.text()

    @asynchronous
    async def test_head_has_no_body_even_of_an_error(self) -> None:
        async with (
            DevStore() as store,
            aiohttp.ClientSession() as session,
            session.head(store.url("b/k")) as answer,
        ):
            assert (answer.status, await answer.read()) == (403, b"")

    @asynchronous
    async def test_a_chunked_body_is_refused(self) -> None:
        headers = {
            "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            "Content-Encoding": "aws-chunked",
            "x-amz-decoded-content-length": "4",
        }
        async with DevStore(anonymous=True) as store, aiohttp.ClientSession() as session:
            store.objects.create_bucket("b")
            body = b"4\r\ndata\r\n0\r\n\r\n"
            async with session.put(store.url("b/k"), data=body, headers=headers) as answer:
                assert (answer.status, "aws-chunked" in await answer.text()) == (501, True)
            assert not store.objects

    @asynchronous
    async def test_a_compressed_body_is_stored_as_it_came(self) -> None:
        async with DevStore(anonymous=True) as store, aiohttp.ClientSession() as session:
            store.objects.create_bucket("b")
            headers = {"Content-Encoding": "gzip"}
            async with session.put(store.url("b/k"), data=b"\x1f\x8b", headers=headers) as answer:
                assert answer.status == 200
            assert store.objects["b/k"] == b"\x1f\x8b"

    @asynchronous
    async def test_a_body_is_asked_for_where_the_client_waits(self) -> None:
        async with DevStore(anonymous=True) as store, aiohttp.ClientSession() as session:
            store.objects.create_bucket("b")
            async with session.put(store.url("b/k"), data=DATA, expect100=True) as answer:
                assert answer.status == 200
            async with session.put(store.url("x/k"), data=DATA, expect100=True) as answer:
                assert answer.status == 404
            assert dict(store.objects) == {"b/k": DATA}

    @asynchronous
    async def test_a_path_is_decoded_once(self) -> None:
        async with DevStore(anonymous=True) as store, aiohttp.ClientSession() as session:
            store.put("b/a%2Fk", DATA)
            address = URL(store.endpoint + "/b/a%252Fk", encoded=True)
            async with session.get(address) as answer:
                assert await answer.read() == DATA


class TestDistance:
    @asynchronous
    async def test_latency_and_bandwidth_are_slept(self) -> None:
        naps = Naps()
        store = DevStore(
            anonymous=True, latency=0.05, bandwidth=1e6, sleep=naps, clock=lambda: 1000.0
        )
        async with store, aiohttp.ClientSession() as session:
            store.put("b/k", bytes(100_000))
            async with session.get(store.url("b/k")) as answer:
                assert len(await answer.read()) == 100_000
        assert naps.seconds[0] == 0.05
        assert naps.seconds[-1] == pytest.approx(0.1)  # the clock stands: naps add up to this
        assert naps.seconds[1:] == sorted(naps.seconds[1:])

    @asynchronous
    async def test_faults_may_add_latency_and_take_bandwidth(self) -> None:
        naps = Naps()
        store = DevStore(
            anonymous=True,
            latency=0.05,
            faults=[FaultRule(latency=1.0, bandwidth=100.0)],
            sleep=naps,
            clock=lambda: 0.0,
        )
        async with store, aiohttp.ClientSession() as session:
            store.put("b/k", DATA)
            async with session.get(store.url("b/k")) as answer:
                await answer.read()
        assert naps.seconds == [pytest.approx(1.05), pytest.approx(1.0)]

    @asynchronous
    async def test_all_connections_share_the_link(self) -> None:
        naps = Naps()
        store = DevStore(anonymous=True, link=1e6, sleep=naps, clock=lambda: 1000.0)
        async with store, aiohttp.ClientSession() as session:
            store.put("b/k", bytes(50_000))
            for _ in range(2):
                async with session.get(store.url("b/k")) as answer:
                    await answer.read()
        assert naps.seconds[-1] == pytest.approx(0.1)  # the clock stands: naps add up to this

    @asynchronous
    async def test_jitter_spreads_latencies_by_the_seed(self) -> None:
        async def slept(seed: int) -> list[float]:
            naps = Naps()
            store = DevStore(anonymous=True, latency=0.05, jitter=0.3, seed=seed, sleep=naps)
            async with store, aiohttp.ClientSession() as session:
                for _ in range(5):
                    async with session.get(store.url("b/k")) as answer:
                        await answer.read()
            return naps.seconds

        first, again, other = await slept(1), await slept(1), await slept(2)
        assert first == again != other
        assert len(set(first)) == 5

    @asynchronous
    async def test_pages_of_listings_have_a_latency_of_their_own(self) -> None:
        naps = Naps()
        paths = ["b?list-type=2", "storage/v1/b/b/o", "b/k"]
        store = DevStore(anonymous=True, latency=0.05, page_latency=2.0, sleep=naps)
        async with store, aiohttp.ClientSession() as session:
            store.put("b/k", DATA)
            for path in paths:
                async with session.get(store.url(path)) as answer:
                    assert answer.status == 200
        assert naps.seconds == [2.0, 2.0, 0.05]

    @pytest.mark.parametrize(
        ("path", "status", "code"),
        [
            ("b/k", 503, "SlowDown"),
            ("storage/v1/b/b/o", 429, "rateLimitExceeded"),
            ("download/storage/v1/b/b/o/k?alt=media", 429, "reduce your request rate"),
        ],
    )
    @asynchronous
    async def test_requests_beyond_the_rate_are_refused(
        self, path: str, status: int, code: str
    ) -> None:
        store = DevStore(anonymous=True, request_rate=20.0, clock=lambda: 1000.0)
        async with store, aiohttp.ClientSession() as session:
            store.put("b/k", DATA)
            for expected in (200, 200, status):
                async with session.get(store.url(path)) as answer:
                    assert answer.status == expected
                    assert expected == 200 or code in await answer.text()
        assert store.statistics.by_status == {200: 2, status: 1}

    @asynchronous
    async def test_requests_beyond_those_at_once_are_refused(self) -> None:
        naps, both = Naps(), asyncio.Event()

        async def nap(seconds: float) -> None:
            await naps(seconds)
            if len(naps.seconds) == 2:
                both.set()
            await both.wait()

        store = DevStore(anonymous=True, connections=1, latency=1.0, sleep=nap)
        async with store, aiohttp.ClientSession() as session:
            store.put("b/k", DATA)

            async def get() -> int:
                async with session.get(store.url("b/k")) as answer:
                    return answer.status

            assert sorted(await asyncio.gather(get(), get())) == [200, 503]
            assert await get() == 200


class TestAccess:
    def test_a_presigned_url_expires(self, client_of: Callable[..., Any]) -> None:
        later = 0.0

        async def read(address: str) -> tuple[int, bytes]:
            async with (
                aiohttp.ClientSession() as session,
                session.get(URL(address, encoded=True)) as answer,
            ):
                return answer.status, await answer.read()

        with DevStore(now=lambda: time.time() + later) as store:
            store.put("b/k ä", DATA)
            where = {"Bucket": "b", "Key": "k ä"}
            address = client_of(store).generate_presigned_url("get_object", where, ExpiresIn=60)
            assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in address
            assert asyncio.run(read(address)) == (200, DATA)
            later = 120.0
            status, body = asyncio.run(read(address))
        assert status == 403
        assert b"Request has expired" in body
        assert [record.signed for record in store.statistics.records] == ["query", "query"]

    def test_a_key_of_nobody(self, client_of: Callable[..., Any]) -> None:
        with DevStore(keys={"me": "secret"}, anonymous=True) as store:
            with pytest.raises(Exception, match="InvalidAccessKeyId"):
                client_of(store).create_bucket(Bucket="b")
            mine = client_of(store, aws_access_key_id="me", aws_secret_access_key="secret")
            mine.create_bucket(Bucket="b")
            assert store.objects.buckets() == ["b"]
            assert store.storage_options["key"] == "me"


class TestStatistics:
    @asynchronous
    async def test_every_request_is_recorded(self) -> None:
        async with DevStore(anonymous=True) as store, aiohttp.ClientSession() as session:
            etag = store.put("b/k", DATA)
            headers = {"Range": "bytes=0-9", "If-Match": f'"{etag}"'}
            async with session.get(store.url("b/k?x=1"), headers=headers) as answer:
                await answer.read()
            async with session.put(store.url("b/new"), data=b"12345") as answer:
                await answer.read()
            async with session.get(store.url("b/missing")) as answer:
                error = await answer.read()
        first, second, third = store.statistics.records
        assert (first.method, first.path, first.query) == ("GET", "/b/k", {"x": "1"})
        assert (first.range, first.if_match) == ("bytes=0-9", f'"{etag}"')
        assert (first.kind, first.status, first.sent) == ("GetObject", 206, 10)
        assert (second.kind, second.status, second.sent) == ("PutObject", 200, 0)
        assert (third.status, third.sent, third.signed) == (404, len(error), None)

    @asynchronous
    async def test_from_outside(self) -> None:
        async with DevStore() as store, aiohttp.ClientSession() as session:
            async with session.get(store.url("b/k")) as answer:
                assert answer.status == 403
            address = store.url("_devstore/statistics")
            async with session.get(address) as answer:
                assert (await answer.json())["by_status"] == {"403": 1}
            async with session.get(address + "?records") as answer:
                assert (await answer.json())["records"][0]["path"] == "/b/k"
            async with session.delete(address) as answer:
                assert (await answer.json())["requests"] == 1
            async with session.get(address) as answer:
                assert (await answer.json())["requests"] == 0


class TestControl:
    @asynchronous
    async def test_anything_else_is_unknown(self) -> None:
        async with DevStore() as store, aiohttp.ClientSession() as session:
            async with session.get(store.url("_devstore/x")) as answer:
                assert answer.status == 404


class TestLife:
    def test_the_endpoint_is_where_it_listens(self) -> None:
        with DevStore() as store:
            host, _, port = store.endpoint.removeprefix("http://").partition(":")
            assert host == "127.0.0.1"
            assert int(port) > 0
            assert store.storage_options["endpoint_url"] == store.endpoint

    @asynchronous
    async def test_a_request_that_hangs_ends_with_the_store(self) -> None:
        asleep = asyncio.Event()

        async def sleep(_: float) -> None:
            asleep.set()
            await asyncio.Event().wait()

        async with aiohttp.ClientSession() as session:
            async with DevStore(anonymous=True, latency=1.0, sleep=sleep) as store:
                request = asyncio.ensure_future(session.get(store.endpoint))
                await asleep.wait()
            with pytest.raises(aiohttp.ClientConnectionError):
                await request
        assert store.statistics.in_flight == 0

    @asynchronous
    async def test_warm_hashes_all_files(self, tmp_path: Path) -> None:
        (tmp_path / "b").mkdir()
        (tmp_path / "b/k").write_bytes(DATA)
        store = DevStore(objects=DirectoryObjects(tmp_path))
        await store.warm()
        assert dict(store.objects) == {"b/k": DATA}

    def test_nothing_is_left_behind(self, started_threads: Callable[[], set[str]]) -> None:
        with DevStore():
            assert "streamrec-bridge" in started_threads()
        assert "streamrec-bridge" not in started_threads()

    def test_what_keeps_it_from_starting_is_raised(
        self, started_threads: Callable[[], set[str]]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            store = DevStore(port=taken.getsockname()[1])
            with pytest.raises(OSError, match="address already in use"):
                store.__enter__()
        assert "streamrec-bridge" not in started_threads()

    def test_put_gives_the_etag(self) -> None:
        assert DevStore().put("b/k", b"data") == "8d777f385d3dfec8815d20f7496026dc"
        with pytest.raises(KeyError):
            DevStore().put("b", b"data")


def test_the_end_closes_tls_connections_whose_clients_do_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.file)
    with DevStore(tls=authority.server) as store:
        address = URL(store.endpoint)
        plain = socket.create_connection((address.host, address.port))
        client = context.wrap_socket(plain, server_hostname=address.host)
        client.sendall(b"GET /bucket HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 40")
    # Below TLS, where nothing answers the server's goodbye.
    with socket.socket(fileno=client.detach()) as bare:
        bare.settimeout(100)
        with contextlib.suppress(ConnectionResetError):
            while bare.recv(1000):
                pass


def test_connections_that_are_there_are_closed_at_once() -> None:
    transport = Mock(asyncio.Transport)
    connections = [SimpleNamespace(transport=None), SimpleNamespace(transport=transport)]
    _abort(Mock(connections=connections))
    transport.abort.assert_called_once_with()
