"""The parts of protobuf's wire format that are written without protobuf, a column at a time.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.values.columns import ByteArray

__all__ = ["FIRST", "SECOND", "framed", "varint", "varints"]

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


def varints(values: npt.NDArray[np.int64]) -> BytesColumn:
    """Encode integers as varints, one string of the column each; negative ones take ten bytes.

    Args:
        values: int64 ``[n]``, contiguous.
    """
    parts = range(0, len(values), _PART) or (0,)
    octets, lengths = zip(
        *(_varints(values[begin : begin + _PART].view(np.uint64)) for begin in parts), strict=True
    )
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.concatenate(lengths), dtype=np.int64, out=offsets[1:])
    return BytesColumn(np.concatenate(octets), offsets)


_PART = 1 << 14
"""The number of integers encoded at once, so that intermediate arrays stay in the cache."""


def _varints(left: npt.NDArray[np.uint64]) -> tuple[ByteArray, ByteArray]:
    """Return the varints' bytes end to end, and the number of bytes of each."""
    groups = max(1, -(-int(left.max(initial=0)).bit_length() // 7))
    octets = np.empty((len(left), groups), np.uint8)
    taken = np.ones(octets.shape, np.bool_)
    lengths = np.ones(len(left), np.uint8)
    for group in range(groups):
        more = left > 0x7F
        # The eighth bit is set where more bytes follow; elsewhere it is 0 already.
        octets[:, group] = left.astype(np.uint8) | (more.view(np.uint8) << 7)
        taken[:, group + 1 : group + 2] = more[:, None]
        lengths += more.view(np.uint8)
        left = left >> np.uint64(7)
    return octets[taken], lengths
