"""Ranges over HTTP: the requests, the checks of responses, and the bodies.

aiohttp parses the head of a response. It would then make an object of each piece of the body, join
them, and have them copied again. Here the connection is taken over for the rest of the body, and
the event loop receives into the range's own memory. After the last byte, aiohttp gets its
connection back, and is told that the body has ended. Only public parts of aiohttp and asyncio are
used for this. Requests and checks are without I/O.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from streamrec.errors import StoreError, StoreMisbehaved, StoreUnavailable
from streamrec.masking import masked_repr
from streamrec.stores.base.foreign_errors import meaning_of
from streamrec.stores.base.protocol import ObjectInfo, check_pin, is_strong, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_SKIP = 16 << 20
"""Bytes before a range that are read and thrown away at most, where a server ignores Range and
sends the object from its start. More would read a shard many times over."""

_PLAIN = frozenset({"", "identity", "aws-chunked"})
"""Content codings that leave the bytes as they are. ``aws-chunked`` describes an upload; some
gateways keep it with the object."""

_READABLE = frozenset({"gzip", "x-gzip", "deflate", "zstd"})
"""Content codings of a compressed shard, which the pipeline decompresses."""


@dataclass(frozen=True, slots=True)
class RangedGet:
    """One ranged GET."""

    url: str
    """The object's URL, for messages and results."""
    address: str = field(repr=False)
    """The URL to fetch, percent-encoded; a secret if it is signed."""
    start: int
    stop: int
    etag: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further headers to send."""
    version_header: str = "ETag"
    """The response header that holds the version. An ETag is sent in If-Match; any other version
    is part of the address."""

    __repr__ = masked_repr

    def headers(self) -> dict[str, str]:
        """Return the headers to send."""
        # HTTP has no empty range, so at least one byte is requested.
        last = max(self.stop, self.start + 1) - 1
        headers = {**self.extra, "Range": f"bytes={self.start}-{last}"}
        # RFC 9110, 13.1.1: If-Match compares strongly, so a weak ETag never matches.
        if self.etag is not None and is_strong(self.etag) and self.version_header == "ETag":
            headers["If-Match"] = _quote(self.etag)
        return headers

    def version(self, headers: Mapping[str, str]) -> str | None:
        """Return the version that a response names by an ETag or a generation."""
        named = headers.get(self.version_header)
        if self.version_header != "ETag":
            return version_of(generation=named)
        return version_of(etag=named)

    def dated_version(self, headers: Mapping[str, str], size: int) -> str | None:
        """Return the version of a response that names none: its time and the object's size."""
        if self.version_header != "ETag":
            return None
        return version_of(modified=headers.get("Last-Modified"), size=size)


class RangeResponse(NamedTuple):
    """The contents of a response's body: some bytes to skip, then the range."""

    info: ObjectInfo
    skip: int
    """Bytes before the range, to be thrown away."""
    length: int
    """Bytes of the range."""


def _quote(etag: str) -> str:
    bare = etag.strip('"')
    return f'"{bare}"'


def check_response(request: RangedGet, status: int, headers: Mapping[str, str]) -> RangeResponse:
    """Compare the head of a 200 or 206 response with the request.

    A 200 is accepted if its Content-Range matches the request, as some gateways answer, or if the
    range can be cut out of the object's first bytes.

    Raises:
        ObjectChanged: The version is not the pinned one.
        StoreMisbehaved: The response does not match the request.
        StoreError: The object's Content-Encoding is not supported.
    """
    encoding = _encoding(request, headers)
    named = request.version(headers)
    if named is not None:
        check_pin(request.url, request.etag, named)
    written = headers.get("Content-Range")
    if status == 206 or written:
        skip, size = 0, _size_in(request, written, headers.get("Content-Length"))
    else:
        size = _whole_size(request, headers)
        skip = min(request.start, size)
    etag = named or request.dated_version(headers, size)
    check_pin(request.url, request.etag, etag)
    info = ObjectInfo(request.url, size, etag, encoding)
    return RangeResponse(info, skip, max(0, min(request.stop, size) - request.start))


def size_from_416(headers: Mapping[str, str]) -> int | None:
    """Return the object's size from a 416 response (``Content-Range: bytes */1234``), if given."""
    found = re.fullmatch(r"bytes \*/(\d{1,18})", headers.get("Content-Range", "").strip())
    return int(found[1]) if found else None


