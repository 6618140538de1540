"""Bodies that clients send in chunks over TLS, with a checksum behind them. Pure: no I/O.

Source: AWS, "Amazon S3 API Reference", "Signature calculations for trailing headers"; the chunks
here have no signatures of their own, since TLS protects them.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import TYPE_CHECKING

from streamrec.devstore.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

LENGTH = "x-amz-decoded-content-length"
"""The header that names the bytes of the content; a body without it is not in chunks."""
UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
CRC32 = "x-amz-checksum-crc32"
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})\r\n")
_END = b"\r\n"


def content_encoding(header: str) -> str:
    """Return a Content-Encoding without the chunks, which are not kept."""
    return ",".join(one for one in map(str.strip, header.split(",")) if one != "aws-chunked")


def decoded(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the content of a body in chunks.

    Raises:
        Refusal: The chunks are signed, malformed, of another length, or the checksum differs.
    """
    if headers.get("x-amz-content-sha256") != UNSIGNED:
        raise Refusal(501, "NotImplemented", "This store reads no aws-chunked body that is signed.")
    chunks, place = [], 0
    while found := _chunk_at(body, place):
        chunks.append(body[found.start : found.stop])
        place = found.stop + len(_END)
    content = b"".join(chunks)
    if headers[LENGTH] != str(len(content)):
        raise Refusal(400, "IncompleteBody", "The body has another length than its headers say.")
    _check(content, body[found.start :])
    return content


def _chunk_at(body: bytes, place: int) -> range:
    """Return the bytes of the chunk at a place, of which the last one has none."""
    size = _SIZE.match(body, place)
    if size is None:
        raise Refusal(400, "IncompleteBody", "A chunk of the body has no size.")
    chunk = range(size.end(), size.end() + int(size[1], 16))
    if chunk and body[chunk.stop : chunk.stop + len(_END)] != _END:
        raise Refusal(400, "IncompleteBody", "A chunk of the body is cut off.")
    return chunk


def _check(content: bytes, trailers: bytes) -> None:
    """Compare the CRC32 that stands behind the content, if one does."""
    for line in trailers.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        expected = base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
        if name.lower() == CRC32 and value.strip() != expected:
            raise Refusal(400, "BadDigest", "The CRC32 that was sent is not that of the content.")
