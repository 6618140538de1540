from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.aws_chunked import content_encoding, decoded
from streamrec.devstore.errors import Refusal

UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def body_of(pieces: list[bytes], checksum: bytes | None = None) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    trailer = b"" if checksum is None else b"x-amz-checksum-crc32:%s\r\n" % checksum
    return chunks + b"0\r\n" + trailer + b"\r\n"


def headers(length: object) -> dict[str, str]:
    return {"x-amz-content-sha256": UNSIGNED, "x-amz-decoded-content-length": str(length)}


def crc32_of(content: bytes) -> bytes:
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big"))


@given(pieces=st.lists(st.binary(max_size=40)), has_checksum=st.booleans())
def test_chunks_are_joined(pieces: list[bytes], *, has_checksum: bool) -> None:
    content = b"".join(pieces)
    body = body_of(pieces, crc32_of(content) if has_checksum else None)
    assert decoded(body, headers(len(content))) == content


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), min_size=1), data=st.data())
def test_a_body_that_is_cut_off_is_refused(pieces: list[bytes], data: st.DataObject) -> None:
    body = body_of(pieces)
    cut = data.draw(st.integers(0, len(body) - len("0\r\n\r\n")))
    with pytest.raises(Refusal) as caught:
        decoded(body[:cut], headers(sum(map(len, pieces))))
    assert caught.value.code == "IncompleteBody"


@given(body=st.binary(max_size=60))
def test_any_other_body_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal):
        decoded(body, headers("none"))


def test_another_length_or_checksum() -> None:
    with pytest.raises(Refusal, match="another length"):
        decoded(body_of([b"data"]), headers(5))
    with pytest.raises(Refusal, match="CRC32"):
        decoded(body_of([b"data"], crc32_of(b"Data")), headers(4))


def test_chunks_are_no_encoding_of_the_object() -> None:
    assert content_encoding("aws-chunked") == ""
    assert content_encoding("aws-chunked, gzip") == "gzip"
    assert content_encoding("gzip,aws-chunked") == "gzip"
