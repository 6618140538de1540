"""The base of both APIs: calls and replies, reading, listing page by page, uploads in parts."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from streamrec.devstore.objects import etag_of_parts
from streamrec.devstore.refusals import Refusal, parse_range

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from streamrec.devstore.objects import Content, Objects, StoredObject
    from streamrec.devstore.refusals import FaultEffects


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
            # An empty text stands for no header.
            del headers["Content-Range"]
        if status == 206 and effects.partial_status is not None:
            status = effects.partial_status
        return replace(self, status=status, headers=headers)


LARGEST_PAGE = 1000
"""Most keys and common prefixes on a page, together: S3's own limit."""


@dataclass(frozen=True, slots=True)
class ListingPage:
    """The sorted keys and common prefixes of a page, and the token of the next one."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    token: str | None
    """The last name on the page, percent-encoded; None on the last page."""


def page_limit(query: Mapping[str, str], name: str) -> int:
    """Return the most keys and common prefixes on a page, from a query's parameter ``name``.

    Raises:
        Refusal: The value is not a number.
    """
    text = query.get(name, str(LARGEST_PAGE))
    if not re.fullmatch("[0-9]{1,10}", text):
        message = f"{name} must be an integer between 0 and 2147483647"
        raise Refusal(400, "InvalidArgument", message)
    return min(int(text), LARGEST_PAGE)


def list_page(
    keys: Sequence[str],
    *,
    prefix: str = "",
    delimiter: str = "",
    start_after: str = "",
    start: str = "",
    token: str | None = None,
    max_keys: int = LARGEST_PAGE,
) -> ListingPage:
    """Return one page of the keys.

    Args:
        keys: All keys of the bucket, sorted.
        prefix: The beginning of the keys to list.
        delimiter: Keys that are equal up to the first delimiter after the prefix become one common
            prefix.
        start_after: A name; the page begins after it.
        start: A key; the page begins with it or after it (GCS).
        token: The token of the page before; it overrides ``start_after``.
        max_keys: Most keys and prefixes on the page.
    """
    after = start_after if token is None else unquote(token)
    # By halving: a page in the middle of a million keys costs no walk through those before it.
    first = max(bisect_left(keys, max(prefix, start)), bisect_right(keys, after) if after else 0)
    names = _names(keys, first, prefix, delimiter)
    # The token may be a common prefix, whose keys come after it and must not make it appear again.
    later = ((name, common) for name, common in names if name != after)
    page = list(islice(later, max_keys))
    return ListingPage(
        tuple(name for name, common in page if not common),
        tuple(name for name, common in page if common),
        # One name more is looked for, since a page that is full may be the last one.
        quote(page[-1][0]) if page and any(later) else None,
    )


def _names(keys: Sequence[str], at: int, prefix: str, delimiter: str) -> Iterator[tuple[str, bool]]:
    """Yield the names to list, and ``True`` with those that are common prefixes of keys."""
    while at < len(keys) and keys[at].startswith(prefix):
        cut = keys[at].find(delimiter, len(prefix)) if delimiter else -1
        name = keys[at] if cut < 0 else keys[at][: cut + len(delimiter)]
        yield name, cut >= 0
        # Behind all keys of a common prefix at once.
        at = at + 1 if cut < 0 else bisect_right(keys, name, key=lambda key: key[: len(name)])


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """One object that is being uploaded in parts, and is not visible before the last one."""

    bucket: str
    key: str
    headers: Mapping[str, str]
    """The headers that each later read returns."""
    parts: dict[int, bytes] = field(default_factory=dict)
    """The content of each part, by its number (S3) or its offset (GCS)."""
    etags: dict[int, str] = field(default_factory=dict)
    """The ETag of each part, where parts have one (S3)."""


class API(ABC):
    """An API over a backend; the method of an operation has the operation's name in snake case.

    Args:
        objects: The backend that holds the objects.
    """

    identity_header: ClassVar[str]
    """The response header that holds the request's id."""
    no_such_object: ClassVar[str] = ""
    """The message about a missing object, a format of the call; empty: that of its code."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._uploads: dict[str, PendingUpload] = {}
        self._upload_ids = map("upload-{}".format, itertools.count(1))

    async def answer(self, call: Call) -> Reply:
        """Carry out a call and return the reply.

        Raises:
            Refusal: The call is refused.
        """
        # GetObject and objects.get media become get_object and objects_get_media.
        name = re.sub(r"\W|(?<=[a-z])(?=[A-Z])", "_", call.operation).lower()
        operation: Callable[[Call], Awaitable[Reply]] | None = getattr(self, f"_{name}", None)
        if operation is None:
            raise Refusal(501, "NotImplemented")
        try:
            return await operation(call)
        except KeyError:
            if call.bucket not in self._objects.buckets():
                raise Refusal(404, "NoSuchBucket") from None
            raise Refusal(404, "NoSuchKey", self.no_such_object.format(call)) from None

    @abstractmethod
    def error_reply(self, error: Refusal, call: Call, identity: str) -> Reply:
        """Return the reply of a refused call, whose id is ``identity``."""

    def _begin(self, upload: PendingUpload) -> str:
        """Keep an upload in parts, and return its id."""
        identity = next(self._upload_ids)
        self._uploads[identity] = upload
        return identity

    def _upload(self, identity: str) -> PendingUpload:
        upload = self._uploads.get(identity)
        if upload is None:
            raise Refusal(404, "NoSuchUpload")
        return upload

    def _finish(self, identity: str) -> StoredObject:
        """Join the parts of an upload in the order of their numbers, and write the object."""
        upload = self._upload(identity)
        # Gone before the object is written: the same call again finds no upload.
        del self._uploads[identity]
        numbers = sorted(upload.parts)
        data = b"".join(upload.parts[number] for number in numbers)
        etag = etag_of_parts([upload.etags[number] for number in numbers]) if upload.etags else None
        return self._objects.write(upload.bucket, upload.key, data, upload.headers, etag)

    def _require_bucket(self, call: Call) -> None:
        if call.bucket not in self._objects.buckets():
            raise KeyError(call.bucket)

    async def _list(
        self, call: Call, **options: Any
    ) -> tuple[ListingPage, list[tuple[str, StoredObject]]]:
        """Return a page of the bucket's keys, and its keys with the metadata of their objects."""
        prefix, delimiter = call.query.get("prefix", ""), call.query.get("delimiter", "")
        keys = self._objects.keys_of(call.bucket, prefix)
        page = list_page(keys, prefix=prefix, delimiter=delimiter, **options)
        stored = [(key, await self._objects.describe(call.bucket, key)) for key in page.keys]
        return page, stored

    def _content(self, call: Call, stored: StoredObject, headers: dict[str, str]) -> Reply:
        """Return the content of an object, or the range of it that the call asks for."""
        header = None if call.effects.ignore_range else call.headers.get("Range")
        span = parse_range(header, stored.size)
        if span is not None:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{stored.size}"
        part = range(stored.size) if span is None else span
        body = ObjectBody(self._objects.open(call.bucket, call.key), part.start, part.stop)
        return Reply(200 if span is None else 206, headers, body)
