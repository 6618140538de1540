"""Writers and parsers of S3's XML documents. Pure: no I/O."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from streamrec.devstore.errors import S3Error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from xml.etree.ElementTree import Element

    from streamrec.devstore.errors import Refusal

__all__ = ["Children", "document", "error_document", "parse_delete", "parse_parts", "timestamp"]

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

_MARKUP = re.compile("[&<>]")

Children: TypeAlias = "Iterable[tuple[str, str | int | Children]]"


def document(root: str, children: Children) -> bytes:
    """Return an XML document of S3, with elements nested as the pairs are."""
    body = "".join(_elements(children))
    return _encode(f'<{root} xmlns="{NAMESPACE}">{body}</{root}>')


def error_document(error: Refusal, resource: str, request_id: str) -> bytes:
    """Return the body of an error response, which has no namespace."""
    facts = (
        ("Code", error.code),
        ("Message", error.message),
        ("Resource", resource),
        ("RequestId", request_id),
    )
    return _encode(f"<Error>{''.join(_elements(facts))}</Error>")


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
            raise S3Error(400, "MalformedXML")
        parts.append((int(number), etag.strip('"')))
    return parts


def _encode(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _elements(children: Children) -> Iterator[str]:
    for name, value in children:
        inner = _text_of(value) if isinstance(value, str | int) else "".join(_elements(value))
        yield f"<{name}>{inner}</{name}>"


def _text_of(value: str | int) -> str:
    return escape(text) if _MARKUP.search(text := str(value)) else text


def _parse(body: bytes) -> Element:
    try:
        return ET.fromstring(body)  # noqa: S314 - capped, loopback only, and expat limits entities
    except ET.ParseError:
        raise S3Error(400, "MalformedXML") from None


def _children(node: Element, name: str) -> list[Element]:
    """Return the children of a local name."""
    # Clients may send the namespace or leave it out.
    return [child for child in node if child.tag.rpartition("}")[2] == name]


def _text(node: Element) -> str:
    return node.text or ""
