from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import RemoteProtocolError
from streamrec.kernel import crc32c
from streamrec.wire.frame import (
    ALIGNMENT,
    HEADER,
    METADATA_CAP,
    TRAILER,
    Header,
    allocate_aligned,
    check_sizes,
    check_trailer,
    frame_size,
    trailer,
)
from streamrec.wire.messages import Kind

pytestmark = pytest.mark.both_kernels

HEADERS = st.builds(
    Header, st.sampled_from(Kind), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
)


def raw(magic: bytes = b"SREC", version: int = 1, kind: int = 5, flags: int = 0) -> bytes:
    fields = struct.pack("<4sBBHIQ", magic, version, kind, flags, 3, 4)
    return fields + struct.pack("<I", crc32c(fields))


@given(HEADERS)
def test_headers_round_trip(header: Header) -> None:
    packed = header.pack()
    assert len(packed) == HEADER
    assert Header.unpack(packed) == header


def test_a_header_byte_by_byte() -> None:
    packed = Header(Kind.BATCH, 0x0102, 0x03040506).pack()
    assert packed[:20] == b"SREC\x01\x05\x00\x00\x02\x01\x00\x00\x06\x05\x04\x03\x00\x00\x00\x00"


@given(HEADERS)
def test_payloads_begin_at_a_multiple_of_64(header: Header) -> None:
    begin = HEADER + header.metadata_size + header.padding
    assert 0 <= header.padding < ALIGNMENT
    if header.payload_size:
        assert begin % ALIGNMENT == 0
    assert header.size == begin + header.payload_size + TRAILER


@given(HEADERS, st.integers(0, HEADER * 8 - 1))
def test_every_flipped_bit_is_noticed(header: Header, bit: int) -> None:
    data = bytearray(header.pack())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RemoteProtocolError):
        Header.unpack(bytes(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (raw(magic=b"HTTP"), "is this the address of a streamrec feeder"),
        (raw(magic=b"\x16\x03\x01\x02"), "the other end speaks TLS and this one does not"),
        (raw(magic=b"\x15\x03\x03\x00"), "write tls:// for a TLS address"),
        (raw(version=2), "version 2"),
        (raw(flags=1), "flags 0x1"),
        (raw(kind=0), "no frame type 0"),
        (raw(kind=14), "no frame type 14"),
    ],
)
def test_foreign_headers_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        Header.unpack(data)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (Header(Kind.HELLO, (64 << 10) + 1, 0), "65536 are allowed"),
        (Header(Kind.CREDIT, 65, 0), "64 are allowed"),
        (Header(Kind.BATCH, METADATA_CAP + 1, 0), "bytes of metadata"),
        (Header(Kind.BATCH, 0, 1001), "1000 are allowed"),
        (Header(Kind.WELCOME, 0, 1), "0 are allowed"),
    ],
)
def test_caps(header: Header, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.wire.frame.PAYLOAD_CAP", 1000)
    with pytest.raises(RemoteProtocolError, match=words):
        check_sizes(header)


@pytest.mark.parametrize("header", [Header(Kind.BATCH, METADATA_CAP, 1000), Header(Kind.END, 9, 0)])
def test_sizes_within_the_caps(header: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.wire.frame.PAYLOAD_CAP", 1000)
    check_sizes(header)


@given(st.binary(), st.lists(st.binary()))
def test_the_checksum_is_that_of_all_joined(metadata: bytes, parts: list[bytes]) -> None:
    payload = tuple(memoryview(part) for part in parts)
    assert trailer(metadata, payload) == struct.pack("<I", crc32c(metadata + b"".join(parts)))


def test_a_wrong_checksum_names_both() -> None:
    with pytest.raises(
        RemoteProtocolError, match=r"the CRC of END is 0x[0-9a-f]{8}, .* 0x00000000"
    ):
        check_trailer(Kind.END, memoryview(bytes(4)), memoryview(b"abc"), ())


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1 << 20])
def test_memory_is_aligned(size: int) -> None:
    import numpy as np

    view = allocate_aligned(size)
    assert len(view) == size
    assert not view.readonly
    if size:
        assert np.frombuffer(view, np.uint8).ctypes.data % ALIGNMENT == 0


def test_frame_size() -> None:
    assert frame_size(0, 0) == HEADER + TRAILER
    assert frame_size(1, 10) == 64 + 10 + TRAILER
