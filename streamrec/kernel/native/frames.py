"""CRCs, frames and gathering, by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.kernel import _native
from streamrec.kernel.contract import FOOTER, HEADER, MAX_NEEDED, Fault, FrameScan, fresh, mask
from streamrec.kernel.native.columns import memory
from streamrec.kernel.native.rows import hold
from streamrec.types import BytesColumn

if TYPE_CHECKING:
    from streamrec.kernel.contract import Allocate
    from streamrec.types import ByteArray, Bytes, Indices, RecordRows

__all__ = ["corrupt_row", "crc32c", "frame_records", "gather", "masked_crc32c", "scan_frames"]

_FIRST_CAPACITY = 1024
"""Records for which a scan sets room aside before it has seen how long they are."""


def crc32c(data: Bytes, value: int = 0) -> int:
    """CRC32C (Castagnoli; RFC 3720, appendix B.4).

    Args:
        data: The bytes, contiguous.
        value: The CRC of the bytes before these, to go on from.
    """
    return _native.crc32c(data, value)


def masked_crc32c(data: Bytes) -> int:
    """CRC32C in the form in which a TFRecord stores it."""
    return mask(_native.crc32c(data, 0))


def scan_frames(
    buffer: ByteArray, begin: int, end: int, check_crc: bool, large: int = MAX_NEEDED
) -> FrameScan:
    """Find the TFRecord frames that stand end to end in a buffer.

    Stops at the first incomplete frame, at the first fault, or at ``end``.

    Args:
        buffer: uint8, one dimension, contiguous.
        begin: Where the first frame begins in it, in bytes.
        end: Where to stop, in bytes.
        check_crc: Check both CRCs of every frame; else neither.
        large: Bytes from which on a payload is not checked: :func:`corrupt_row` may do so later.
    """
    offsets: list[Indices] = []
    lengths: list[Indices] = []
    stop, needed, fault, full = begin, 0, 0, True
    capacity = _FIRST_CAPACITY
    while full:
        capacity = min(capacity, (end - stop) // (HEADER + FOOTER) + 1)
        arrays = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        before = stop
        records, stop, needed, fault = _native.scan(buffer, before, end, check_crc, large, *arrays)
        offsets.append(arrays[0][:records])
        lengths.append(arrays[1][:records])
        full = records == capacity
        # What is left holds as many records a byte as what was seen, or a few more.
        capacity = (end - stop) * records // max(stop - before, 1) * 9 // 8 + _FIRST_CAPACITY
    return FrameScan(_joined(offsets), _joined(lengths), stop, needed, Fault(fault))


def _joined(arrays: list[Indices]) -> Indices:
    """One array of just the size: a view would keep what was set aside too."""
    return arrays[0].copy() if len(arrays) == 1 else np.concatenate(arrays)


def corrupt_row(rows: RecordRows, large: int = 0) -> int:
    """The first row that does not match the CRC behind it, or has none there; else -1.

    Args:
        rows: Payloads that stand in frames.
        large: Bytes from which on a payload is checked; those that are smaller are not.
    """
    return _native.corrupt_row(hold(rows), large)


def frame_records(rows: RecordRows) -> ByteArray:
    """Write the TFRecord frames of all rows, end to end, into memory of their own."""
    frames = np.empty(rows.nbytes + len(rows) * (HEADER + FOOTER), np.uint8)
    _native.frame(hold(rows), frames)
    return frames


def gather(rows: RecordRows, allocate: Allocate = fresh) -> BytesColumn:
    """Copy the rows' payloads into one column of its own memory.

    Args:
        rows: The records.
        allocate: Where the memory of a large column comes from.
    """
    values = memory((rows.nbytes,), np.dtype(np.uint8), allocate)
    offsets = np.empty(len(rows) + 1, np.int64)
    _native.gather(hold(rows), values, offsets)
    return BytesColumn(values, offsets)
