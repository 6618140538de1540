"""Google Cloud Storage's API: listings, reads, copies, and writes in one piece and in parts.

An overwritten object is lost: there is no versioning. Source: Google, "Cloud Storage JSON API v1".
Other operations are answered with 501 notImplemented.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from streamrec.devstore.api import (
    API,
    LARGEST_PAGE,
    Call,
    PendingUpload,
    Reply,
    page_limit,
    timestamp,
)
from streamrec.devstore.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.devstore.objects import StoredObject


_JSON = {"Content-Type": "application/json; charset=UTF-8"}
_FIELD = re.compile(r"(\w+)(?:\(([\w,]*)\))?(?:,|$)")
_REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    412: "conditionNotMet",
    416: "requestedRangeNotSatisfiable",
    429: "rateLimitExceeded",
    501: "notImplemented",
}


def object_resource(bucket: str, key: str, stored: StoredObject) -> dict[str, Any]:
    """Return an object's resource; numbers are text, as Google writes 64-bit ones.

    What S3's API wrote in parts has no MD5, like Google's composite objects.
    """
    encoding = stored.headers.get("Content-Encoding")
    md5 = None if "-" in stored.etag else base64.b64encode(bytes.fromhex(stored.etag)).decode()
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{key}/{stored.generation}",
        "name": key,
        "bucket": bucket,
        "generation": str(stored.generation),
        "size": str(stored.size),
        "updated": timestamp(stored.modified),
        **({"md5Hash": md5} if md5 else {}),
        **({"contentEncoding": encoding} if encoding else {}),
    }


def select(document: Mapping[str, Any], fields: str | None) -> dict[str, Any]:
    """Return the fields of a document that ``fields=a,b(c,d)`` selects, nested one level deep.

    Raises:
        Refusal: The selection is malformed.
    """
    if fields is None:
        return dict(document)
    if not re.fullmatch(rf"(?:{_FIELD.pattern})+", fields):
        raise Refusal(400, "invalid", f"Invalid field selection {fields}")
    selected = {name: inner or None for name, inner in _FIELD.findall(fields)}
    return {name: _inside(document[name], selected[name]) for name in selected if name in document}


def _inside(value: Any, fields: str | None) -> Any:
    return [select(item, fields) for item in value] if fields else value


def json_reply(call: Call, document: Mapping[str, Any]) -> Reply:
    """Return a reply with a document, or with those of its fields that the call selects."""
    shown = select(document, call.query.get("fields"))
    return Reply(headers=dict(_JSON), body=json.dumps(shown).encode())


def parse(body: bytes) -> dict[str, Any]:
    """Parse a request's JSON document.

    Raises:
        Refusal: The body is not a JSON object.
    """
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Refusal(400, "parseError")
    return document


def parse_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Parse a ``multipart/related`` upload; return the object's metadata and its content.

    Raises:
        Refusal: The body does not consist of two parts.
    """
    boundary = re.search('boundary="?([^";]+)', content_type)
    mark = b"--" + (boundary[1] if boundary else "").encode()
    try:
        _, about, rest = body.split(mark, 2)
        # The last mark, since the content may hold the same bytes.
        content = rest[: rest.rindex(mark + b"--")]
    except ValueError:
        raise Refusal(400, "badContent", "Multipart body must have two parts.") from None
    # gcsfs ends lines with a line feed alone.
    newline = b"\r\n" if content.startswith(b"\r\n") else b"\n"
    data = content.partition(newline * 2)[2]
    return parse(about.partition(newline * 2)[2]), data.removesuffix(newline)


def error_reply(error: Refusal, *, download: bool) -> Reply:
    """Return an error's reply: a document, or for a download only the message."""
    if download:
        headers = {"Content-Type": "text/html; charset=UTF-8"}
        return Reply(error.status, headers | error.headers, error.message.encode())
    is_gcs = error.code[:1].islower()  # shared code raises S3's codes, which begin with a capital
    reason = error.code if is_gcs else _REASONS.get(error.status, "backendError")
    inner = {"message": error.message, "domain": "global", "reason": reason}
    document = {"code": error.status, "message": error.message, "errors": [inner]}
    return Reply(error.status, _JSON | error.headers, json.dumps({"error": document}).encode())


