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
    STAGING,
    TRAILER,
    Frame,
    FrameReader,
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


def frame(metadata: bytes, payload: bytes = b"", padding: bytes | None = None) -> bytes:
    header = Header(Kind.BATCH, len(metadata), len(payload))
    padding = bytes(header.padding) if padding is None else padding
    return header.pack() + metadata + padding + payload + trailer(metadata, (memoryview(payload),))


def admit(header: Header) -> None:
    assert header.kind is Kind.BATCH


def read(reader: FrameReader, data: bytes, sizes: list[int]) -> list[Frame]:
    frames, view, turn = [], memoryview(data), 0
    while view:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(view), sizes[turn % len(sizes)])
        buffer[:count] = view[:count]
        reader.buffer_updated(count)
        frames += list(reader.frames())
        view, turn = view[count:], turn + 1
    return frames


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), max_size=6),
    st.lists(st.integers(1, 1000), min_size=1, max_size=5),
)
def test_any_frames_in_any_pieces(parts: list[tuple[bytes, bytes]], sizes: list[int]) -> None:
    reader = FrameReader(admit)
    frames = read(reader, b"".join(frame(*part) for part in parts), sizes)
    assert [(got.metadata, b"".join(got.payload)) for got in frames] == parts
    assert reader.inside is None


@pytest.mark.parametrize("size", [STAGING - 1, STAGING, STAGING + 1, 5 * STAGING])
@pytest.mark.parametrize("step", [1000, STAGING, 1 << 30])
def test_large_payloads(size: int, step: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    frames = read(FrameReader(admit), frame(b"m", payload[:size]) * 3, [step])
    assert [bytes(got.payload[0]) for got in frames] == [payload[:size]] * 3


@pytest.mark.parametrize("size", [STAGING, 3 * STAGING])
def test_large_metadata(size: int) -> None:
    frames = read(FrameReader(admit), frame(b"m" * size) + frame(b"n" * size, b"p"), [1 << 30])
    assert [len(got.metadata) for got in frames] == [size, size]


def test_what_is_missing_of_a_frame_is_asked_for_exactly() -> None:
    reader = FrameReader(admit)
    data = frame(b"m", bytes(STAGING * 2))
    assert not reader.exact
    read(reader, data[:STAGING], [STAGING])
    assert reader.exact
    assert reader.inside == f"a BATCH of {len(data)} bytes"
    assert len(reader.get_buffer()) == len(data) - STAGING


def test_inside_a_header() -> None:
    reader = FrameReader(admit)
    read(reader, frame(b"")[:10], [10])
    assert reader.inside == "a header"


def test_every_payload_has_its_own_writable_memory() -> None:
    first, second = read(FrameReader(admit), frame(b"", b"abc") * 2, [1 << 30])
    first.payload[0][:] = b"xyz"
    assert bytes(second.payload[0]) == b"abc"


def test_padding_is_zero() -> None:
    with pytest.raises(RemoteProtocolError, match="padding of BATCH"):
        read(FrameReader(admit), frame(b"", b"abc", bytes(39) + b"\x01"), [1 << 30])


def test_nothing_is_allocated_for_what_is_not_admitted() -> None:
    def refuse(header: Header) -> None:
        raise RemoteProtocolError("no")

    reader = FrameReader(refuse)
    header = Header(Kind.BATCH, 16 << 20, 1 << 60).pack()
    with pytest.raises(RemoteProtocolError, match="no"):
        read(reader, header, [100])
    assert not reader.exact


def test_no_memory_is_an_error_of_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="lower batch_size"):
        read(FrameReader(admit), Header(Kind.BATCH, 0, 1 << 60).pack(), [100])
