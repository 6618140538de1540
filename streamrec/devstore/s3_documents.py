"""Writers of S3's XML documents. Pure: no I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias
from xml.sax.saxutils import escape

from streamrec.devstore.calls import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrec.devstore.errors import Refusal

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

Content: TypeAlias = "str | int | Iterable[tuple[str, Content]]"
"""The text of an element, or the elements in it."""


def error_document(error: Refusal, resource: str, request_id: str) -> bytes:
    """Return the body of an error response, which has no namespace."""
    facts = (
        ("Code", error.code),
        ("Message", error.message),
        ("Resource", resource),
        ("RequestId", request_id),
    )
    return _encode(f"<Error>{_inner(facts)}</Error>")


def xml_reply(root: str, content: Content) -> Reply:
    """Return a reply with a document, whose elements are nested as the pairs are."""
    body = _encode(f'<{root} xmlns="{NAMESPACE}">{_inner(content)}</{root}>')
    return Reply(headers={"Content-Type": "application/xml"}, body=body)


@lru_cache
def timestamp(seconds: float) -> str:
    """Return a time in ISO 8601 with milliseconds, as in LastModified."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


def _encode(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _inner(content: Content) -> str:
    if isinstance(content, str | int):
        return escape(str(content))
    return "".join(f"<{name}>{_inner(value)}</{name}>" for name, value in content)
