"""The client of ranged GETs over aiohttp, for http, S3 and GCS, and the store of http(s) URLs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn
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
from streamrec.stores.base.foreign_errors import meaning_of
from streamrec.stores.base.protocol import ObjectInfo, check_pin, check_range, let_pass
from streamrec.stores.base.troubles import code_of, refusal, seconds_to_wait
from streamrec.stores.http.http_ranges import (
    HttpBody,
    RangedGet,
    RangeResponse,
    check_response,
    give_back,
    size_from_416,
)
from streamrec.stores.http.transport import OPTIONS, Transport, check_proxies, transport_of
from streamrec.suggestions import did_you_mean

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping

    from streamrec.stores.base.protocol import BeforeRequest, NewObject, Store

CONNECT_SECONDS = 10.0
DNS_SECONDS = 300
READ_SECONDS = 60.0
"""Seconds that a server may send nothing in the middle of a response."""
DOCUMENT_SECONDS = 15.0
"""Timeout of a page of a listing in seconds, from the request to its last byte."""
BUFFER_BYTES = 16 << 10
"""Bytes of a body that aiohttp buffers before it pauses the socket (it takes twice as many). Few,
because they are copied once more, and are not counted in the memory budget."""
_CREDENTIALS = frozenset({"authorization", "cookie", "x-api-key"})
_SIGNATURES = frozenset({"x-amz-signature", "x-goog-signature", "signature", "sig", "token"})
"""Headers, and parameters of a URL, that carry credentials."""
ERROR_BYTES = 4096
"""Bytes read of an error document; S3's code stands within them."""


class RangeClient:
    """A client of ranged GETs over one aiohttp session, without a limit on concurrent requests.

    Args:
        follow: ``True`` follows redirects. Signed URLs are valid for one host, so their client
            does not; it raises :class:`WrongRegion` and ``Expired``.
        transport: Certificates and proxy.
        before_request: Called before each request.
    """

    def __init__(
        self,
        *,
        follow: bool = True,
        transport: Transport | None = None,
        before_request: BeforeRequest = let_pass,
    ) -> None:
        self._follow = follow
        self._before_request = before_request
        self._transport = transport or Transport()
        self._tls: ssl.SSLContext | bool | None = None
        self._reading_certificates = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def open(self, request: RangedGet) -> HttpBody:
        """Send the request, check the response's head, and return the body, which must be closed.

        Raises:
            StoreError: Any store error, retryable or not.
        """
        response = await self._send(request, request.headers())
        try:
            return HttpBody(await self._read_head(request, response), response)
        except BaseException:
            # Cancelled as well: a response that nobody closes keeps its connection.
            response.close()
            raise

    async def read_document(
        self, url: str, address: str, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Read a short document as a whole, such as a page of a listing.

        Args:
            url: The URL for errors.
            address: The URL to fetch, percent-encoded.
            headers: The headers to send.

        Raises:
            StoreError: Any store error, retryable or not.
        """
        request = RangedGet(url, address, 0, 0, extra=headers or {})
        try:
            async with asyncio.timeout(DOCUMENT_SECONDS):
                return await self._read_document(request)
        except TimeoutError:
            raise StoreUnavailable(
                f"a page of the listing did not arrive within {DOCUMENT_SECONDS:g} s; check the "
                "store and the network",
                url=url,
            ) from None

    async def _read_document(self, request: RangedGet) -> bytes:
        response = await self._send(request, request.extra)
        try:
            if response.status != 200:
                raise await self._refusal(request, response)
            try:
                return await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise meaning_of(request.url, error) from None
        finally:
            give_back(response)

    async def aclose(self) -> None:
        """Close every connection."""
        # Taken away first: a second call during the wait finds nothing to close.
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _read_head(
        self, request: RangedGet, response: aiohttp.ClientResponse
    ) -> RangeResponse:
        if response.status in (200, 206):
            return check_response(request, response.status, response.headers)
        if response.status == 416:
            return await self._past_the_end(request, response)
        raise await self._refusal(request, response)

    async def _send(self, request: RangedGet, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        session = self._session or self._connect()
        self._before_request(request.stop - request.start)
        # A redirect may lead from http to https.
        secure = self._follow or request.address.startswith("https:")
        try:
            return await session.get(
                # Not encoded anew: a signature holds for one spelling of the URL.
                URL(request.address, encoded=True),
                headers=headers,
                allow_redirects=self._follow,
                ssl=await self._certificates() if secure else True,
                proxy=self._transport.proxy,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise meaning_of(request.url, error) from None

    async def _certificates(self) -> ssl.SSLContext | bool:
        """Return the value of aiohttp's argument ``ssl``; files are read once, in a thread."""
        async with self._reading_certificates:
            if self._tls is None:
                self._tls = await asyncio.to_thread(lambda: self._transport.tls)
            return self._tls

    def _connect(self) -> aiohttp.ClientSession:
        """Make the session, at the first request, since it belongs to the running loop."""
        if self._transport.proxy is None:
            check_proxies()
        self._session = aiohttp.ClientSession(
            # The fetcher decides how many requests go at once.
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=DNS_SECONDS),
            timeout=aiohttp.ClientTimeout(
                # A body may take as long as it likes while bytes come; the pipeline cuts those that
                # stall.
                total=None,
                connect=CONNECT_SECONDS,
                sock_connect=CONNECT_SECONDS,
                sock_read=READ_SECONDS,
            ),
            # By default aiohttp requests gzip and decompresses it; ranges would then be wrong.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "streamrec"},
            # No answer may change what the next request sends.
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=BUFFER_BYTES,
            # Only if the environment names a proxy: aiohttp then reads .netrc for every request.
            trust_env=bool(getproxies_environment()),
            trace_configs=[self._count_redirects()],
        )
        return self._session

    def _count_redirects(self) -> aiohttp.TraceConfig:
        """Return a configuration that has a redirect counted as a request that asks for nothing."""

        async def redirected(*_: object) -> None:
            self._before_request(0)

        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(redirected)
        return tracing

    async def _past_the_end(
        self, request: RangedGet, response: aiohttp.ClientResponse
    ) -> RangeResponse:
        """Return the empty result of a 416: the range begins at or past the end."""
        size, etag = size_from_416(response.headers), request.version(response.headers)
        # Not every server names size and version in a 416.
        if size is None or (request.etag is not None and etag is None):
            now = await self._current_info(request)
            size, etag = now.size or 0, now.etag
        check_pin(request.url, request.etag, etag)
        if request.start < size:
            raise StoreMisbehaved(
                f"the server refuses byte {request.start} of {size} as past the end; check the "
                "server and any proxy before it",
                url=request.url,
            )
        return RangeResponse(ObjectInfo(request.url, size, etag), 0, 0)

    async def _current_info(self, request: RangedGet) -> ObjectInfo:
        """Return the object's current size and ETag, from the head of a plain GET."""
        # Not HEAD: a URL that is signed for GET is not valid for it. The body is not read.
        plain = replace(request, start=0, stop=0, etag=None)
        response = await self._send(plain, plain.extra)
        try:
            if response.status != 200:
                raise await self._refusal(plain, response)
            return check_response(plain, response.status, response.headers).info
        finally:
            # Not released: aiohttp could use the connection again only after the whole object.
            response.close()

    async def _refusal(self, request: RangedGet, response: aiohttp.ClientResponse) -> StoreError:
        try:
            document = await response.content.read(ERROR_BYTES)
        except (aiohttp.ClientError, OSError):
            document = b""  # the status suffices
        error = refusal(
            request.url,
            response.status,
            code=code_of(document),
            region=response.headers.get("x-amz-bucket-region"),
            retry_after=seconds_to_wait(response.headers.get("Retry-After")),
            signed=not self._follow,
            anonymous=is_anonymous(request),
        )
        if not isinstance(error, ObjectChanged) or request.etag is None:
            return error
        # A 412 need not name the version that is there now.
        found = request.version(response.headers) or (await self._current_info(request)).etag
        check_pin(request.url, request.etag, found)
        return StoreMisbehaved(
            f"the store refuses version {found}, although it is the current one (412); check "
            "that the store supports If-Match",
            url=error.url,
        )


