"""Google Cloud Storage's API: the routing of calls, and the operations on buckets.

Source: Google, "Cloud Storage JSON API v1". Other operations are answered with 501 notImplemented.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from streamrec.devstore.errors import GCSError
from streamrec.devstore.gcs_documents import bucket_resource, json_reply, object_resource, parse
from streamrec.devstore.gcs_objects import GCSObjectCalls
from streamrec.devstore.listing import LARGEST_PAGE, list_page
from streamrec.devstore.messages import Call, Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from streamrec.devstore.objects import Objects

__all__ = ["GCS", "Request", "parse_request", "speaks_gcs"]

_ROOT = re.compile(r"/(?:(?P<service>download|upload)/)?storage/v1/b(?P<rest>/.*|$)", re.DOTALL)
_REST = re.compile(r"(?:/(?P<bucket>[^/]+)(?P<objects>/o(?:/(?P<key>.+))?)?)?", re.DOTALL)


class Request(NamedTuple):
    """The operation, bucket and key of a call."""

    operation: str
    """Google's name of the operation, such as ``objects.list``, or ``Unknown``."""
    bucket: str = ""
    key: str = ""


class GCS:
    """The API over a backend.

    Args:
        objects: The backend that holds the objects.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        calls = GCSObjectCalls(objects)
        self._operations: dict[str, Callable[[Call, Request], Awaitable[Reply]]] = {
            "buckets.list": self._list_buckets,
            "buckets.insert": self._create_bucket,
            "buckets.get": self._get_bucket,
            "buckets.delete": self._delete_bucket,
            "objects.list": self._list_objects,
            **calls.operations(),
        }

    async def answer(self, call: Call) -> Reply:
        """Carry out a call and return the reply.

        Raises:
            Refusal: The call is refused.
        """
        request = parse_request(call)
        operation = self._operations.get(request.operation)
        if operation is None:
            raise GCSError(501, "notImplemented")
        try:
            return await operation(call, request)
        except KeyError:
            if request.bucket in self._objects.buckets():
                raise GCSError(
                    404, "notFound", f"No such object: {request.bucket}/{request.key}"
                ) from None
            raise _no_bucket() from None

    async def _list_buckets(self, call: Call, _: Request) -> Reply:
        items = [bucket_resource(name) for name in self._objects.buckets()]
        return json_reply(call, {"kind": "storage#buckets", "items": items})

    async def _create_bucket(self, call: Call, _: Request) -> Reply:
        name = parse(await call.read()).get("name", "")
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", name):
            raise GCSError(400, "invalid", f"Invalid bucket name: '{name}'")
        if name in self._objects.buckets():
            raise GCSError(409, "conflict", "You already own this bucket.")
        self._objects.create_bucket(name)
        return json_reply(call, bucket_resource(name))

    async def _get_bucket(self, call: Call, request: Request) -> Reply:
        self._require_bucket(request.bucket)
        return json_reply(call, bucket_resource(request.bucket))

    async def _delete_bucket(self, _: Call, request: Request) -> Reply:
        if self._objects.keys_of(request.bucket):
            raise GCSError(409, "conflict", "The bucket you tried to delete is not empty.")
        self._objects.delete_bucket(request.bucket)
        return Reply(204)

    async def _list_objects(self, call: Call, request: Request) -> Reply:
        self._require_bucket(request.bucket)
        query = call.query
        page = list_page(
            self._objects.keys_of(request.bucket, query.get("prefix", "")),
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=query.get("startOffset", ""),
            stop=query.get("endOffset", ""),
            token=query.get("pageToken"),
            max_keys=_max_results(query.get("maxResults", str(LARGEST_PAGE))),
        )
        items = [
            object_resource(request.bucket, key, await self._objects.describe(request.bucket, key))
            for key in page.keys
        ]
        # Empty fields are left out, as everywhere in this API.
        answer = {"nextPageToken": page.token, "prefixes": list(page.prefixes), "items": items}
        shown = {name: value for name, value in answer.items() if value}
        return json_reply(call, {"kind": "storage#objects"} | shown)

    def _require_bucket(self, bucket: str) -> None:
        if bucket not in self._objects.buckets():
            raise _no_bucket()


def speaks_gcs(path: str) -> bool:
    """Return whether a request's path is one of Google's API; all others are S3's."""
    return _ROOT.fullmatch(path) is not None


def parse_request(call: Call) -> Request:
    """Return the operation, bucket and key that a call's method and path name."""
    root = _ROOT.fullmatch(call.path)
    rest = _REST.fullmatch(root["rest"]) if root else None
    if root is None or rest is None:
        return Request("Unknown")
    level = "object" if rest["key"] else "objects" if rest["objects"] else "bucket"
    level = level if rest["bucket"] else "buckets"
    name = _OPERATIONS.get((root["service"], call.method, level), "Unknown")
    if name == "objects.get" and (root["service"] or call.query.get("alt") == "media"):
        name = "objects.get media"
    if name == "objects.insert" and "upload_id" in call.query:
        name = "objects.insert part"
    return Request(name, rest["bucket"] or "", rest["key"] or "")


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


def _no_bucket() -> GCSError:
    return GCSError(404, "notFound", "The specified bucket does not exist.")


def _max_results(text: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text):
        raise GCSError(400, "invalid", "Invalid value for maxResults.")
    return int(text) or LARGEST_PAGE
