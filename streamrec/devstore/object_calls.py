"""S3's operations on one object: read, write, copy, delete, and write in parts."""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import unquote

from streamrec.devstore.conditions import evaluate, range_still_holds
from streamrec.devstore.documents import document, parse_parts, timestamp
from streamrec.devstore.errors import S3Error
from streamrec.devstore.messages import Call, ObjectBody, Reply
from streamrec.devstore.multipart import Uploads
from streamrec.devstore.objects import split_name
from streamrec.devstore.ranges import Span, Unsatisfiable, parse_range, unsatisfied
from streamrec.devstore.uploads import decode_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from streamrec.devstore.objects import Objects, Stored

__all__ = ["ObjectCalls"]

_KEPT_HEADERS = ("Content-Type", "Content-Disposition", "Cache-Control")
_XML = {"Content-Type": "application/xml"}


class ObjectCalls:
    """The operations on one object.

    Args:
        objects: The backend that holds the objects.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._uploads = Uploads()

    def operations(self) -> dict[str, Callable[[Call], Awaitable[Reply]]]:
        """Return the operations by name; each may raise S3Error, or KeyError for "not found"."""
        return {
            "GetObject": self._get,
            "HeadObject": self._get,
            "PutObject": self._put,
            "CopyObject": self._copy,
            "DeleteObject": self._delete,
            "CreateMultipartUpload": self._begin_upload,
            "UploadPart": self._put_part,
            "CompleteMultipartUpload": self._complete_upload,
            "AbortMultipartUpload": self._abort_upload,
        }

    async def _get(self, call: Call) -> Reply:
        stored = await self._objects.describe(call.bucket, call.key)
        etag = call.effects.etag or stored.etag
        headers = _head(stored, etag)
        if not call.effects.ignore_preconditions:
            verdict = evaluate(call.headers, etag, stored.modified)
            if verdict == "not modified":
                return Reply(304, headers, bare=True)
            if verdict == "failed":
                raise S3Error(412, "PreconditionFailed")
        span = _span(call, stored, etag)
        return self._content(call, span, stored, headers)

    def _content(
        self, call: Call, span: Span | None, stored: Stored, headers: dict[str, str]
    ) -> Reply:
        start, stop = (0, stored.size) if span is None else (span.start, span.stop)
        if span is not None:
            headers["Content-Range"] = span.content_range
        body = ObjectBody(self._objects.open(call.bucket, call.key), start, stop)
        return Reply(200 if span is None else 206, headers, body, bare=call.method == "HEAD")

    async def _put(self, call: Call) -> Reply:
        await self._check_write(call)
        data = decode_body(await call.read(), call.headers)
        stored = self._objects.write(call.bucket, call.key, data, _kept(call.headers))
        return Reply(headers={"ETag": f'"{stored.etag}"'})

    async def _check_write(self, call: Call) -> None:
        """Check that the bucket exists, and the write's preconditions (If-Match, If-None-Match)."""
        self._require_bucket(call)
        if {"If-Match", "If-None-Match"}.isdisjoint(call.headers):
            return
        if evaluate(call.headers, await self._etag(call), 0) != "proceed":
            raise S3Error(412, "PreconditionFailed")

    async def _etag(self, call: Call) -> str | None:
        try:
            return (await self._objects.describe(call.bucket, call.key)).etag
        except KeyError:
            return None

    async def _copy(self, call: Call) -> Reply:
        self._require_bucket(call)
        source = unquote(call.headers["x-amz-copy-source"]).lstrip("/").partition("?")[0]
        try:
            facts = await self._objects.describe(*split_name(source))
            data = self._objects[source]
        except KeyError:
            raise S3Error(404, "NoSuchKey") from None
        replaced = call.headers.get("x-amz-metadata-directive") == "REPLACE"
        headers = _kept(call.headers) if replaced else facts.headers
        stored = self._objects.write(call.bucket, call.key, data, headers)
        result = (("LastModified", timestamp(stored.modified)), ("ETag", f'"{stored.etag}"'))
        return Reply(headers=dict(_XML), body=document("CopyObjectResult", result))

    async def _delete(self, call: Call) -> Reply:
        self._require_bucket(call)
        if await self._etag(call) is not None:  # deleting twice is no error in S3
            self._objects.remove(call.bucket, call.key)
        return Reply(204)

    async def _begin_upload(self, call: Call) -> Reply:
        self._require_bucket(call)
        await call.read()
        identity = self._uploads.begin(call.bucket, call.key, _kept(call.headers))
        facts = (("Bucket", call.bucket), ("Key", call.key), ("UploadId", identity))
        return Reply(headers=dict(_XML), body=document("InitiateMultipartUploadResult", facts))

    async def _put_part(self, call: Call) -> Reply:
        upload = self._uploads.find(call.query["uploadId"], call.bucket, call.key)
        if "x-amz-copy-source" in call.headers:
            raise S3Error(501, "NotImplemented")
        data = decode_body(await call.read(), call.headers)
        number = call.query["partNumber"]
        etag = upload.add(int(number) if number.isascii() and number.isdigit() else 0, data)
        return Reply(headers={"ETag": f'"{etag}"'})

    async def _complete_upload(self, call: Call) -> Reply:
        identity = call.query["uploadId"]
        upload = self._uploads.find(identity, call.bucket, call.key)
        await self._check_write(call)
        data, etag = upload.join(parse_parts(await call.read()))
        stored = self._objects.write(call.bucket, call.key, data, upload.headers, etag)
        self._uploads.forget(identity)
        facts = (
            ("Location", call.path),
            ("Bucket", call.bucket),
            ("Key", call.key),
            ("ETag", f'"{stored.etag}"'),
        )
        return Reply(headers=dict(_XML), body=document("CompleteMultipartUploadResult", facts))

    async def _abort_upload(self, call: Call) -> Reply:
        self._uploads.find(call.query["uploadId"], call.bucket, call.key)
        self._uploads.forget(call.query["uploadId"])
        return Reply(204)

    def _require_bucket(self, call: Call) -> None:
        if call.bucket not in self._objects.buckets():
            raise S3Error(404, "NoSuchBucket")


def _head(stored: Stored, etag: str) -> dict[str, str]:
    return {
        "Content-Type": "binary/octet-stream",  # S3's default
        **stored.headers,
        "ETag": f'"{etag}"',
        "Last-Modified": formatdate(stored.modified, usegmt=True),
        "Accept-Ranges": "bytes",
    }


def _span(call: Call, stored: Stored, etag: str) -> Span | None:
    if call.effects.ignore_range or not range_still_holds(call.headers, etag, stored.modified):
        return None
    try:
        return parse_range(call.headers.get("Range"), stored.size)
    except Unsatisfiable:
        where = {"Content-Range": unsatisfied(stored.size)}
        raise S3Error(416, "InvalidRange", headers=where) from None


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a write that each later read returns."""
    own = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
    metadata = {
        name.lower(): value
        for name, value in headers.items()
        if name.lower().startswith("x-amz-meta-")
    }
    codings = [coding.strip() for coding in headers.get("Content-Encoding", "").split(",")]
    real = ",".join(coding for coding in codings if coding not in ("", "aws-chunked"))
    return own | metadata | ({"Content-Encoding": real} if real else {})
