from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import RemoteProtocolError
from streamrec.wire.frame import Header, trailer
from streamrec.wire.messages import Kind
from streamrec.wire.reader import STAGING, Frame, FrameReader


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
