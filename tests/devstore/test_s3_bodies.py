from __future__ import annotations

import base64
import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from streamrec.devstore.errors import Refusal
from streamrec.devstore.s3_bodies import decode_body, unchunk

CHUNKED = {"x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}


def chunked(pieces: list[bytes], trailers: str = "", extension: str = "") -> bytes:
    """Return a body in chunks as clients frame it."""
    frames = [f"{len(piece):x}{extension}\r\n".encode() + piece + b"\r\n" for piece in pieces]
    return b"".join(frames) + f"0{extension}\r\n{trailers}\r\n".encode()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@given(st.lists(st.binary(min_size=1, max_size=40)))
def test_chunks_are_joined(pieces: list[bytes]) -> None:
    assert unchunk(chunked(pieces)) == (b"".join(pieces), {})
    signed = chunked(pieces, extension=";chunk-signature=" + "0" * 64)
    assert unchunk(signed)[0] == b"".join(pieces)


@given(st.lists(st.binary(min_size=1, max_size=10), min_size=1), st.data())
def test_a_body_that_ends_early_is_refused(pieces: list[bytes], data: st.DataObject) -> None:
    body = chunked(pieces)
    cut = data.draw(st.integers(0, len(body) - 5))
    with pytest.raises(Refusal, match="IncompleteBody"):
        unchunk(body[:cut])


@pytest.mark.parametrize("body", [b"", b"x\r\n", b"-1\r\n", b"0x2\r\nab\r\n0\r\n", b"2\r\nabc\r\n"])
def test_broken_framing_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal, match="IncompleteBody"):
        unchunk(body)


def test_trailers() -> None:
    body = chunked([b"ab"], trailers="X-Amz-Checksum-CRC32: abc=\r\n")
    assert unchunk(body)[1] == {"x-amz-checksum-crc32": "abc="}


def test_a_plain_body_stays() -> None:
    assert decode_body(b"2\r\nab\r\n", CIMultiDict()) == b"2\r\nab\r\n"


def test_a_trailing_checksum_is_compared() -> None:
    right = f"x-amz-checksum-crc32:{encoded(zlib.crc32(b'data').to_bytes(4, 'big'))}\r\n"
    assert decode_body(chunked([b"da", b"ta"], right), CIMultiDict(CHUNKED)) == b"data"
    with pytest.raises(Refusal, match="BadDigest"):
        decode_body(chunked([b"dada"], right), CIMultiDict(CHUNKED))


def test_the_declared_length_is_compared() -> None:
    headers = CIMultiDict(CHUNKED | {"X-Amz-Decoded-Content-Length": "3"})
    assert decode_body(chunked([b"abc"]), headers) == b"abc"
    with pytest.raises(Refusal, match="IncompleteBody"):
        decode_body(chunked([b"ab"]), headers)


CHECKSUMS = {
    "Content-MD5": hashlib.md5(b"123456789", usedforsecurity=False).digest(),
    "x-amz-checksum-crc32": bytes.fromhex("cbf43926"),
    "x-amz-checksum-crc32c": bytes.fromhex("e3069283"),
    "x-amz-checksum-sha1": hashlib.sha1(b"123456789", usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": hashlib.sha256(b"123456789").digest(),
}


@pytest.mark.parametrize("name", CHECKSUMS)
def test_checksums_in_the_head_are_compared(name: str) -> None:
    headers = CIMultiDict({name: encoded(CHECKSUMS[name])})
    assert decode_body(b"123456789", headers) == b"123456789"
    with pytest.raises(Refusal, match="BadDigest"):
        decode_body(b"123456780", headers)


def test_a_checksum_that_is_not_base64_is_refused() -> None:
    with pytest.raises(Refusal, match="BadDigest"):
        decode_body(b"", CIMultiDict({"Content-MD5": "!"}))


def test_unknown_kinds_of_checksums_are_not_looked_at() -> None:
    assert decode_body(b"x", CIMultiDict({"x-amz-checksum-crc64nvme": "AAAA"})) == b"x"
