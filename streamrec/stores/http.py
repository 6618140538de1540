"""The range reader over aiohttp, for https, S3 and GCS alike, and the store of http(s) URLs."""

from __future__ import annotations

import asyncio
import difflib
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.request import getproxies_environment

import aiohttp
from yarl import URL

from streamrec.errors import (
    ConfigError,
    ObjectChanged,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.masking import masked
from streamrec.stores.base import ObjectInfo, check_pin, check_range, same_version
from streamrec.stores.connections import EagerConnector
from streamrec.stores.http_body import HttpBody, give_back, raise_unavailable
from streamrec.stores.range_requests import (
    RangeRequest,
    RangeResponse,
    check_response,
    size_from_416,
)
from streamrec.stores.refusals import code_of, refusal, seconds_to_wait
from streamrec.stores.transport import OPTIONS, Transport, transport_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["Authorization", "HttpStore", "RangeClient"]

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
DOCUMENT_SECONDS = 15.0
"""For a page of a listing, from the request to its last byte: as long as a range may be silent."""
BUFFER_BYTES = 16 << 10
"""Bytes that aiohttp holds of a body before it stops the socket (twice that, in fact). Few: until
somebody asks for the body it comes as objects that are copied, in memory that no budget knows."""
ERROR_BYTES = 4096
"""Of an error's document, enough to hold S3's code."""


class Authorization(Protocol):
    """Headers that let a request in, for a while."""

    async def headers(self, url: str) -> Mapping[str, str]:
        """What to send now; ``url`` is for errors.

        Raises:
            AccessDenied: There are no credentials any more.
            StoreUnavailable: Who gives them out cannot be reached.
        """
        ...

    async def renew(self, url: str, refused: Mapping[str, str]) -> Mapping[str, str] | None:
        """What to send in place of headers that the store did not accept (401).

        Returns:
            ``None``: nobody can do better.
        """
        ...


class RangeClient:
    """One aiohttp session, and ranged GETs through it. How many at a time is the caller's affair.

    Args:
        read_seconds: How long a server may be silent in the middle of an answer.
        follow: Whether redirects are followed. A signed URL is good for one host only; without,
            :class:`~streamrec.stores.refusals.WrongRegion` and ``Expired`` are raised as such.
        transport: Whom to trust, and through which proxy to go.
        authorization: Sent with every request, and renewed once where the answer is 401.
        ahead: How many connections to open with that of a document, where one is read before any
            range: ranges open their own.
    """

    def __init__(
        self,
        *,
        read_seconds: float = READ_SECONDS,
        follow: bool = True,
        transport: Transport | None = None,
        authorization: Authorization | None = None,
        ahead: int = 0,
    ) -> None:
        self._read_seconds = read_seconds
        self._follow = follow
        self._transport = transport or Transport()
        self._authorization = authorization
        self._ahead = ahead
        self._session: aiohttp.ClientSession | None = None

    async def open(self, request: RangeRequest) -> HttpBody:
        """Send the request and hold the answer's head against it; close the body in the end.

        Raises:
            StoreError: Any of the tree's store errors, retryable or not.
        """
        response = await self._get(request, request.headers())
        try:
            return HttpBody(await self._read_head(request, response), response, self._read_seconds)
        except BaseException:
            response.close()
            raise

    async def read_document(
        self, url: str, address: str, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """A plain GET of something short, such as a page of a listing, as a whole.

        Args:
            url: What is read, for errors.
            address: Where it is fetched, percent-encoded.
            headers: What to send.

        Raises:
            StoreError: Any of the tree's store errors, retryable or not.
        """
        request = RangeRequest(url, address, 0, 0)
        if self._session is None:
            self._connect(self._ahead)
        seconds = min(self._read_seconds, DOCUMENT_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                return await self._read_document(request, headers or {})
        except TimeoutError:
            raise StoreUnavailable(
                f"a page of the listing did not come within {seconds:g} s; check the store and "
                "the network",
                url=url,
            ) from None

    async def _read_document(self, request: RangeRequest, headers: Mapping[str, str]) -> bytes:
        response = await self._get(request, headers)
        try:
            if response.status != 200:
                raise await self._read_refusal(request, response)
            try:
                return await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise_unavailable(request.url, error)
        finally:
            give_back(response)

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await self._connector.stop()
            await session.close()

    async def _read_head(
        self, request: RangeRequest, response: aiohttp.ClientResponse
    ) -> RangeResponse:
        if response.status in (200, 206):
            return check_response(request, response.status, response.headers)
        if response.status == 416:
            return await self._past_the_end(request, response)
        raise await self._refusal(request, response)

    async def _get(
        self, request: RangeRequest, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        if self._authorization is None:
            return await self._send(request, headers)
        sent = await self._authorization.headers(request.url)
        response = await self._send(request, {**headers, **sent})
        if response.status != 401:
            return response
        try:
            renewed = await self._authorization.renew(request.url, sent)
        except BaseException:
            response.close()
            raise
        if renewed is None:
            return response
        response.close()
        return await self._send(request, {**headers, **renewed})

    async def _send(
        self, request: RangeRequest, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        session = self._session or self._connect()
        # A redirect may lead from http to https.
        secure = self._follow or request.address.startswith("https:")
        try:
            return await session.get(
                URL(request.address, encoded=True),
                headers=headers,
                allow_redirects=self._follow,
                ssl=self._transport.tls if secure else True,
                proxy=self._transport.proxy,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise_unavailable(request.url, error)

    def _connect(self, ahead: int = 0) -> aiohttp.ClientSession:
        """Made at the first request: a session belongs to the loop that runs then."""
        self._connector = EagerConnector(ahead)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(
                total=None,
                connect=CONNECT_SECONDS,
                sock_connect=CONNECT_SECONDS,
                sock_read=self._read_seconds,
            ),
            # aiohttp asks for gzip and unpacks it by default: then a range is not the object's.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "streamrec"},
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=BUFFER_BYTES,
            # Reading .netrc for every request costs; only where there is a proxy to be found.
            trust_env=bool(getproxies_environment()),
        )
        return self._session

    async def _past_the_end(
        self, request: RangeRequest, response: aiohttp.ClientResponse
    ) -> RangeResponse:
        """A 416: the range begins at or past the end. Ask again where it leaves things open."""
        size, etag = size_from_416(response.headers), request.version(response.headers)
        if size is None or (request.etag is not None and etag is None):
            now = await self._current_info(request)
            size, etag = now.size or 0, now.etag
        check_pin(request.url, request.etag, etag)
        if request.start < size:
            raise StoreMisbehaved(
                f"byte {request.start} of {size} is refused as past the end",
                url=request.url,
            )
        return RangeResponse(ObjectInfo(request.url, size, etag), 0, 0)

    async def _current_info(self, request: RangeRequest) -> ObjectInfo:
        """Size and ETag as they are now, from the head of a plain GET.

        A signature for GET does not cover HEAD; the body is not read.
        """
        response = await self._get(request, request.extra)
        try:
            if response.status != 200:
                raise await self._read_refusal(request, response)
            plain = replace(request, start=0, stop=0, etag=None)
            return check_response(plain, 200, response.headers).info
        finally:
            response.close()

    async def _refusal(self, request: RangeRequest, response: aiohttp.ClientResponse) -> StoreError:
        error = await self._read_refusal(request, response)
        if not isinstance(error, ObjectChanged) or request.etag is None:
            return error
        found = request.version(response.headers) or (await self._current_info(request)).etag
        if found is not None and same_version(found, request.etag):
            return StoreMisbehaved(
                f"the store refuses version {found}, which it has (412); it may not know If-Match",
                url=error.url,
            )
        try:
            check_pin(request.url, request.etag, found)
        except ObjectChanged as changed:
            return changed
        return error

    async def _read_refusal(
        self, request: RangeRequest, response: aiohttp.ClientResponse
    ) -> StoreError:
        try:
            document = await response.content.read(ERROR_BYTES)
        except (aiohttp.ClientError, OSError):
            document = b""  # the status says enough
        return refusal(
            request.url,
            response.status,
            code=code_of(document),
            region=response.headers.get("x-amz-bucket-region"),
            retry_after=seconds_to_wait(response.headers.get("Retry-After")),
            signed=not self._follow,
        )


class HttpStore:
    """Objects at plain http(s) URLs; there is no way to list them.

    Args:
        storage_options: ``headers``: a mapping, sent with every request; ``verify``,
            ``ca_bundle`` and ``proxy``: see :func:`~streamrec.stores.transport.transport_of`.
        read_seconds: How long a server may be silent in the middle of an answer.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        options = storage_options or {}
        self._headers = _headers_of(options)
        self._client = RangeClient(read_seconds=read_seconds, transport=transport_of(options))

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[HttpBody]:
        """Read a range; see :class:`Store`."""
        check_range(start, stop)
        request = RangeRequest(url, _address(url), start, stop, etag, self._headers)
        body = await self._client.open(request)
        try:
            yield body
        finally:
            body.close()

    async def list(
        self,
        prefix: str,
        *,
        recursive: bool = True,  # noqa: ARG002 - the protocol's signature
    ) -> AsyncIterator[ObjectInfo]:
        """Refuse: http has no listing."""
        raise ConfigError(
            f"{masked(prefix)}: http cannot list objects; name each shard, or use a range "
            "such as shard-{00000..00127}.tfrecord, or name@128"
        )
        yield  # an async generator, like the other stores'

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()


def _headers_of(options: Mapping[str, Any]) -> dict[str, str]:
    known = sorted({"headers", *OPTIONS})
    for name in sorted(set(options) - set(known)):
        close = difflib.get_close_matches(name, known, n=1)
        nearest = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise ConfigError(f"storage_options: http(s) has no option {name!r}; {nearest}")
    return {str(name): str(value) for name, value in (options.get("headers") or {}).items()}


def _address(url: str) -> str:
    """Percent-encode what a URL may not hold as it is; what is encoded already stays."""
    try:
        return str(URL(url))
    except ValueError:
        raise ConfigError(f"{masked(url)}: this is no http URL") from None
