"""Frames: the form of one message in the byte stream.

::

    offset  size
     0       4   magic, "SREC"
     4       1   version of the framing, 1
     5       1   type (messages.Kind)
     6       2   flags, 0
     8       4   M: bytes of metadata
    12       8   P: bytes of payload
    20       4   CRC32C of the 20 bytes above
    24       M   metadata
    24+M     …   zeros up to the next multiple of 64, only where P > 0
     …       P   payload
     …       4   CRC32C of the metadata and the payload

All numbers are little-endian. The header's own checksum protects the lengths against accidents; the
caps on the sizes protect the receiver against malice.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import CorruptFrame, RemoteProtocolError
from streamrec.kernel import crc32c
from streamrec.wire.messages import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAGIC = b"SREC"
_TLS = (b"\x15", b"\x16")
"""The first byte of an alert, and of a handshake; the second one is 3."""
VERSION = 1
ALIGNMENT = 64
"""Bytes: a cache line, which is also the alignment of the widest vector instructions."""
PAYLOAD_CAP = 4 << 30
"""Bytes of the largest payload that is received."""
METADATA_CAP = 16 << 20
"""Bytes of the largest metadata, of the kinds that ``_CAPS`` does not name."""

_FIELDS = struct.Struct("<4sBBHIQ")
_CRC = struct.Struct("<I")
HEADER = _FIELDS.size + _CRC.size
TRAILER = _CRC.size

_CAPS = {
    # HELLO comes from a stranger that has not shown its token; the others are never large.
    Kind.HELLO: 64 << 10,
    # A position of 65,536 lanes; reading JSON takes many times its bytes.
    Kind.SUBSCRIBE: 4 << 20,
    Kind.CREDIT: 64,
    Kind.PING: 64,
    Kind.PONG: 64,
    Kind.STATISTICS: 64 << 10,
    Kind.RELEASE: 64 << 10,
}


class Header(NamedTuple):
    """The fixed part at the beginning of every frame."""

    kind: Kind
    metadata_size: int
    payload_size: int

    @property
    def padding(self) -> int:
        """Zero bytes between metadata and payload."""
        return -(HEADER + self.metadata_size) % ALIGNMENT if self.payload_size else 0

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return HEADER + self.metadata_size + self.padding + self.payload_size + TRAILER

    def pack(self) -> bytes:
        """Encode the header in 24 bytes."""
        fields = _FIELDS.pack(MAGIC, VERSION, self.kind, 0, self.metadata_size, self.payload_size)
        return fields + _CRC.pack(crc32c(fields))

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Decode the 24 bytes of a header.

        Raises:
            RemoteProtocolError: The bytes are not a header of this version.
        """
        magic, version, kind, flags, metadata_size, payload_size = _FIELDS.unpack_from(data)
        # Told apart from other garbage: tcp:// in place of tls:// leads here, and the reverse.
        if data[:1] in _TLS and data[1:2] == b"\x03":
            raise RemoteProtocolError(
                "the other end speaks TLS and this one does not; write tls:// for a TLS address of "
                "a feeder, and for no other address"
            )
        if magic != MAGIC:
            raise RemoteProtocolError(
                f"expected a frame, got {data[:8]!r}; is this the address of a streamrec feeder?"
            )
        if _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(data[: _FIELDS.size]):
            raise CorruptFrame(
                "the CRC of a frame's header is wrong: bytes changed on the way; connect again"
            )
        if version != VERSION or flags:
            raise RemoteProtocolError(
                f"a frame has version {version} and flags {flags:#x}, not {VERSION} and 0; "
                "install the same streamrec on both sides"
            )
        return cls(_kind(kind), metadata_size, payload_size)


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise RemoteProtocolError(
            f"there is no frame type {number}; install the same streamrec on both sides"
        ) from None


def frame_size(metadata_size: int, payload_size: int) -> int:
    """Return the bytes of a whole BATCH frame, which are its cost in credit."""
    return Header(Kind.BATCH, metadata_size, payload_size).size


def check_sizes(header: Header) -> None:
    """Refuse sizes beyond the caps, before memory is allocated for them.

    Raises:
        RemoteProtocolError: The metadata or the payload is too large.
    """
    cap = _CAPS.get(header.kind, METADATA_CAP)
    if header.metadata_size > cap:
        raise RemoteProtocolError(
            f"{header.kind.name} has {header.metadata_size} bytes of metadata; {cap} are allowed"
        )
    # Only BATCH has a payload.
    cap = PAYLOAD_CAP if header.kind is Kind.BATCH else 0
    if header.payload_size > cap:
        raise RemoteProtocolError(
            f"{header.kind.name} has {header.payload_size} bytes of payload; {cap} are allowed"
        )


def checksum(metadata: bytes | memoryview, payload: tuple[memoryview, ...]) -> int:
    """Return the CRC32C of the metadata and all buffers of the payload."""
    value = crc32c(metadata)
    for buffer in payload:
        # The checksum goes on over all buffers, which are never joined.
        value = crc32c(buffer, value)
    return value


def trailer(metadata: bytes | memoryview, payload: tuple[memoryview, ...]) -> bytes:
    """Return the last 4 bytes of a frame: its checksum."""
    return _CRC.pack(checksum(metadata, payload))


