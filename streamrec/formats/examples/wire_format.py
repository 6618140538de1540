"""The parts of protobuf's wire format that are written without protobuf.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

FIRST = b"\x0a"
"""The tag of field 1 with bytes or a message: the field's number times 8, plus 2."""
SECOND = b"\x12"
"""The tag of field 2."""


def framed(octets: bytes) -> bytes:
    """Prefix bytes with their length as a varint."""
    return varint(len(octets)) + octets


def varint(value: int) -> bytes:
    """Encode an integer from 0 up as a varint."""
    # Seven bits a byte, the lowest first; the top bit says that more bytes follow.
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)
