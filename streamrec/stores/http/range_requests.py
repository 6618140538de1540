"""Ranged GET requests, and the checks of a response's status and headers. Pure: no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streamrec.errors import StoreError, StoreMisbehaved
from streamrec.masking import masked_repr
from streamrec.stores.base.protocol import ObjectInfo, check_pin, is_strong, version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

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