def _encoding(request: RangedGet, headers: Mapping[str, str]) -> str | None:
    """Return the object's Content-Encoding; ranges and sizes are those of the encoded bytes."""
    found = _codings(headers.get("Content-Encoding", ""))
    # Google names the stored encoding in a header; other stores only show the one that they send.
    stored = _codings(headers.get("x-goog-stored-content-encoding", ",".join(found)))
    if found != stored:
        raise _misbehaviour(
            request,
            f"the object is stored with Content-Encoding {', '.join(stored) or 'identity'} but "
            f"sent with {', '.join(found) or 'identity'}, so the range does not match the object; "
            "look for a proxy that recodes responses",
        )
    if not found:
        return None
    if len(found) > 1 or found[0] not in _READABLE:
        raise StoreError(
            f"the object is stored with Content-Encoding {', '.join(found)}, which is not "
            f"supported; store it with none, or with one of {', '.join(sorted(_READABLE))}",
            url=request.url,
        )
    return found[0]


def _codings(header: str) -> list[str]:
    return [name for name in map(str.strip, header.lower().split(",")) if name not in _PLAIN]


def _size_in(request: RangedGet, written: str | None, content_length: str | None) -> int:
    """Return the object's size in a Content-Range, which must be that of the request."""
    # 18 digits fit a signed number of 64 bits, as offsets and sizes must.
    found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", (written or "").strip())
    if not found:
        raise _misbehaviour(
            request,
            f"the response's Content-Range is {written or 'missing'}; check the server and any "
            "proxy before it",
        )
    start, last, size = (int(number) for number in found.groups())
    wanted = min(max(request.stop, request.start + 1), size)
    if (start, last + 1) != (request.start, wanted):
        asked = f"bytes {request.start} to {wanted - 1}"
        raise _misbehaviour(
            request,
            f"the response to a request for {asked} holds {written}; check the server and any "
            "proxy before it",
        )
    if content_length is not None and content_length != str(last + 1 - start):
        raise _misbehaviour(
            request,
            f"the response has {content_length} bytes for {written}; check the server and any "
            "proxy before it",
        )
    return size


def _whole_size(request: RangedGet, headers: Mapping[str, str]) -> int:
    length = headers.get("Content-Length", "")
    if not re.fullmatch(r"\d{1,18}", length):
        raise _misbehaviour(
            request,
            "the response names neither a range nor the object's size; check the server and any "
            "proxy before it",
        )
    if min(request.start, int(length)) > MAX_SKIP:
        raise _misbehaviour(
            request,
            "the server ignores Range and sends the whole object; use a server that supports "
            "ranges, or copy the object to a local disk",
        )
    return int(length)


def _misbehaviour(request: RangedGet, message: str) -> StoreMisbehaved:
    return StoreMisbehaved(message, url=request.url)


HEAD_BYTES = 4 << 10
"""Bytes received at a time while waiting for a response's head, which may be longer."""


