"""CRC32C, TFRecord frames and rows of records, by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.kernel import _native
from streamrec.kernel.contract import FOOTER, HEADER, MAX_NEEDED, FaultCode, FrameScan, fresh, mask
from streamrec.kernel.native.examples import Room, hold, layout
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import ByteArray, Bytes, Indices
    from streamrec.values.record_rows import RecordRows

_FIRST_CAPACITY = 1024
"""Records for which a scan allocates arrays before it knows how long records are."""


def crc32c(data: Bytes, value: int = 0) -> int:
    """Return the CRC32C (Castagnoli; RFC 3720, appendix B.4).

    Args:
        data: The bytes, contiguous.
        value: The CRC of the bytes before these.
    """
    return _native.crc32c(data, value)


def masked_crc32c(data: Bytes) -> int:
    """Return the CRC32C in the masked form that a TFRecord stores."""
    return mask(_native.crc32c(data, 0))


def scan_frames(
    buffer: ByteArray, begin: int, end: int, check_crc: bool, large: int = MAX_NEEDED
) -> FrameScan:
    """Find the TFRecord frames that lie end to end in a buffer.

    Stops at the first incomplete frame, at the first fault, or at ``end``.

    Args:
        buffer: uint8, one dimension, contiguous.
        begin: The byte at which the first frame begins.
        end: The byte before which to stop.
        check_crc: ``True`` to check both CRCs of every frame, ``False`` to check neither.
        large: Bytes from which a payload is not checked: :func:`corrupt_row` may check it later.
    """
    offsets: list[Indices] = []
    lengths: list[Indices] = []
    stop, needed, fault, full = begin, 0, 0, True
    capacity = _FIRST_CAPACITY
    while full:
        # One more than frames can be there, so that the last scan is never taken for full.
        capacity = min(capacity, (end - stop) // (HEADER + FOOTER) + 1)
        arrays = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        before = stop
        records, stop, needed, fault = _native.scan(buffer, before, end, check_crc, large, *arrays)
        offsets.append(arrays[0][:records])
        lengths.append(arrays[1][:records])
        full = records == capacity
        # The rest is expected to hold as many records a byte as the part before, and some more.
        capacity = (end - stop) * records // max(stop - before, 1) * 9 // 8 + _FIRST_CAPACITY
    return FrameScan(_joined(offsets), _joined(lengths), stop, needed, FaultCode(fault))


def _joined(arrays: list[Indices]) -> Indices:
    """Join arrays into one of exactly their size; a view would keep the unused capacity."""
    return arrays[0].copy() if len(arrays) == 1 else np.concatenate(arrays)


def corrupt_row(rows: RecordRows, large: int = 0) -> int:
    """Return the first row whose CRC after it is wrong or missing; -1 if all are intact.

    Args:
        rows: Payloads inside of their frames.
        large: Bytes from which a payload is checked; smaller ones are not.
    """
    return _native.corrupt_row(hold(rows), large)


def frame_records(rows: RecordRows) -> ByteArray:
    """Write the TFRecord frames of all rows, end to end, into new memory."""
    frames = np.empty(rows.nbytes + len(rows) * (HEADER + FOOTER), np.uint8)
    _native.frame(hold(rows), frames)
    return frames


def gather(rows: RecordRows, allocate: Allocate = fresh) -> BytesColumn:
    """Copy the payloads of rows into one column.

    Args:
        rows: The records.
        allocate: The source of memory for a large column.
    """
    (place,), sizes = layout([rows.nbytes])
    values = Room(sizes, allocate).array((rows.nbytes,), np.dtype(np.uint8), place)
    offsets = np.empty(len(rows) + 1, np.int64)
    _native.gather(hold(rows), values, offsets)
    return BytesColumn(values, offsets)