def check_trailer(
    kind: Kind, data: memoryview, metadata: memoryview, payload: tuple[memoryview, ...]
) -> None:
    """Compare a frame's last 4 bytes with the checksum of its content.

    Raises:
        CorruptFrame: The bytes changed on the way.
    """
    expected, computed = _CRC.unpack(data)[0], checksum(metadata, payload)
    if expected != computed:
        raise CorruptFrame(
            f"the CRC of {kind.name} is {computed:#010x}, its frame says {expected:#010x}: bytes "
            "changed on the way; connect again"
        )


def allocate_aligned(size: int) -> memoryview:
    """Allocate ``size`` bytes from a multiple of 64 on; their content is undefined."""
    # np.empty, not bytearray: it writes no zeros, which the socket would overwrite, and asks the
    # kernel for huge pages.
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory.data[start : start + size]


STAGING = 64 << 10
"""Bytes of a read whose frames are not known yet. Small frames come many at a time; of a large one,
at most this much is copied: 1 % of a batch of some MiB."""


class Frame(NamedTuple):
    """One frame whose checksums are right."""

    header: Header
    metadata: bytes
    payload: tuple[memoryview, ...]


class FrameReader:
    """A parser of frames that provides the memory into which the socket writes.

    A header is read into staging memory. The rest of a frame has memory of exactly its size: it is
    filled from the bytes that came along with the header, and then by the socket itself.

    Args:
        admit: Called with each header before memory is allocated for it; raises to refuse it.
    """

    def __init__(self, admit: Callable[[Header], None]) -> None:
        self._admit = admit
        self._staging = memoryview(bytearray(STAGING))
        self._begin = self._end = 0
        self._header: Header | None = None
        self._segments: list[memoryview] = []
        """The present frame's metadata and padding, then its payload; the trailer ends the last."""
        self._current = 0
        self._filled = 0

    @property
    def inside(self) -> str | None:
        """The present, incomplete frame in words, or ``None`` between two frames."""
        if self._header is not None:
            return f"a {self._header.kind.name} of {self._header.size} bytes"
        return "a header" if self._begin < self._end else None

    @property
    def exact(self) -> bool:
        """``True`` while :meth:`get_buffer` returns exactly the missing bytes of a known size."""
        return self._header is not None

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        if self._header is not None:
            return self._segments[self._current][self._filled :]
        return self._staging[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Note that ``count`` bytes were written to the start of :meth:`get_buffer`."""
        if self._header is not None:
            self._filled += count
        else:
            self._end += count

    def frames(self) -> Iterator[Frame]:
        """Yield the complete frames; the caller acts on each before the next header is read.

        Raises:
            RemoteProtocolError: The bytes are not a frame, or ``admit`` refused one.
        """
        while self._begin_frame():
            frame = self._fill()
            if frame is None:
                return
            yield frame

    def _begin_frame(self) -> bool:
        if self._header is not None:
            return True
        if self._end - self._begin < HEADER:
            self._compact()
            return False
        header = Header.unpack(bytes(self._staging[self._begin : self._begin + HEADER]))
        # Before memory is allocated: a stranger could ask for gigabytes by 24 bytes.
        self._admit(header)
        self._segments = _allocate(header)
        self._begin += HEADER
        self._header, self._current, self._filled = header, 0, 0
        return True

    def _compact(self) -> None:
        left = self._end - self._begin
        # To the front, so that the rest of a header always has room. At most a header's bytes move.
        self._staging[:left] = bytes(self._staging[self._begin : self._end])
        self._begin, self._end = 0, left

    def _fill(self) -> Frame | None:
        """Move staged bytes into the frame, and return it once it is complete."""
        while True:
            segment = self._segments[self._current]
            count = min(len(segment) - self._filled, self._end - self._begin)
            segment[self._filled : self._filled + count] = self._staging[
                self._begin : self._begin + count
            ]
            self._begin += count
            self._filled += count
            if self._filled < len(segment):
                self._compact()
                return None
            if self._current == len(self._segments) - 1:
                return self._complete()
            self._current, self._filled = self._current + 1, 0

    def _complete(self) -> Frame:
        header, segments = self._header, self._segments
        assert header is not None
        # The payload is the message's from now on: a later frame must not write into it.
        self._header, self._segments = None, []
        size = header.metadata_size
        metadata, padding = segments[0][:size], segments[0][size : size + header.padding]
        payload = (segments[1][:-TRAILER],) if header.payload_size else ()
        check_trailer(header.kind, segments[-1][-TRAILER:], metadata, payload)
        if any(padding):
            raise RemoteProtocolError(
                f"the padding of {header.kind.name} is not zero; install the same streamrec on "
                "both sides"
            )
        return Frame(header, bytes(metadata), payload)


def _allocate(header: Header) -> list[memoryview]:
    head = header.metadata_size + header.padding
    if not header.payload_size:
        return [memoryview(bytearray(head + TRAILER))]
    try:
        # The trailer comes into the payload's memory: one buffer less to receive into.
        return [memoryview(bytearray(head)), allocate_aligned(header.payload_size + TRAILER)]
    except MemoryError:
        raise RemoteProtocolError(
            f"there is no memory for a batch of {header.payload_size} bytes; lower batch_size"
        ) from None
