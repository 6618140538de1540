"""Writers and parsers of Google Cloud Storage's JSON documents. Pure: no I/O."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from streamrec.devstore.errors import Refusal
from streamrec.devstore.messages import Reply
from streamrec.devstore.s3_documents import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.devstore.messages import Call
    from streamrec.devstore.objects import Stored

__all__ = [
    "bucket_resource",
    "error_reply",
    "hashes",
    "json_reply",
    "object_resource",
    "parse",
    "selected",
]

_MD5 = re.compile("[0-9a-f]{32}")
_FIELD = re.compile(r"(\w+)(?:\(([^()]*)\)|/(\w+))?(?:,|$)")
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


def bucket_resource(name: str) -> dict[str, Any]:
    """Return a bucket's resource, with the fields that clients read."""
    return {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        "timeCreated": timestamp(0),
        "metageneration": "1",
    }


def object_resource(bucket: str, key: str, stored: Stored) -> dict[str, Any]:
    """Return an object's resource; numbers are text, as Google writes 64-bit ones."""
    moment = timestamp(stored.modified)
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{key}/{stored.generation}",
        "name": key,
        "bucket": bucket,
        "generation": str(stored.generation),
        "metageneration": "1",
        "size": str(stored.size),
        "storageClass": "STANDARD",
        "contentType": stored.headers.get("Content-Type", "application/octet-stream"),
        "timeCreated": moment,
        "updated": moment,
        "etag": base64.b64encode(str(stored.generation).encode()).decode(),
        **{_HASH_FIELDS[name]: value for name, value in hashes(stored).items()},
        **_optional(stored.headers),
    }


_HASH_FIELDS = {"crc32c": "crc32c", "md5": "md5Hash"}


def hashes(stored: Stored) -> dict[str, str]:
    """Return the hashes in base64 by Google's names; an object uploaded in parts has no MD5."""
    found = {}
    if stored.crc32c is not None:
        found["crc32c"] = base64.b64encode(stored.crc32c.to_bytes(4, "big")).decode()
    if _MD5.fullmatch(stored.etag):
        found["md5"] = base64.b64encode(bytes.fromhex(stored.etag)).decode()
    return found


def _optional(headers: Mapping[str, str]) -> dict[str, str]:
    names = {"Content-Encoding": "contentEncoding", "Cache-Control": "cacheControl"}
    return {field: headers[name] for name, field in names.items() if name in headers}


def selected(document: Mapping[str, Any], fields: str | None) -> dict[str, Any]:
    """Return the fields of a document that ``fields=a,b(c,d),e/f`` selects, nested one level deep.

    Raises:
        Refusal: The selection is malformed.
    """
    if fields is None or fields == "*":
        return dict(document)
    if not re.fullmatch(rf"(?:{_FIELD.pattern})+", fields):
        raise Refusal(400, "invalid", f"Invalid field selection {fields}")
    shown = {}
    for name, inner, single in _FIELD.findall(fields):
        if name in document:
            shown[name] = _inside(document[name], inner or single or None)
    return shown


def _inside(value: Any, fields: str | None) -> Any:
    if isinstance(value, list):
        return [_inside(item, fields) for item in value]
    return selected(value, fields) if isinstance(value, dict) else value


def json_reply(call: Call, document: Mapping[str, Any]) -> Reply:
    """Return a reply with a document, or with those of its fields that the call selects."""
    shown = selected(document, call.query.get("fields"))
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    return Reply(headers=headers, body=json.dumps(shown).encode())


def parse(body: bytes) -> dict[str, Any]:
    """Parse a request's JSON document.

    Raises:
        Refusal: It is no JSON object.
    """
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Refusal(400, "parseError")
    return document


def error_reply(error: Refusal, *, download: bool) -> Reply:
    """Return an error's reply: a document, or for a download only the message."""
    if download:
        headers = {"Content-Type": "text/html; charset=UTF-8"}
        return Reply(error.status, headers | error.headers, error.message.encode())
    own = error.code[:1].islower()  # shared code raises S3's codes, which begin with a capital
    reason = error.code if own else _REASONS.get(error.status, "backendError")
    inner = {"message": error.message, "domain": "global", "reason": reason}
    document = {"code": error.status, "message": error.message, "errors": [inner]}
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    return Reply(error.status, headers | error.headers, json.dumps({"error": document}).encode())
