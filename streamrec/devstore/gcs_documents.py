"""Writers and parsers of Google Cloud Storage's documents. Pure: no I/O."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from streamrec.devstore.calls import Reply, timestamp
from streamrec.devstore.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.devstore.calls import Call
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


def selected(document: Mapping[str, Any], fields: str | None) -> dict[str, Any]:
    """Return the fields of a document that ``fields=a,b(c,d)`` selects, nested one level deep.

    Raises:
        Refusal: The selection is malformed.
    """
    if fields is None:
        return dict(document)
    if not re.fullmatch(rf"(?:{_FIELD.pattern})+", fields):
        raise Refusal(400, "invalid", f"Invalid field selection {fields}")
    wanted = {name: inner or None for name, inner in _FIELD.findall(fields)}
    return {name: _inside(document[name], wanted[name]) for name in wanted if name in document}


def _inside(value: Any, fields: str | None) -> Any:
    return [selected(item, fields) for item in value] if fields else value


def json_reply(call: Call, document: Mapping[str, Any]) -> Reply:
    """Return a reply with a document, or with those of its fields that the call selects."""
    shown = selected(document, call.query.get("fields"))
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
        content = rest[: rest.rindex(mark + b"--")]
    except ValueError:
        raise Refusal(400, "badContent", "Multipart body must have two parts.") from None
    newline = b"\r\n" if content.startswith(b"\r\n") else b"\n"
    data = content.partition(newline * 2)[2]
    return parse(about.partition(newline * 2)[2]), data.removesuffix(newline)


def error_reply(error: Refusal, *, download: bool) -> Reply:
    """Return an error's reply: a document, or for a download only the message."""
    if download:
        headers = {"Content-Type": "text/html; charset=UTF-8"}
        return Reply(error.status, headers | error.headers, error.message.encode())
    own = error.code[:1].islower()  # shared code raises S3's codes, which begin with a capital
    reason = error.code if own else _REASONS.get(error.status, "backendError")
    inner = {"message": error.message, "domain": "global", "reason": reason}
    document = {"code": error.status, "message": error.message, "errors": [inner]}
    return Reply(error.status, _JSON | error.headers, json.dumps({"error": document}).encode())