_ROOT = re.compile(r"/(?:(?P<service>download|upload)/)?storage/v1/b(?P<rest>/.*|$)", re.DOTALL)
_REST = re.compile(r"(?:/(?P<bucket>[^/]+)(?P<objects>/o(?:/(?P<key>.+))?)?)?", re.DOTALL)
_REWRITE = "/rewriteTo/b/"
"""The text between the names of an object that is copied, and of its copy."""
_PART = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class GCS(API):
    """The API over a backend."""

    identity_header = "x-guploader-uploadid"
    no_such_object = "No such object: {0.bucket}/{0.key}"

    def error_reply(self, error: Refusal, call: Call, _: str) -> Reply:
        """Return the reply of a refused call."""
        return error_reply(error, download=call.operation == "objects.get media")

    async def _buckets_insert(self, call: Call) -> Reply:
        name = parse(await call.read()).get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]+", name):
            raise Refusal(400, "invalid", f"Invalid bucket name: {name!r}")
        self._objects.create_bucket(name)
        return json_reply(call, {"kind": "storage#bucket", "id": name, "name": name})

    async def _objects_list(self, call: Call) -> Reply:
        page, stored = await self._list(
            call,
            start=call.query.get("startOffset", ""),
            token=call.query.get("pageToken"),
            # 0 stands for the default here, and for none in S3.
            max_keys=page_limit(call.query, "maxResults") or LARGEST_PAGE,
        )
        items = [object_resource(call.bucket, key, facts) for key, facts in stored]
        # Empty fields are left out, as everywhere in this API.
        answer = {"nextPageToken": page.token, "prefixes": list(page.prefixes), "items": items}
        shown = {name: value for name, value in answer.items() if value}
        return json_reply(call, {"kind": "storage#objects"} | shown)

    async def _objects_get_media(self, call: Call) -> Reply:
        stored = await self._objects.describe(call.bucket, call.key)
        generation = call.effects.etag or str(stored.generation)
        if not call.effects.ignore_preconditions:
            if call.query.get("generation", generation) != generation:
                # A generation that is not there is an object that is not there: 404, and not 412.
                raise KeyError(call.key)
            if call.query.get("ifGenerationMatch", generation) != generation:
                raise Refusal(412, "conditionNotMet")
        headers = _head(stored, generation)
        takes_gzip = "gzip" in call.headers.get("Accept-Encoding", "")
        if stored.headers.get("Content-Encoding") == "gzip" and not takes_gzip:
            return self._unpack(call, headers)
        return self._content(call, stored, headers)

    async def _objects_get(self, call: Call) -> Reply:
        stored = await self._objects.describe(call.bucket, call.key)
        return json_reply(call, object_resource(call.bucket, call.key, stored))

    async def _objects_rewrite(self, call: Call) -> Reply:
        await call.read()
        source, _, target = call.key.partition(_REWRITE)
        bucket, _, key = target.partition("/o/")
        before = await self._objects.describe(call.bucket, source)
        data = self._objects[f"{call.bucket}/{source}"]
        resource = object_resource(
            bucket, key, self._objects.write(bucket, key, data, before.headers)
        )
        answer = {"kind": "storage#rewriteResponse", "done": True, "resource": resource}
        return json_reply(call, answer)

    async def _objects_delete(self, call: Call) -> Reply:
        del self._objects[f"{call.bucket}/{call.key}"]
        return Reply(204)

    def _unpack(self, call: Call, headers: dict[str, str]) -> Reply:
        """Return the decompressed object ("decompressive transcoding"), which ignores any range."""
        try:
            data = gzip.decompress(self._objects[f"{call.bucket}/{call.key}"])
        except (OSError, EOFError, zlib.error):
            raise Refusal(503, "backendError", "The object is not gzip.") from None
        del headers["Content-Encoding"]
        return Reply(200, headers, data)

    async def _objects_insert(self, call: Call) -> Reply:
        """Write an object that one request holds, or begin an upload in parts."""
        body, kind = await call.read(), call.query.get("uploadType")
        self._require_bucket(call)
        # A precondition that is not checked must not be ignored: the client relies on it.
        if kind not in ("multipart", "resumable") or "ifGenerationMatch" in call.query:
            raise Refusal(501, "notImplemented", "This store does not know such an upload.")
        if kind == "multipart":
            about, data = parse_multipart(call.headers.get("Content-Type", ""), body)
        else:
            about, data = parse(body), b""
        key = call.query.get("name") or about.get("name")
        if not isinstance(key, str) or not key:
            raise Refusal(400, "required", "Required parameter: name")
        encoding = about.get("contentEncoding")
        upload = PendingUpload(call.bucket, key, {"Content-Encoding": encoding} if encoding else {})
        # One request or many: both are an upload, which is finished in one way.
        identity = self._begin(upload)
        if kind == "multipart":
            upload.parts[0] = data
            return self._write(call, identity)
        place = f"http://{call.headers.get('Host', '')}{call.path}"
        return Reply(headers={"Location": f"{place}?uploadType=resumable&upload_id={identity}"})

    async def _objects_insert_part(self, call: Call) -> Reply:
        identity = call.query["upload_id"]
        upload = self._upload(identity)
        if call.method == "DELETE":
            self._uploads.pop(identity)
            return Reply(499)  # Google's status for "cancelled by the client"
        received, data = sum(map(len, upload.parts.values())), await call.read()
        match = _PART.fullmatch(call.headers.get("Content-Range", ""))
        # "bytes */N" asks how much was received, or says the size of what is complete.
        if match is None or match[1] not in (None, str(received)):
            raise Refusal(400, "invalid", "The part does not follow on what was received.")
        upload.parts[received] = data
        received += len(data)
        if match[2] != str(received):
            return Reply(308, {"Range": f"bytes=0-{received - 1}"} if received else {})
        return self._write(call, identity)

    def _write(self, call: Call, identity: str) -> Reply:
        upload = self._upload(identity)
        return json_reply(call, object_resource(call.bucket, upload.key, self._finish(identity)))


def _head(stored: StoredObject, generation: str) -> dict[str, str]:
    return {
        "Content-Type": "application/octet-stream",
        **stored.headers,
        "Last-Modified": formatdate(stored.modified, usegmt=True),
        "ETag": f'"{generation}"',
        "x-goog-generation": generation,
        "x-goog-stored-content-encoding": stored.headers.get("Content-Encoding", "identity"),
        "Accept-Ranges": "bytes",
    }


def speaks_gcs(path: str) -> bool:
    """Return whether a request's path is one of Google's API; all others are S3's."""
    return _ROOT.fullmatch(path) is not None


def operation_of(method: str, path: str, query: Mapping[str, str]) -> tuple[str, str, str]:
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
    (None, "POST", "buckets"): "buckets.insert",
    (None, "GET", "objects"): "objects.list",
    (None, "GET", "object"): "objects.get",
    (None, "DELETE", "object"): "objects.delete",
    (None, "POST", "object"): "objects.rewrite",
    ("download", "GET", "object"): "objects.get",
    ("upload", "POST", "objects"): "objects.insert",
    ("upload", "PUT", "objects"): "objects.insert",
    ("upload", "DELETE", "objects"): "objects.insert",
}
