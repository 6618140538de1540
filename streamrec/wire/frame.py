"""Frames: how one message lies in the byte stream.

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

All numbers are little-endian. The header's own checksum makes the lengths trustworthy against
accidents; the caps of the protocol's state make them harmless against malice.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from streamrec.errors import RemoteProtocolError
from streamrec.kernel import crc32c
from streamrec.wire.messages import Kind

__all__ = ["ALIGNMENT", "DEFAULT_PAYLOAD_CAP", "HEADER", "TRAILER", "Header", "frame_size"]

MAGIC = b"SREC"
VERSION = 1
ALIGNMENT = 64
"""Bytes: a cache line, and what the widest vector instructions ask for."""
DEFAULT_PAYLOAD_CAP = 4 << 30
METADATA_CAP = 16 << 20

_FIELDS = struct.Struct("<4sBBHIQ")
_CRC = struct.Struct("<I")
HEADER = _FIELDS.size + _CRC.size
TRAILER = _CRC.size

_CAPS = {
    # What a stranger may send before it has shown its token, and what is never large.
    Kind.HELLO: 64 << 10,
    Kind.CREDIT: 64,
    Kind.PING: 64,
    Kind.PONG: 64,
    Kind.STATISTICS: 64 << 10,
    Kind.RELEASE: 64 << 10,
}


class Header(NamedTuple):
    """The fixed part in front of every frame."""

    kind: Kind
    metadata_size: int
    payload_size: int

    @property
    def padding(self) -> int:
        """Zeros between metadata and payload."""
        return -(HEADER + self.metadata_size) % ALIGNMENT if self.payload_size else 0

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return HEADER + self.metadata_size + self.padding + self.payload_size + TRAILER

    def pack(self) -> bytes:
        """The 24 bytes."""
        fields = _FIELDS.pack(MAGIC, VERSION, self.kind, 0, self.metadata_size, self.payload_size)
        return fields + _CRC.pack(crc32c(fields))

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Read 24 bytes.

        Raises:
            RemoteProtocolError: They are no header of this version.
        """
        magic, version, kind, flags, metadata_size, payload_size = _FIELDS.unpack_from(data)
        if magic != MAGIC:
            raise RemoteProtocolError(
                f"expected a frame, got {data[:8]!r}; is this the address of a streamrec feeder?"
            )
        if _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(data[: _FIELDS.size]):
            raise RemoteProtocolError("the CRC of a frame's header is wrong")
        if version != VERSION or flags:
            raise RemoteProtocolError(
                f"the frame has version {version} and flags {flags:#x}, not {VERSION} and 0; "
                "install the same streamrec on both sides"
            )
        return cls(_kind(kind), metadata_size, payload_size)


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise RemoteProtocolError(f"there is no frame type {number}") from None


def frame_size(metadata_size: int, payload_size: int) -> int:
    """Bytes of a whole frame: what a batch costs in credit."""
    return Header(Kind.BATCH, metadata_size, payload_size).size


def check_sizes(header: Header, payload_cap: int) -> None:
    """Refuse sizes beyond the caps, before anything is allocated.

    Raises:
        RemoteProtocolError: The metadata or the payload would be too large.
    """
    cap = _CAPS.get(header.kind, METADATA_CAP)
    if header.metadata_size > cap:
        raise RemoteProtocolError(
            f"{header.kind.name} has {header.metadata_size} bytes of metadata; {cap} are allowed"
        )
    cap = payload_cap if header.kind is Kind.BATCH else 0
    if header.payload_size > cap:
        raise RemoteProtocolError(
            f"{header.kind.name} has {header.payload_size} bytes of payload; {cap} are allowed"
        )


def checksum(metadata: bytes | memoryview, payload: tuple[memoryview, ...]) -> int:
    """CRC32C over the metadata and all buffers of the payload."""
    value = crc32c(metadata)
    for buffer in payload:
        value = crc32c(buffer, value)
    return value


def trailer(metadata: bytes | memoryview, payload: tuple[memoryview, ...]) -> bytes:
    """The last 4 bytes of a frame."""
    return _CRC.pack(checksum(metadata, payload))


def check_trailer(
    kind: Kind, data: memoryview, metadata: memoryview, payload: tuple[memoryview, ...]
) -> None:
    """Compare the checksum.

    Raises:
        RemoteProtocolError: The bytes changed on the way.
    """
    expected, found = _CRC.unpack(data)[0], checksum(metadata, payload)
    if expected != found:
        raise RemoteProtocolError(
            f"the CRC of {kind.name} is {found:#010x}, its frame says {expected:#010x}"
        )


def aligned(size: int) -> memoryview:
    """New memory of ``size`` bytes that begins at a multiple of 64; its content is arbitrary."""
    # np.empty, not bytearray: it does not write the zeros that the socket overwrites, and asks the
    # kernel for huge pages.
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory.data[start : start + size]