def is_anonymous(request: RangedGet) -> bool:
    """Return whether neither a header nor the URL of a request carries credentials."""
    names = {name.lower() for name in request.extra}
    return not names & _CREDENTIALS and not any(
        name.lower() in _SIGNATURES for name in URL(request.address, encoded=True).query
    )


class HttpStore:
    """The store of plain http(s) URLs, which cannot be listed.

    Args:
        storage_options: ``headers``: a mapping, sent with every request; ``verify``,
            ``ca_bundle`` and ``proxy``: see :func:`~streamrec.stores.http.transport.transport_of`.
        before_request: Called before each request.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        before_request: BeforeRequest = let_pass,
    ) -> None:
        self._options = options = storage_options or {}
        self._headers = _headers_of(options)
        self._client = RangeClient(transport=transport_of(options), before_request=before_request)

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[HttpBody]:
        """Read a range; see :class:`Store`."""
        check_range(start, stop)
        request = RangedGet(url, _address(url), start, stop, etag, self._headers)
        with closing(await self._client.open(request)) as body:
            yield body

    def list(self, prefix: str, *, recursive: bool = True) -> NoReturn:  # noqa: ARG002 - the protocol's signature
        """Raise ConfigError, since http has no listings."""
        raise ConfigError(
            f"{masked(prefix)}: http cannot list objects; name each shard, or use a range "
            "such as shard-{00000..00127}.tfrecord, or name@128"
        )

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:
        """Begin an object, which fsspec posts to the server; see :class:`Store`."""
        return self._of_fsspec().put(url, make_directory=make_directory, spooled=spooled)

    async def delete(self, url: str) -> None:
        """Delete an object, if fsspec can; see :class:`Store`."""
        await self._of_fsspec().delete(url)

    def _of_fsspec(self) -> Store:
        from streamrec.stores.fsspec.filesystem_store import FilesystemStore

        return FilesystemStore("http", self._options)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()


def _headers_of(options: Mapping[str, Any]) -> dict[str, str]:
    known = sorted({"headers", *OPTIONS})
    for name in sorted(set(options) - set(known)):
        hint = did_you_mean(name, known, f"the options are {', '.join(known)}")
        raise ConfigError(f"storage_options: http(s) has no option {name!r}; {hint}")
    return {str(name): str(value) for name, value in (options.get("headers") or {}).items()}


def _address(url: str) -> str:
    """Percent-encode a URL; characters that are already encoded stay as they are."""
    try:
        return str(URL(url))
    except ValueError:
        raise ConfigError(f"{masked(url)}: this is not a valid http URL; correct it") from None
