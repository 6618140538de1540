"""The base of both APIs: the dispatch of calls, the reading of objects, and uploads in parts."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from streamrec.devstore.calls import ObjectBody, Reply
from streamrec.devstore.listing import list_page
from streamrec.devstore.objects import etag_of_parts
from streamrec.devstore.ranges import Refusal, parse_range

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from streamrec.devstore.calls import Call
    from streamrec.devstore.listing import ListingPage
    from streamrec.devstore.objects import Objects, StoredObject


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
        asked = None if call.effects.ignore_range else call.headers.get("Range")
        span = parse_range(asked, stored.size)
        if span is not None:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{stored.size}"
        part = range(stored.size) if span is None else span
        body = ObjectBody(self._objects.open(call.bucket, call.key), part.start, part.stop)
        return Reply(200 if span is None else 206, headers, body)
