"""Google Cloud Storage's multipart and resumable uploads. Pure: no I/O.

Source: Google, "Cloud Storage JSON API: multipart uploads" and "resumable uploads".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.message import Message
from typing import TYPE_CHECKING, Any

from streamrec.devstore.errors import Refusal
from streamrec.devstore.gcs_documents import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Session", "parse_multipart"]

QUANTUM = 256 << 10
"""Bytes of which each part of a resumable upload but the last is a multiple."""
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)")


def parse_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], str, bytes]:
    """Parse a ``multipart/related`` upload.

    Returns:
        The object's metadata, its content type, and its content.

    Raises:
        Refusal: The body does not consist of two parts.
    """
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/related" or not isinstance(boundary, str):
        raise Refusal(400, "badContent", "Missing multipart boundary.")
    mark = b"--" + boundary.encode()
    first = body.find(mark)
    second = body.find(b"\n" + mark, first + 1)
    last = body.rfind(b"\n" + mark + b"--")
    if not -1 < first < second < last:
        raise Refusal(400, "badContent", "Multipart body must have two parts.")
    _, about = _split(body[first + len(mark) : second])
    kind, data = _split(body[second + 1 + len(mark) : last])
    return parse(about), kind or "application/octet-stream", data.removesuffix(b"\r")


def _split(part: bytes) -> tuple[str, bytes]:
    """Return the content type of a part, and the content after its headers."""
    found = re.match(rb"[ \t]*\r?\n((?:[^\r\n]+\r?\n)*)\r?\n", part)
    if not found:
        raise Refusal(400, "badContent", "Multipart headers cannot be read.")
    kind = re.search(rb"(?im)^content-type:[ \t]*([^\r\n]+)", found[1])
    return (kind[1].decode("latin-1").strip() if kind else ""), part[found.end() :]


@dataclass(slots=True)
class Session:
    """One object that is being uploaded in parts, and is not visible before the last one."""

    bucket: str
    key: str
    headers: Mapping[str, str]
    data: bytearray = field(default_factory=bytearray)

    def add(self, content_range: str | None, data: bytes) -> bool:
        """Append a part; return whether the object is complete.

        Args:
            content_range: ``bytes 0-99/100``; ``bytes 0-99/*``; ``bytes */100``, which asks for the
                state; or None if the part is the whole object.
            data: The part.

        Raises:
            Refusal: The part does not continue the received data.
        """
        if content_range is None:
            self.data += data
            return True
        found = _RANGE.fullmatch(content_range)
        if not found:
            raise Refusal(400, "invalid", f"Failed to parse Content-Range header: {content_range}")
        first, last, total = found.groups()
        if first is not None:
            self._append(int(first), int(last) + 1, data, total)
        return total != "*" and len(self.data) == int(total)

    def _append(self, start: int, stop: int, data: bytes, total: str) -> None:
        final = total != "*" and stop == int(total)
        if start != len(self.data) or stop - start != len(data):
            raise Refusal(400, "invalid", "The part does not follow on what was received.")
        if not final and len(data) % QUANTUM:
            raise Refusal(400, "invalid", "Parts but the last are multiples of 262144 bytes.")
        self.data += data
