"""The decoding of uploaded bodies: ``aws-chunked`` framing and checksums. Pure: no I/O.

Source: AWS, "Signature Calculations for the Authorization Header: Transferring Payload in Multiple
Chunks" and "Checking object integrity".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from typing import TYPE_CHECKING

import crc32c

from streamrec.devstore.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["decode_body", "unchunk"]

_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,16}")
_CHECKSUMS: dict[str, Callable[[bytes], bytes]] = {
    "content-md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
    "x-amz-checksum-crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-crc32c": lambda data: crc32c.crc32c(data).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
}


def decode_body(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the content of a PUT, without framing, and compare its checksums.

    Args:
        body: The body as it was received.
        headers: The request's headers; case-insensitive.

    Raises:
        Refusal: The framing is broken or a checksum differs. Unknown checksums, such as S3's
            CRC64NVME, are ignored.
    """
    trailers: Mapping[str, str] = {}
    if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        body, trailers = unchunk(body)
        if headers.get("x-amz-decoded-content-length", str(len(body))) != str(len(body)):
            raise Refusal(400, "IncompleteBody", "The body is shorter or longer than declared.")
    for name, compute in _CHECKSUMS.items():
        expected = trailers.get(name) or headers.get(name)
        if expected is not None and not _agrees(expected, compute(body)):
            raise Refusal(400, "BadDigest")
    return body


def unchunk(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the content and the trailers (names in lower case) of an ``aws-chunked`` body.

    Raises:
        Refusal: The framing is broken.
    """
    pieces: list[memoryview] = []
    view, at = memoryview(body), 0
    while True:
        end = body.find(b"\r\n", at)
        size = _size(body[at:end]) if end >= 0 else -1
        if size < 0:
            raise _broken()
        at = end + 2
        if size == 0:
            return b"".join(pieces), _trailers(body[at:])
        pieces.append(view[at : at + size])
        at += size
        if body[at : at + 2] != b"\r\n":
            raise _broken()
        at += 2


def _size(line: bytes) -> int:
    """Return the size in ``SIZE[;chunk-signature=…]``, which is hexadecimal; -1 if malformed."""
    digits = _HEXADECIMAL.fullmatch(line.partition(b";")[0].strip())
    return int(digits[0], 16) if digits else -1


def _trailers(rest: bytes) -> dict[str, str]:
    lines = [line.partition(":") for line in rest.decode("latin-1").splitlines()]
    return {name.strip().lower(): value.strip() for name, colon, value in lines if colon}


def _agrees(expected: str, computed: bytes) -> bool:
    try:
        return base64.b64decode(expected, validate=True) == computed
    except binascii.Error:
        return False


def _broken() -> Refusal:
    return Refusal(400, "IncompleteBody", "The aws-chunked framing of the body is broken.")
