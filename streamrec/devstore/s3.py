"""S3's API: the routing of calls, and the operations on buckets.

Source: AWS, "Amazon S3 API Reference". Other operations are answered with 501 NotImplemented.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from streamrec.devstore.documents import document, parse_delete, timestamp
from streamrec.devstore.errors import S3Error
from streamrec.devstore.listing import LARGEST_PAGE, list_page
from streamrec.devstore.messages import Call, Reply
from streamrec.devstore.object_calls import ObjectCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from streamrec.devstore.documents import Children
    from streamrec.devstore.listing import Page
    from streamrec.devstore.objects import Objects, Stored

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


class S3:
    """The API over a backend.

    Args:
        objects: The backend that holds the objects.
        region: The region of all buckets.
    """

    def __init__(self, objects: Objects, region: str = "us-east-1") -> None:
        self._objects = objects
        self._region = region
        calls = ObjectCalls(objects)
        self._operations: dict[str, Callable[[Call], Awaitable[Reply]]] = {
            "ListBuckets": self._list_buckets,
            "CreateBucket": self._create_bucket,
            "HeadBucket": self._head_bucket,
            "DeleteBucket": self._delete_bucket,
            "GetBucketLocation": self._get_bucket_location,
            "GetBucketVersioning": self._get_bucket_versioning,
            "ListObjectsV2": self._list_objects,
            "DeleteObjects": self._delete_objects,
            **calls.operations(),
        }

    async def answer(self, call: Call) -> Reply:
        """Carry out a call and return the reply.

        Raises:
            S3Error: The call is refused.
        """
        operation = self._operations.get(operation_of(call))
        if operation is None:
            raise S3Error(501, "NotImplemented")
        try:
            return await operation(call)
        except KeyError:
            known = call.bucket in self._objects.buckets()
            raise S3Error(404, "NoSuchKey" if known else "NoSuchBucket") from None

    async def _list_buckets(self, _: Call) -> Reply:
        buckets = [
            ("Bucket", (("Name", name), ("CreationDate", timestamp(0))))
            for name in self._objects.buckets()
        ]
        owner = ("Owner", (("ID", "devstore"), ("DisplayName", "devstore")))
        return _xml("ListAllMyBucketsResult", (owner, ("Buckets", buckets)))

    async def _create_bucket(self, call: Call) -> Reply:
        await call.read()
        self._objects.create_bucket(call.bucket)
        return Reply(headers={"Location": f"/{call.bucket}"})

    async def _head_bucket(self, call: Call) -> Reply:
        self._require_bucket(call.bucket)
        return Reply(headers={"x-amz-bucket-region": self._region})

    async def _delete_bucket(self, call: Call) -> Reply:
        if self._objects.keys_of(call.bucket):
            raise S3Error(409, "BucketNotEmpty")
        self._objects.delete_bucket(call.bucket)
        return Reply(204)

    async def _get_bucket_location(self, call: Call) -> Reply:
        self._require_bucket(call.bucket)
        # S3 returns an empty location for its first region.
        region = "" if self._region == "us-east-1" else self._region
        return Reply(
            headers={"Content-Type": "application/xml"},
            body=document("LocationConstraint", ()).replace(b"></", f">{region}</".encode()),
        )

    async def _get_bucket_versioning(self, call: Call) -> Reply:
        self._require_bucket(call.bucket)
        return _xml("VersioningConfiguration", ())  # an empty document: versioning is off

    async def _list_objects(self, call: Call) -> Reply:
        query = call.query
        keys = self._objects.keys_of(call.bucket, query.get("prefix", ""))
        page = list_page(
            keys,
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start_after=query.get("start-after", ""),
            token=query.get("continuation-token"),
            max_keys=_max_keys(query.get("max-keys", str(LARGEST_PAGE))),
        )
        stored = [(key, await self._objects.describe(call.bucket, key)) for key in page.keys]
        return _xml("ListBucketResult", _listing(call, page, stored))

    async def _delete_objects(self, call: Call) -> Reply:
        self._require_bucket(call.bucket)
        keys, quiet = parse_delete(await call.read())
        for key in keys:
            self._remove_if_there(call.bucket, key)
        deleted = [] if quiet else [("Deleted", (("Key", key),)) for key in keys]
        return _xml("DeleteResult", deleted)

    def _remove_if_there(self, bucket: str, key: str) -> None:
        try:
            self._objects.remove(bucket, key)
        except KeyError:
            return  # deleting twice is no error in S3

    def _require_bucket(self, bucket: str) -> None:
        if bucket not in self._objects.buckets():
            raise S3Error(404, "NoSuchBucket")


def operation_of(call: Call) -> str:
    """Return S3's name of the call's operation; ``Unknown`` if it is not supported."""
    level = "object" if call.key else "bucket" if call.bucket else "service"
    asked = " ".join(sorted(_SUBRESOURCES.intersection(call.query)))
    if asked == "list-type" and call.query["list-type"] != "2":
        return "Unknown"
    name = _OPERATIONS.get((call.method, level, asked), "Unknown")
    copied = name == "PutObject" and "x-amz-copy-source" in call.headers
    return "CopyObject" if copied else name


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


def _xml(root: str, children: Children) -> Reply:
    return Reply(headers={"Content-Type": "application/xml"}, body=document(root, children))


def _max_keys(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        message = "Argument maxKeys must be an integer between 0 and 2147483647"
        raise S3Error(400, "InvalidArgument", message)
    return int(text)


def _listing(call: Call, page: Page, stored: list[tuple[str, Stored]]) -> Children:
    query = call.query
    encoded = query.get("encoding-type") == "url"

    def name(text: str) -> str:
        return quote(text, safe="/*-._~") if encoded and _TO_ENCODE.search(text) else text

    yield "Name", call.bucket
    yield "Prefix", name(query.get("prefix", ""))
    yield "MaxKeys", min(_max_keys(query.get("max-keys", str(LARGEST_PAGE))), LARGEST_PAGE)
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


def _entry(name: str, facts: Stored) -> Children:
    return (
        ("Key", name),
        ("LastModified", timestamp(facts.modified)),
        ("ETag", f'"{facts.etag}"'),
        ("Size", facts.size),
        ("StorageClass", "STANDARD"),
    )
