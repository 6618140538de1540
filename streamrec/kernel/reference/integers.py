"""Integers as varints, in NumPy. Source: protobuf.dev/programming-guides/encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.values.columns import BytesColumn, offsets_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.values.columns import ByteArray, Indices

__all__ = ["varints"]


def varints(values: npt.NDArray[np.int64], splits: Indices) -> BytesColumn:
    """Encode integers as varints, those of a row end to end; negative ones take ten bytes.

    Args:
        values: int64 ``[n]``.
        splits: int64 ``[rows + 1]``: row ``i`` has the values ``splits[i]`` to ``splits[i + 1]``.
    """
    first, last = int(splits[0]), int(splits[-1])
    values = np.ascontiguousarray(values[first:last])
    parts = range(0, len(values), _PART) or (0,)
    octets, lengths = zip(
        *(_varints(values[begin : begin + _PART].view(np.uint64)) for begin in parts), strict=True
    )
    offsets = offsets_of(np.concatenate(lengths).astype(np.int64))
    return BytesColumn(np.concatenate(octets), offsets[splits - first])


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
