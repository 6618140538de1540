"""S3's API: the routing of calls, and the operations on buckets.

Source: AWS, "Amazon S3 API Reference". Other operations are answered with 501 NotImplemented.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from streamrec.devstore.errors import Refusal
from streamrec.devstore.listing import page_limit
from streamrec.devstore.messages import Call, Reply
from streamrec.devstore.s3_documents import (
    error_document,
    parse_delete,
    timestamp,
    xml_reply,
)
from streamrec.devstore.s3_objects import S3Objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.devstore.listing import Page
    from streamrec.devstore.objects import Objects, Stored
    from streamrec.devstore.s3_documents import Content

__all__ = ["S3"]

# fmt: off
_SUBRESOURCES = frozenset((
    "acl", "attributes", "cors", "delete", "encryption", "legal-hold", "lifecycle", "list-type",
    "location", "logging", "notification", "object-lock", "partNumber", "policy",
    "publicAccessBlock", "replication", "requestPayment", "restore", "retention", "select",
    "tagging", "torrent", "uploadId", "uploads", "versioning", "versions", "website",
))
# fmt: on
"""Query parameters that turn a request into another operation."""

_TO_ENCODE = re.compile(r"[^\w/*.~-]", re.ASCII)
"""Characters that a URL-encoded listing encodes."""


class S3(S3Objects):
    """The API over a backend.

    Args:
        objects: The backend that holds the objects.
        region: The region of all buckets.
    """

    identity_header = "x-amz-request-id"

    def __init__(self, objects: Objects, region: str = "us-east-1") -> None:
        super().__init__(objects)
        self._region = region

    def error_reply(self, error: Refusal, call: Call, identity: str) -> Reply:
        """Return the reply of a refused call, whose id is ``identity``."""
        headers = {"Content-Type": "application/xml"} | error.headers
        body = error_document(error, call.path, identity)
        return Reply(error.status, headers, body, bare=call.method == "HEAD")

    async def _list_buckets(self, _: Call) -> Reply:
        buckets = [
            ("Bucket", (("Name", name), ("CreationDate", timestamp(0))))
            for name in self._objects.buckets()
        ]
        owner = ("Owner", (("ID", "devstore"), ("DisplayName", "devstore")))
        return xml_reply("ListAllMyBucketsResult", (owner, ("Buckets", buckets)))

    async def _create_bucket(self, call: Call) -> Reply:
        await call.read()
        self._objects.create_bucket(call.bucket)
        return Reply(headers={"Location": f"/{call.bucket}"})

    async def _head_bucket(self, call: Call) -> Reply:
        self._require_bucket(call)
        return Reply(headers={"x-amz-bucket-region": self._region})

    async def _delete_bucket(self, call: Call) -> Reply:
        if self._objects.keys_of(call.bucket):
            raise Refusal(409, "BucketNotEmpty")
        self._objects.delete_bucket(call.bucket)
        return Reply(204)

    async def _get_bucket_location(self, call: Call) -> Reply:
        self._require_bucket(call)
        # S3 returns an empty location for its first region.
        region = "" if self._region == "us-east-1" else self._region
        return xml_reply("LocationConstraint", region)

    async def _get_bucket_versioning(self, call: Call) -> Reply:
        self._require_bucket(call)
        return xml_reply("VersioningConfiguration", ())  # an empty document: versioning is off

    async def _list_objects_v2(self, call: Call) -> Reply:
        start_after, token = call.query.get("start-after", ""), call.query.get("continuation-token")
        limit = page_limit(call.query, "max-keys")
        page, stored = await self._list(call, start_after=start_after, token=token, max_keys=limit)
        return xml_reply("ListBucketResult", _listing(call, page, stored))

    async def _delete_objects(self, call: Call) -> Reply:
        self._require_bucket(call)
        keys, quiet = parse_delete(await call.read())
        for key in keys:
            self._remove(call.bucket, key)
        deleted = [] if quiet else [("Deleted", (("Key", key),)) for key in keys]
        return xml_reply("DeleteResult", deleted)


def operation_of(
    method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return S3's name of a request's operation (or ``Unknown``), the bucket and the key."""
    bucket, _, key = path[1:].partition("/")
    level = "object" if key else "bucket" if bucket else "service"
    asked = " ".join(sorted(_SUBRESOURCES.intersection(query)))
    name = _OPERATIONS.get((method, level, asked), "Unknown")
    if name == "ListObjectsV2" and query["list-type"] != "2":
        name = "Unknown"
    if name == "PutObject" and "x-amz-copy-source" in headers:
        name = "CopyObject"
    return name, bucket, key


_OPERATIONS = {
    ("GET", "service", ""): "ListBuckets",
    ("PUT", "bucket", ""): "CreateBucket",
    ("HEAD", "bucket", ""): "HeadBucket",
    ("DELETE", "bucket", ""): "DeleteBucket",
    ("GET", "bucket", "location"): "GetBucketLocation",
    ("GET", "bucket", "versioning"): "GetBucketVersioning",
    ("GET", "bucket", "list-type"): "ListObjectsV2",
    ("POST", "bucket", "delete"): "DeleteObjects",
    ("GET", "object", ""): "GetObject",
    ("HEAD", "object", ""): "HeadObject",
    ("PUT", "object", ""): "PutObject",
    ("DELETE", "object", ""): "DeleteObject",
    ("POST", "object", "uploads"): "CreateMultipartUpload",
    ("PUT", "object", "partNumber uploadId"): "UploadPart",
    ("POST", "object", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", "object", "uploadId"): "AbortMultipartUpload",
}


def _listing(
    call: Call, page: Page, stored: list[tuple[str, Stored]]
) -> Iterator[tuple[str, Content]]:
    query = call.query
    encoded = query.get("encoding-type") == "url"

    def name(text: str) -> str:
        return quote(text, safe="/*-._~") if encoded and _TO_ENCODE.search(text) else text

    yield "Name", call.bucket
    yield "Prefix", name(query.get("prefix", ""))
    yield "MaxKeys", page_limit(query, "max-keys")
    yield "KeyCount", len(page.keys) + len(page.prefixes)
    yield "IsTruncated", "true" if page.token else "false"
    if encoded:
        yield "EncodingType", "url"
    for parameter, element in (("delimiter", "Delimiter"), ("start-after", "StartAfter")):
        if parameter in query:
            yield element, name(query[parameter])
    if "continuation-token" in query:
        yield "ContinuationToken", query["continuation-token"]
    if page.token:
        yield "NextContinuationToken", page.token
    for key, facts in stored:
        yield "Contents", _entry(name(key), facts)
    for prefix in page.prefixes:
        yield "CommonPrefixes", (("Prefix", name(prefix)),)


def _entry(name: str, facts: Stored) -> Content:
    return (
        ("Key", name),
        ("LastModified", timestamp(facts.modified)),
        ("ETag", f'"{facts.etag}"'),
        ("Size", facts.size),
        ("StorageClass", "STANDARD"),
    )
