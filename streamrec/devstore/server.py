"""The store's server, which runs in the caller's loop or in a thread of its own.

Signatures are not verified. Refused are the usual mistakes of clients, as S3 refuses them: no
signature, an outdated SigV2 signature, and an expired URL. Sources: AWS, "Authenticating Requests
(AWS Signature Version 4)"; RFC 6750.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import time
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from aiohttp import web

from streamrec.devstore import gcs, s3
from streamrec.devstore.api import Call, Reply
from streamrec.devstore.objects import NO_HEADERS, MemoryObjects, Objects, split_name
from streamrec.devstore.refusals import FaultEffects, Faults, Refusal
from streamrec.devstore.sending import (
    Jitter,
    Pace,
    RequestRate,
    RequestRecord,
    RequestStatistics,
    Sender,
    SharedLink,
    reset,
)
from streamrec.flow.bridge import Bridge

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from streamrec.devstore.refusals import FaultRule


LONGEST_EXPIRY = 7 * 24 * 3600  # seconds; S3's own limit
_CREDENTIAL = re.compile(r"(?:^|Credential=)([^/,\s=]+)/[0-9]{8}/[^/,\s]+/s3/aws4_request")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/"'}


def check_signature(
    headers: Mapping[str, str],
    query: Mapping[str, str],
    keys: Collection[str],
    now: float,
    *,
    anonymous: bool = False,
) -> None:
    """Check that a request of S3 is signed with a known key.

    Args:
        headers: The request's headers; case-insensitive.
        query: The request's query, decoded.
        keys: The access keys that the store knows.
        now: Seconds since 1970, to which presigned URLs' expiry is compared.
        anonymous: ``True`` accepts requests without a signature.

    Raises:
        Refusal: The request is refused.
    """
    signed = headers.get("Authorization") or query.get("X-Amz-Credential")
    if signed is None and anonymous:
        return
    if signed is None:
        raise Refusal(403, "AccessDenied")
    match = _CREDENTIAL.search(signed)
    if match is None:
        raise Refusal(400, "InvalidRequest", "The signature is not of AWS4-HMAC-SHA256.")
    if match[1] not in keys:
        raise Refusal(403, "InvalidAccessKeyId")
    # Only presigned URLs expire; signatures themselves are not computed here.
    if "X-Amz-Credential" in query:
        _check_expiry(query, now)


def _check_expiry(query: Mapping[str, str], now: float) -> None:
    try:
        signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        age, lifetime = now - signed.timestamp(), int(query["X-Amz-Expires"])
    except (KeyError, ValueError):
        age, lifetime = 0.0, 0
    if not 0 < lifetime <= LONGEST_EXPIRY:
        message = "A presigned URL needs X-Amz-Date and X-Amz-Expires, 604800 seconds at most."
        raise Refusal(400, "AuthorizationQueryParametersError", message)
    if age > lifetime:
        raise Refusal(403, "AccessDenied", "Request has expired")


def check_bearer(
    headers: Mapping[str, str], tokens: Mapping[str, float], now: float, *, anonymous: bool = False
) -> None:
    """Check that a request of GCS carries a valid token.

    Args:
        headers: The request's headers; case-insensitive.
        tokens: The expiry of each known token, in seconds since 1970.
        now: Seconds since 1970.
        anonymous: ``True`` accepts requests without a token, though never with a wrong one.

    Raises:
        Refusal: The request is refused.
    """
    authorization = headers.get("Authorization")
    if authorization is None:
        if anonymous:
            return
        message = "Anonymous caller does not have storage access to the resource."
        raise Refusal(401, "required", message, _CHALLENGE)
    kind, _, token = authorization.partition(" ")
    # A wrong token is refused even where none is needed, as Google does.
    if kind.lower() != "bearer" or tokens.get(token.strip(), 0.0) <= now:
        raise Refusal(401, "authError", "Invalid Credentials", _CHALLENGE)


DEFAULT_KEYS = {"test": "testsecret"}
DEFAULT_TOKEN = "testtoken"  # noqa: S105 - it opens nothing
TOKEN_SECONDS = 3600.0
LISTINGS = {"ListObjectsV2", "objects.list"}
CONTROL = "/_devstore/"  # no bucket: S3's names have no underscore


class DevStore:
    """A loopback object store that speaks S3, and GCS's JSON API below ``/storage/v1/``.

    ``async with`` runs it in the caller's loop, ``with`` in a thread with a loop of its own. It can
    be entered once.

    Args:
        objects: The backend, such as :class:`SyntheticObjects`; None: memory.
        host: The address to listen on.
        port: The port to listen on; 0: any free one.
        latency: Seconds before each response, on average.
        jitter: The standard deviation of the latency, as a part of it.
        page_latency: Seconds before each page of a listing, on average; None: ``latency``.
        bandwidth: Bytes a second of each connection; None: without limit.
        link: Bytes a second of all connections together; None: without limit.
        request_rate: Requests a second; those beyond are answered with 503 (S3) or 429 (GCS).
            None: without limit.
        connections: Requests at once; those beyond are answered in the same way. None: without
            limit.
        faults: Rules that inject faults.
        seed: The seed of latencies, and of the ``probability`` of faults.
        anonymous: ``True`` accepts requests without a signature or token.
        keys: Secrets by access key; a signature must name one of these keys.
        token: A bearer token of GCS that does not expire.
        clock: Returns seconds, monotonic, for the bandwidth.
        sleep: Waits that many seconds, for latency, bandwidth and stalls.
        now: Returns seconds since 1970, for the expiry of presigned URLs and tokens.
        tls: The TLS context with which to serve https.
    """

    objects: Objects
    """The backend: a mutable mapping of contents by ``bucket/key``."""
    tokens: dict[str, float]
    """The expiry of each bearer token, in seconds since 1970."""

    def __init__(
        self,
        *,
        objects: Objects | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        latency: float = 0.0,
        jitter: float = 0.0,
        page_latency: float | None = None,
        bandwidth: float | None = None,
        link: float | None = None,
        request_rate: float | None = None,
        connections: int | None = None,
        faults: Sequence[FaultRule] = (),
        seed: int = 0,
        anonymous: bool = False,
        keys: Mapping[str, str] | None = None,
        token: str = DEFAULT_TOKEN,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.objects = MemoryObjects() if objects is None else objects
        self.statistics = RequestStatistics()
        self.latency = latency
        self.page_latency = latency if page_latency is None else page_latency
        self.bandwidth = bandwidth
        self.anonymous = anonymous
        self.keys = dict(DEFAULT_KEYS if keys is None else keys)
        self.tokens = {token: math.inf}
        self._address = (host, port)
        self._tls = tls
        self._faults, self._seed = Faults(faults, seed), seed
        self._jitter = Jitter(jitter, seed)
        self._link = None if link is None else SharedLink(link)
        self._rate = None if request_rate is None else RequestRate(request_rate, clock)
        self._connections = math.inf if connections is None else connections
        self._clock, self._sleep, self._now = clock, sleep, now
        self._s3, self._gcs = s3.S3(self.objects), gcs.GCS(self.objects)
        self._request_ids = itertools.count(1)
        self._running, self._thread = AsyncExitStack(), ExitStack()

    @property
    def endpoint(self) -> str:
        """The server's URL: ``http://127.0.0.1:PORT``, or ``https``."""
        host, port = self._address
        return f"{'https' if self._tls else 'http'}://{host}:{port}"

    @property
    def storage_options(self) -> dict[str, str]:
        """The options with which s3fs, and so ``sr.open``, can read from the store."""
        key, secret = next(iter(self.keys.items()))
        return {"key": key, "secret": secret, "endpoint_url": self.endpoint}

    @property
    def gcs_options(self) -> dict[str, str]:
        """The options with which gcsfs, and so ``sr.open``, can read from the store."""
        return {"token": next(iter(self.tokens)), "endpoint_url": self.endpoint}

    @property
    def token_url(self) -> str:
        """The URL that gives out new bearer tokens, each valid for an hour."""
        return f"{self.endpoint}{CONTROL}token"

    @property
    def faults(self) -> Faults:
        """The fault rules in use, with their counts; can be set to a sequence of rules."""
        return self._faults

    @faults.setter
    def faults(self, rules: Sequence[FaultRule]) -> None:
        self._faults = Faults(rules, self._seed)

    def put(self, name: str, data: bytes, headers: Mapping[str, str] = NO_HEADERS) -> str:
        """Write an object; return its ETag, without quotes.

        Args:
            name: The object's name, ``bucket/key``.
            data: The content.
            headers: Headers that each read returns, such as Content-Encoding.
        """
        bucket, key = split_name(name)
        return self.objects.write(bucket, key, data, headers).etag

    async def warm(self) -> None:
        """Compute all ETags now, so that no first request waits for one."""
        for name in list(self.objects):
            await self.objects.describe(*split_name(name))

    def url(self, name: str) -> str:
        """Return the URL of the object ``bucket/key``, for anonymous requests over plain HTTP."""
        return f"{self.endpoint}/{name}"

    async def __aenter__(self) -> Self:
        # Requests are cancelled when their client disconnects, and when the store ends.
        server = web.Server(
            self._handle, access_log=None, auto_decompress=False, handler_cancellation=True
        )
        # Clients keep connections open, and a test must not wait for them.
        runner = web.ServerRunner(server, shutdown_timeout=0.01)
        await runner.setup()
        self._running.push_async_callback(runner.cleanup)
        if self._tls is not None:
            self._running.callback(_abort, server)
        site = web.TCPSite(runner, *self._address, backlog=1024, ssl_context=self._tls)
        await site.start()
        # The port that was found where 0 was asked for.
        self._address = runner.addresses[0][:2]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            bridge = stack.enter_context(Bridge())
            bridge.call(self.__aenter__())
            stack.callback(lambda: bridge.call(self.__aexit__()))
            self._thread = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = unquote(request.raw_path.partition("?")[0])
        if path.startswith(CONTROL):
            return await self._control(request, path.removeprefix(CONTROL))
        call = self._call(request, path, self._effects(request, path))
        record = RequestRecord.of(call)
        self.statistics.arrive(record)
        try:
            return await self._answer(request, call, record)
        except ConnectionError:
            return web.Response()  # the client has disconnected and does not read it
        finally:
            self.statistics.leave()

    def _effects(self, request: web.BaseRequest, path: str) -> FaultEffects:
        is_refused = self._rate is not None and not self._rate.admit()
        if is_refused or self.statistics.in_flight >= self._connections:
            return FaultEffects(status=429 if gcs.speaks_gcs(path) else 503)
        return self._faults.choose(request.method, path, request.headers.get("Range"))

    def _call(self, request: web.BaseRequest, path: str, effects: FaultEffects) -> Call:
        query, headers = dict(request.query), request.headers
        operation_of = gcs.operation_of if gcs.speaks_gcs(path) else s3.operation_of
        named = operation_of(request.method, path, query)
        read = partial(_read, request)
        return Call(request.method, path, *named, query, headers, read, effects)

    async def _answer(
        self, request: web.BaseRequest, call: Call, record: RequestRecord
    ) -> web.StreamResponse:
        effects = call.effects
        latency = self.page_latency if call.operation in LISTINGS else self.latency
        # The latency before all else: a refusal comes as late as an answer.
        if (delay := self._jitter.draw(latency) + effects.latency) > 0:
            await self._sleep(delay)
        if effects.refuse:
            self.statistics.answer(record, 0)
            reset(request)
            return web.Response()
        reply = await self._reply(call)
        self.statistics.answer(record, reply.status)
        pace = Pace(effects.bandwidth or self.bandwidth, self._clock, self._sleep, self._link)
        count = partial(self.statistics.send, record)
        return await Sender(request, reply, effects, pace, count).send()

    async def _reply(self, call: Call) -> Reply:
        api = self._gcs if gcs.speaks_gcs(call.path) else self._s3
        identity = self._request_id()
        try:
            _inject(call.effects)
            self._authorize(call)
            reply = (await api.answer(call)).with_faults(call.effects)
        except Refusal as error:
            await call.read()  # so that the client reads the answer before the connection closes
            reply = api.error_reply(error, call, identity)
        reply.headers.setdefault(api.identity_header, identity)
        return reply

    def _authorize(self, call: Call) -> None:
        now, anonymous = self._now(), self.anonymous
        if gcs.speaks_gcs(call.path):
            check_bearer(call.headers, self.tokens, now, anonymous=anonymous)
        else:
            check_signature(call.headers, call.query, self.keys, now, anonymous=anonymous)

    def _request_id(self) -> str:
        return f"{next(self._request_ids):016X}"

    async def _control(self, request: web.BaseRequest, what: str) -> web.StreamResponse:
        if what == "statistics":
            plain = self.statistics.to_dict(records="records" in request.query)
            if request.method == "DELETE":
                self.statistics.clear()
            return web.json_response(plain)
        if what == "token":
            await request.read()  # the credentials in it are not checked
            token = f"issued-{self._request_id()}"
            self.tokens[token] = self._now() + TOKEN_SECONDS
            return web.json_response({"access_token": token, "expires_in": int(TOKEN_SECONDS)})
        message = "there is no such resource; use statistics or token"
        return web.json_response({"error": message}, status=404)


def _abort(server: web.Server) -> None:
    """Close TLS connections at once."""
    # A proper shutdown would wait for the clients, and may outlive the event loop.
    for connection in server.connections:
        if connection.transport is not None:
            connection.transport.abort()


async def _read(request: web.BaseRequest) -> bytes:
    # aiohttp's own handler of ``Expect: 100-continue`` is that of its application, which is unused.
    waits = request.headers.get("Expect", "").lower() == "100-continue"
    if waits and not request.content.is_eof() and not request.content.total_bytes:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # so that aiohttp takes the response as not begun
    return b"".join([piece async for piece in request.content.iter_any()])


def _inject(effects: FaultEffects) -> None:
    if effects.status is not None:
        later = {} if effects.retry_after is None else {"Retry-After": str(effects.retry_after)}
        raise Refusal(effects.status, effects.code, headers=later | effects.headers)
