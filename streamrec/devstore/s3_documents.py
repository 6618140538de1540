"""Writers and parsers of S3's XML documents. Pure: no I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from streamrec.devstore.errors import Refusal
from streamrec.devstore.messages import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable
    from xml.etree.ElementTree import Element

__all__ = [
    "Content",
    "document",
    "error_document",
    "parse_delete",
    "parse_parts",
    "timestamp",
    "xml_reply",
]

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

Content: TypeAlias = "str | int | Iterable[tuple[str, Content]]"
"""The text of an element, or the elements in it."""


def document(root: str, content: Content) -> bytes:
    """Return an XML document of S3, with elements nested as the pairs are."""
    return _encode(f'<{root} xmlns="{NAMESPACE}">{_inner(content)}</{root}>')


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
    """Return a reply with a document."""
    return Reply(headers={"Content-Type": "application/xml"}, body=document(root, content))


@lru_cache
def timestamp(seconds: float) -> str:
    """Return a time in ISO 8601 with milliseconds, as in LastModified."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


def parse_delete(body: bytes) -> tuple[list[str], bool]:
    """Return the keys of a DeleteObjects request, and whether it wants failures only."""
    root = _parse(body)
    quiet = any(_text(node) == "true" for node in _children(root, "Quiet"))
    keys = [_text(key) for node in _children(root, "Object") for key in _children(node, "Key")]
    return keys, quiet


def parse_parts(body: bytes) -> list[tuple[int, str]]:
    """Return number and ETag (without quotes) of each part of a CompleteMultipartUpload request."""
    parts = []
    for node in _children(_parse(body), "Part"):
        number = "".join(_text(child) for child in _children(node, "PartNumber"))
        etag = "".join(_text(child) for child in _children(node, "ETag"))
        if not number.isascii() or not number.isdigit():
            raise Refusal(400, "MalformedXML")
        parts.append((int(number), etag.strip('"')))
    return parts


def _encode(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _inner(content: Content) -> str:
    if isinstance(content, str | int):
        return escape(str(content))
    return "".join(f"<{name}>{_inner(value)}</{name}>" for name, value in content)


def _parse(body: bytes) -> Element:
    try:
        return ET.fromstring(body)  # noqa: S314 - capped, loopback only, and expat limits entities
    except ET.ParseError:
        raise Refusal(400, "MalformedXML") from None


def _children(node: Element, name: str) -> list[Element]:
    """Return the children of a local name."""
    # Clients may send the namespace or leave it out.
    return [child for child in node if child.tag.rpartition("}")[2] == name]


def _text(node: Element) -> str:
    return node.text or ""
