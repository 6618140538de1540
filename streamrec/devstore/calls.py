"""A request and its reply, as the APIs see them, and S3's documents. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from streamrec.devstore.faults import FaultEffects
    from streamrec.devstore.objects import Content
    from streamrec.devstore.ranges import Refusal


NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

ElementContent: TypeAlias = "str | int | Iterable[tuple[str, ElementContent]]"
"""The text of an element, or the elements in it."""


def error_document(error: Refusal, resource: str, request_id: str) -> bytes:
    """Return the body of an error response, which has no namespace."""
    facts = (
        ("Code", error.code),
        ("Message", error.message),
        ("Resource", resource),
        ("RequestId", request_id),
    )
    return _encode(f"<Error>{_inner(facts)}</Error>")


def xml_reply(root: str, content: ElementContent) -> Reply:
    """Return a reply with a document, whose elements are nested as the pairs are."""
    body = _encode(f'<{root} xmlns="{NAMESPACE}">{_inner(content)}</{root}>')
    return Reply(headers={"Content-Type": "application/xml"}, body=body)


@lru_cache
def timestamp(seconds: float) -> str:
    """Return a time in ISO 8601 with milliseconds, as in LastModified."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


def _encode(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _inner(content: ElementContent) -> str:
    if isinstance(content, str | int):
        return escape(str(content))
    return "".join(f"<{name}>{_inner(value)}</{name}>" for name, value in content)


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    """The decoded path, ``/bucket/key`` for S3."""
    operation: str
    """The API's name of the operation, such as ``GetObject``, or ``Unknown``."""
    bucket: str
    """The bucket; empty for the service itself."""
    key: str
    """The key; empty for the bucket itself."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """The headers; case-insensitive."""
    read: Callable[[], Awaitable[bytes]]
    """A function that reads the body, not decoded."""
    effects: FaultEffects
    """The effects of faults on this request."""


@dataclass(frozen=True, slots=True)
class ObjectBody:
    """Bytes ``[start, stop)`` of an object, which are read while they are sent."""

    content: Content
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One response; Content-Length follows from the body, which is not sent for HEAD."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | ObjectBody = b""

    @property
    def size(self) -> int:
        """The number of bytes of the body."""
        body = self.body
        return len(body) if isinstance(body, bytes) else body.stop - body.start

    def with_faults(self, effects: FaultEffects) -> Reply:
        """Return this reply with the changes of faults to its head."""
        status, headers = self.status, self.headers | effects.headers
        if effects.content_range is not None:
            headers["Content-Range"] = effects.content_range
        if effects.content_range == "":
            del headers["Content-Range"]
        if status == 206 and effects.partial_status is not None:
            status = effects.partial_status
        return replace(self, status=status, headers=headers)
