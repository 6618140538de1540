"""Google Cloud Storage's API: the routing of calls, and the operations on buckets.

Source: Google, "Cloud Storage JSON API v1". Other operations are answered with 501 notImplemented.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from streamrec.devstore.errors import Refusal
from streamrec.devstore.gcs_documents import (
    bucket_resource,
    error_reply,
    json_reply,
    object_resource,
    parse,
)
from streamrec.devstore.gcs_objects import GCSObjects
from streamrec.devstore.listing import LARGEST_PAGE, page_limit
from streamrec.devstore.messages import Call, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GCS", "operation_of", "speaks_gcs"]

_ROOT = re.compile(r"/(?:(?P<service>download|upload)/)?storage/v1/b(?P<rest>/.*|$)", re.DOTALL)
_REST = re.compile(r"(?:/(?P<bucket>[^/]+)(?P<objects>/o(?:/(?P<key>.+))?)?)?", re.DOTALL)


class GCS(GCSObjects):
    """The API over a backend."""

    identity_header = "x-guploader-uploadid"
    no_such_object = "No such object: {0.bucket}/{0.key}"

    def error_reply(self, error: Refusal, call: Call, _: str) -> Reply:
        """Return the reply of a refused call."""
        return error_reply(error, download=call.operation == "objects.get media")

    async def _buckets_list(self, call: Call) -> Reply:
        items = [bucket_resource(name) for name in self._objects.buckets()]
        return json_reply(call, {"kind": "storage#buckets", "items": items})

    async def _buckets_insert(self, call: Call) -> Reply:
        name = parse(await call.read()).get("name", "")
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", name):
            raise Refusal(400, "invalid", f"Invalid bucket name: '{name}'")
        if name in self._objects.buckets():
            raise Refusal(409, "conflict", "You already own this bucket.")
        self._objects.create_bucket(name)
        return json_reply(call, bucket_resource(name))

    async def _buckets_get(self, call: Call) -> Reply:
        self._require_bucket(call)
        return json_reply(call, bucket_resource(call.bucket))

    async def _buckets_delete(self, call: Call) -> Reply:
        if self._objects.keys_of(call.bucket):
            raise Refusal(409, "conflict", "The bucket you tried to delete is not empty.")
        self._objects.delete_bucket(call.bucket)
        return Reply(204)

    async def _objects_list(self, call: Call) -> Reply:
        self._require_bucket(call)
        page, stored = await self._list(
            call,
            start=call.query.get("startOffset", ""),
            stop=call.query.get("endOffset", ""),
            token=call.query.get("pageToken"),
            max_keys=page_limit(call.query, "maxResults") or LARGEST_PAGE,
        )
        items = [object_resource(call.bucket, key, facts) for key, facts in stored]
        # Empty fields are left out, as everywhere in this API.
        answer = {"nextPageToken": page.token, "prefixes": list(page.prefixes), "items": items}
        shown = {name: value for name, value in answer.items() if value}
        return json_reply(call, {"kind": "storage#objects"} | shown)


def speaks_gcs(path: str) -> bool:
    """Return whether a request's path is one of Google's API; all others are S3's."""
    return _ROOT.fullmatch(path) is not None


def operation_of(
    method: str, path: str, query: Mapping[str, str], _headers: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return Google's name of a request's operation (or ``Unknown``), the bucket and the key."""
    root = _ROOT.fullmatch(path)
    rest = _REST.fullmatch(root["rest"]) if root else None
    if root is None or rest is None:
        return "Unknown", "", ""
    level = "object" if rest["key"] else "objects" if rest["objects"] else "bucket"
    level = level if rest["bucket"] else "buckets"
    name = _OPERATIONS.get((root["service"], method, level), "Unknown")
    if name == "objects.get" and (root["service"] or query.get("alt") == "media"):
        name = "objects.get media"
    if name == "objects.insert" and "upload_id" in query:
        name = "objects.insert part"
    return name, rest["bucket"] or "", rest["key"] or ""


_OPERATIONS = {
    (None, "GET", "buckets"): "buckets.list",
    (None, "POST", "buckets"): "buckets.insert",
    (None, "GET", "bucket"): "buckets.get",
    (None, "DELETE", "bucket"): "buckets.delete",
    (None, "GET", "objects"): "objects.list",
    (None, "GET", "object"): "objects.get",
    (None, "DELETE", "object"): "objects.delete",
    ("download", "GET", "object"): "objects.get",
    ("upload", "POST", "objects"): "objects.insert",
    ("upload", "PUT", "objects"): "objects.insert",
    ("upload", "DELETE", "objects"): "objects.insert",
}
