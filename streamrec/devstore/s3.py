"""S3's API: buckets, listings, reads, copies, and writes in one piece and in parts.

Source: AWS, "Amazon S3 API Reference". Other operations are answered with 501 NotImplemented.

Bodies that clients send in chunks over TLS have a checksum behind them, and no signatures of their
own, since TLS protects them. Source: "Signature calculations for trailing headers", ibidem.
"""

from __future__ import annotations

import base64
import re
import time
import zlib
from contextlib import closing, suppress
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from streamrec.devstore.api import (
    API,
    Call,
    PendingUpload,
    Reply,
    error_document,
    page_limit,
    timestamp,
    xml_reply,
)
from streamrec.devstore.objects import digest
from streamrec.devstore.refusals import Refusal, parse_copy_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.devstore.api import ElementContent, ListingPage
    from streamrec.devstore.objects import StoredObject


LENGTH = "x-amz-decoded-content-length"
"""The header that names the bytes of the content; a body without it is not in chunks."""
UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
CRC32 = "x-amz-checksum-crc32"
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})\r\n")
_END = b"\r\n"


def content_encoding(header: str) -> str:
    """Return a Content-Encoding without the chunks, which are not kept."""
    return ",".join(one for one in map(str.strip, header.split(",")) if one != "aws-chunked")