class HeadReceiver(asyncio.BufferedProtocol):
    """A protocol that receives the heads of responses for aiohttp, and little of their bodies.

    By default, an event loop reads 256 KiB at a time. That may hold much of the body, which would
    then be copied twice: a stream without this took half as much CPU time again.

    Args:
        parser: aiohttp's protocol of the connection.
    """

    def __init__(self, parser: asyncio.Protocol) -> None:
        self._parser = parser
        self._view = memoryview(bytearray(HEAD_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Return the memory that the event loop receives into."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the received bytes on to aiohttp."""
        self._parser.data_received(bytes(self._view[:nbytes]))

    def eof_received(self) -> bool | None:
        """Pass the event on to aiohttp."""
        return self._parser.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the event on to aiohttp."""
        self._parser.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass the event on to aiohttp, which writes the requests."""
        self._parser.pause_writing()

    def resume_writing(self) -> None:
        """Pass the event on to aiohttp, which writes the requests."""
        self._parser.resume_writing()


class BodyReceiver(asyncio.BufferedProtocol):
    """A protocol that receives the rest of one response's body.

    The socket is only read while a call of :meth:`fill` waits, and never past the view.

    Args:
        response: The response, of which aiohttp holds no more bytes.
        left: Number of bytes of the body that are not received yet.
    """

    def __init__(self, response: aiohttp.ClientResponse, left: int) -> None:
        connection = response.connection
        assert connection is not None
        assert connection.protocol is not None
        assert connection.transport is not None
        self._content = response.content
        self._parser = connection.protocol
        self._transport = connection.transport
        self._left = left
        self._view = memoryview(b"")
        self._received = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._lost: Exception | None = None
        before = self._transport.get_protocol()
        self._heads = before if isinstance(before, HeadReceiver) else HeadReceiver(self._parser)
        self._parser.pause_reading()  # also ends aiohttp's read timeout
        self._transport.set_protocol(self)

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> int:
        """Fill a view, or as much of it as the body has left, with bytes from the socket.

        Args:
            view: Writable bytes, not empty.
            on_received: Called with the number of new bytes each time some have arrived.

        Returns:
            The number of bytes received; 0 if the server closed the connection too early.

        Raises:
            OSError: The connection broke.
            Exception: What ``on_received`` raises.
        """
        if self._ended or self._transport.is_closing():
            return 0
        self._view, self._on_received, self._received = view[: self._left], on_received, 0
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.resume_reading()
        try:
            await self._waiter
        finally:
            self._view, received = memoryview(b""), self._received
            if not self._transport.is_closing():
                self._transport.pause_reading()  # a cancelled call has not paused it yet
        self._left -= received
        if not self._left:
            self._give_back()
        if not received and self._lost is not None:
            raise self._lost
        return received

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Return the memory that the event loop receives into."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Count the received bytes, and pause the socket once the view is full."""
        self._received += nbytes
        self._view = self._view[nbytes:]
        failure = None
        try:
            self._on_received(nbytes)
        except Exception as error:  # noqa: BLE001 - fill raises it in its caller
            failure = error
        # Pausing for each piece would cost CPU time, most of all over TLS.
        if not self._view or failure is not None:
            self._transport.pause_reading()
            self._wake(failure)

    def eof_received(self) -> bool:
        """Note that the server has closed the connection too early."""
        self._ended = True
        self._wake()
        # False has the transport close itself: a half-closed connection serves no request.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is lost, and pass the event on to aiohttp."""
        self._ended, self._lost = True, exc
        self._wake()
        self._parser.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass the event on to aiohttp, which writes the requests."""
        self._parser.pause_writing()

    def resume_writing(self) -> None:
        """Pass the event on to aiohttp, which writes the requests."""
        self._parser.resume_writing()

    def _wake(self, failure: Exception | None = None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if failure is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(failure)

    def _give_back(self) -> None:
        """Give the connection back to aiohttp after the whole body."""
        # aiohttp has not parsed this body, but makes a new parser for each request.
        if not self._ended:
            self._transport.set_protocol(self._heads)
            self._parser.resume_reading()
        self._content.feed_eof()


class HttpBody:
    """The bytes of one response that belong to the range."""

    def __init__(self, answer: RangeResponse, response: aiohttp.ClientResponse) -> None:
        self.info = answer.info
        self._response = response
        self._skip = answer.skip
        self._left = answer.length
        self._ready = memoryview(b"")
        self._receiver: BodyReceiver | None = None
        # A chunked body names no length: aiohttp must parse the marks between its pieces.
        self._has_exact_length = response.content_length == answer.skip + answer.length

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view, mostly without resuming the task for each piece; see :class:`RangeBody`."""
        while view and self._left:
            try:
                count = await self._receive(view, on_received)
            except StoreUnavailable:
                raise
            except (aiohttp.ClientError, OSError) as error:
                raise meaning_of(self.info.url, error) from None
            if not count:
                raise StoreUnavailable(
                    f"the body ended {self._left} bytes early; check the network", url=self.info.url
                )
            self._left -= count
            view = view[count:]

    async def _receive(self, view: memoryview, on_received: Callable[[int], None]) -> int:
        """Receive some bytes, usually until the view is full; return 0 at an early end."""
        content = self._response.content
        while not self._ready:
            self._ready = memoryview(content.read_nowait())
            if not self._ready and self._can_receive_directly():
                if self._receiver is None:
                    self._receiver = BodyReceiver(self._response, self._left)
                return await self._receiver.fill(view, on_received)
            self._ready = self._ready or memoryview(await content.readany())
            if not self._ready:
                return 0
            # A server that sends the whole object sends bytes that come before the range.
            skipped = min(self._skip, len(self._ready))
            self._skip -= skipped
            self._ready = self._ready[skipped:]
        count = min(len(view), len(self._ready), self._left)
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        on_received(count)
        return count

    def _can_receive_directly(self) -> bool:
        """Return whether the connection is held and will give the range's bytes and no others."""
        return self._has_exact_length and not self._skip and self._response.connection is not None

    def close(self) -> None:
        """Release the connection if the body is at its end, else close it."""
        give_back(self._response)


def give_back(response: aiohttp.ClientResponse) -> None:
    """Release the connection if the body is at its end, else close it."""
    # The rest of the body would be read as the beginning of the next response.
    if response.content.is_eof():
        response.release()
    else:
        response.close()