def decode(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the content of a body in chunks.

    Raises:
        Refusal: The chunks are signed, malformed, of another length, or the checksum differs.
    """
    # Chunks of other kinds carry signatures, which this store does not check.
    if headers.get("x-amz-content-sha256") != UNSIGNED:
        raise Refusal(501, "NotImplemented", "This store reads no aws-chunked body that is signed.")
    chunks, place = [], 0
    while chunk := _chunk_at(body, place):
        chunks.append(body[chunk.start : chunk.stop])
        place = chunk.stop + len(_END)
    content = b"".join(chunks)
    if headers[LENGTH] != str(len(content)):
        raise Refusal(400, "IncompleteBody", "The body has another length than its headers say.")
    _check(content, body[chunk.start :])
    return content


def _chunk_at(body: bytes, place: int) -> range:
    """Return the bytes of the chunk at a place, of which the last one has none."""
    size = _SIZE.match(body, place)
    if size is None:
        raise Refusal(400, "IncompleteBody", "A chunk of the body has no size.")
    chunk = range(size.end(), size.end() + int(size[1], 16))
    if chunk and body[chunk.stop : chunk.stop + len(_END)] != _END:
        raise Refusal(400, "IncompleteBody", "A chunk of the body is cut off.")
    return chunk


def _check(content: bytes, trailers: bytes) -> None:
    """Compare the CRC32 that stands after the content, if one does."""
    for line in trailers.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        expected = base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
        # Trailers come after the last chunk.
        if name.lower() == CRC32 and value.strip() != expected:
            raise Refusal(400, "BadDigest", "The CRC32 that was sent is not that of the content.")


# fmt: off
_SUBRESOURCES = frozenset((
    "acl", "attributes", "cors", "delete", "encryption", "legal-hold", "lifecycle", "list-type",
    "location", "logging", "notification", "object-lock", "partNumber", "policy",
    "publicAccessBlock", "replication", "requestPayment", "restore", "retention", "select",
    "tagging", "torrent", "uploadId", "uploads", "versioning", "versions", "website",
))
# fmt: on
"""Query parameters that turn a request into another operation."""
_KEPT_HEADERS = ("Content-Type", "Content-Encoding")
"""The headers of a write that each later read returns."""
_COPY = "x-amz-copy-source"
"""The header that names the object to copy."""
_COPY_RANGE = "x-amz-copy-source-range"
"""The header that names the bytes to copy; those of a part alone."""
_UNSUPPORTED = {"If-None-Match": "This store knows no conditional writes."}
"""Messages about headers of a write that must not be ignored."""


class S3(API):
    """The API over a backend."""

    identity_header = "x-amz-request-id"

    def error_reply(self, error: Refusal, call: Call, identity: str) -> Reply:
        """Return the reply of a refused call, whose id is ``identity``."""
        headers = {"Content-Type": "application/xml"} | error.headers
        body = error_document(error, call.path, identity)
        return Reply(error.status, headers, body)

    async def _create_bucket(self, call: Call) -> Reply:
        await call.read()
        self._objects.create_bucket(call.bucket)
        return Reply(headers={"Location": f"/{call.bucket}"})

    async def _head_bucket(self, call: Call) -> Reply:
        self._require_bucket(call)
        return Reply()

    async def _list_objects_v2(self, call: Call) -> Reply:
        start_after, token = call.query.get("start-after", ""), call.query.get("continuation-token")
        limit = page_limit(call.query, "max-keys")
        page, stored = await self._list(call, start_after=start_after, token=token, max_keys=limit)
        return xml_reply("ListBucketResult", _listing(call, page, stored))

    async def _get_object(self, call: Call) -> Reply:
        stored = await self._objects.describe(call.bucket, call.key)
        etag = call.effects.etag or stored.etag
        expected = call.headers.get("If-Match", etag).strip('"')
        if expected != etag and not call.effects.ignore_preconditions:
            raise Refusal(412, "PreconditionFailed")
        return self._content(call, stored, _head(stored, etag))

    _head_object = _get_object

    async def _put_object(self, call: Call) -> Reply:
        if _COPY in call.headers:
            return await self._copy_object(call)
        headers, data = self._headers_to_keep(call), await _content_of(call)
        stored = self._objects.write(call.bucket, call.key, data, headers)
        return Reply(headers={"ETag": f'"{stored.etag}"'})

    async def _copy_object(self, call: Call) -> Reply:
        await call.read()
        self._require_bucket(call)
        before, data = await self._find_copied(call)
        stored = self._objects.write(call.bucket, call.key, data, before.headers, before.etag)
        return xml_reply("CopyObjectResult", _copy(stored.etag, stored.modified))

    async def _find_copied(self, call: Call) -> tuple[StoredObject, bytes]:
        """Return the metadata of the object that a call copies, and the bytes that it names."""
        bucket, _, key = unquote(call.headers[_COPY]).lstrip("/").partition("/")
        stored = await self._objects.describe(bucket, key)
        span = parse_copy_range(call.headers.get(_COPY_RANGE), stored.size)
        with closing(self._objects.open(bucket, key)) as content:
            return stored, bytes(content.read(span.start, span.stop))

    async def _delete_object(self, call: Call) -> Reply:
        self._require_bucket(call)
        with suppress(KeyError):  # S3 deletes what is not there
            del self._objects[f"{call.bucket}/{call.key}"]
        return Reply(204)

    async def _list_multipart_uploads(self, call: Call) -> Reply:
        self._require_bucket(call)
        prefix = call.query.get("prefix", "")
        uploads = [
            (upload.key, identity)
            for identity, upload in self._uploads.items()
            if upload.bucket == call.bucket and upload.key.startswith(prefix)
        ]
        facts: list[tuple[str, ElementContent]] = [
            ("Bucket", call.bucket),
            ("IsTruncated", "false"),
        ]
        facts += [("Upload", (("Key", key), ("UploadId", one))) for key, one in sorted(uploads)]
        return xml_reply("ListMultipartUploadsResult", facts)

    async def _create_multipart_upload(self, call: Call) -> Reply:
        await call.read()
        identity = self._begin(PendingUpload(call.bucket, call.key, self._headers_to_keep(call)))
        facts = (("Bucket", call.bucket), ("Key", call.key), ("UploadId", identity))
        return xml_reply("InitiateMultipartUploadResult", facts)

    async def _upload_part(self, call: Call) -> Reply:
        self._headers_to_keep(call)
        data, number = await _content_of(call), call.query["partNumber"]
        if not re.fullmatch("[0-9]{1,5}", number):
            raise Refusal(400, "InvalidArgument", "Part number must be between 1 and 10000.")
        upload = self._upload(call.query["uploadId"])
        is_copy = _COPY in call.headers
        upload.parts[int(number)] = data = (await self._find_copied(call))[1] if is_copy else data
        upload.etags[int(number)] = etag = digest(data)
        if is_copy:
            return xml_reply("CopyPartResult", _copy(etag, time.time()))
        return Reply(headers={"ETag": f'"{etag}"'})

    async def _complete_multipart_upload(self, call: Call) -> Reply:
        await call.read()  # the list of parts, which is not needed: all belong to the object
        stored = self._finish(call.query["uploadId"])
        facts = (("Bucket", call.bucket), ("Key", call.key), ("ETag", f'"{stored.etag}"'))
        return xml_reply("CompleteMultipartUploadResult", facts)

    async def _abort_multipart_upload(self, call: Call) -> Reply:
        self._uploads.pop(call.query["uploadId"], None)
        return Reply(204)

    def _headers_to_keep(self, call: Call) -> dict[str, str]:
        """Return the headers of a write that later reads return.

        Raises:
            Refusal: The write asks for something that this store does not do.
        """
        self._require_bucket(call)
        for name, message in _UNSUPPORTED.items():
            if name in call.headers:
                # Refused and not ignored: a conditional write that always writes would lose data in
                # silence.
                raise Refusal(501, "NotImplemented", message)
        headers = {name: call.headers[name] for name in _KEPT_HEADERS if name in call.headers}
        headers["Content-Encoding"] = content_encoding(headers.get("Content-Encoding", ""))
        return {name: value for name, value in headers.items() if value}


async def _content_of(call: Call) -> bytes:
    """Return the content of a write, without what chunks put around it."""
    body = await call.read()
    return decode(body, call.headers) if LENGTH in call.headers else body


def operation_of(method: str, path: str, query: Mapping[str, str]) -> tuple[str, str, str]:
    """Return S3's name of a request's operation (or ``Unknown``), the bucket and the key."""
    bucket, _, key = path[1:].partition("/")
    level = "object" if key else "bucket" if bucket else "service"
    subresources = " ".join(sorted(_SUBRESOURCES.intersection(query)))
    name = _OPERATIONS.get((method, level, subresources), "Unknown")
    if name == "ListObjectsV2" and query["list-type"] != "2":
        name = "Unknown"
    return name, bucket, key


_OPERATIONS = {
    ("PUT", "bucket", ""): "CreateBucket",
    ("HEAD", "bucket", ""): "HeadBucket",
    ("GET", "bucket", "list-type"): "ListObjectsV2",
    ("GET", "object", ""): "GetObject",
    ("HEAD", "object", ""): "HeadObject",
    ("PUT", "object", ""): "PutObject",
    ("DELETE", "object", ""): "DeleteObject",
    ("GET", "bucket", "uploads"): "ListMultipartUploads",
    ("POST", "object", "uploads"): "CreateMultipartUpload",
    ("PUT", "object", "partNumber uploadId"): "UploadPart",
    ("POST", "object", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", "object", "uploadId"): "AbortMultipartUpload",
}


def _copy(etag: str, modified: float) -> ElementContent:
    return ("ETag", f'"{etag}"'), ("LastModified", timestamp(modified))


def _head(stored: StoredObject, etag: str) -> dict[str, str]:
    return {
        "Content-Type": "binary/octet-stream",  # S3's default
        **stored.headers,
        "ETag": f'"{etag}"',
        "Last-Modified": formatdate(stored.modified, usegmt=True),
        "Accept-Ranges": "bytes",
    }


def _listing(
    call: Call, page: ListingPage, stored: list[tuple[str, StoredObject]]
) -> Iterator[tuple[str, ElementContent]]:
    encoded = call.query.get("encoding-type") == "url"

    def name(text: str) -> str:
        return quote(text, safe="/*-._~") if encoded else text

    yield "Name", call.bucket
    yield "Prefix", name(call.query.get("prefix", ""))
    yield "KeyCount", len(page.keys) + len(page.prefixes)
    yield "IsTruncated", "true" if page.token else "false"
    if encoded:
        yield "EncodingType", "url"
    if page.token:
        yield "NextContinuationToken", page.token
    for key, facts in stored:
        yield "Contents", _entry(name(key), facts)
    for prefix in page.prefixes:
        yield "CommonPrefixes", (("Prefix", name(prefix)),)


def _entry(name: str, facts: StoredObject) -> ElementContent:
    return (
        ("Key", name),
        ("LastModified", timestamp(facts.modified)),
        ("ETag", f'"{facts.etag}"'),
        ("Size", facts.size),
        ("StorageClass", "STANDARD"),
    )
