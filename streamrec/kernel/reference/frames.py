"""CRC32C, TFRecord frames and rows of records, in Python."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import crc32c as _crc32c
import numpy as np

from streamrec.kernel.contract import FOOTER, HEADER, MAX_NEEDED, FaultCode, FrameScan, fresh, mask
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import ByteArray, Bytes
    from streamrec.values.record_rows import RecordRows

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")


def crc32c(data: Bytes, value: int = 0) -> int:
    """Return the CRC32C (Castagnoli; RFC 3720, appendix B.4).

    Args:
        data: The bytes, contiguous.
        value: The CRC of the bytes before these.
    """
    return int(_crc32c.crc32c(data, value))


def masked_crc32c(data: Bytes) -> int:
    """Return the CRC32C in the masked form that a TFRecord stores."""
    return mask(_crc32c.crc32c(data))


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
    offsets: list[int] = []
    lengths: list[int] = []
    view = buffer.data
    # Local names, as the loop runs once for each record.
    checksum, unpack_header, unpack_footer = _crc32c.crc32c, _HEADER.unpack_from, _CRC.unpack_from
    stop, needed, fault = begin, 0, FaultCode.NONE
    while stop + HEADER <= end:
        length, length_crc = unpack_header(view, stop)
        if check_crc and mask(checksum(view[stop : stop + 8])) != length_crc:
            fault = FaultCode.LENGTH_CRC
            break
        payload = stop + HEADER
        footer = payload + length
        if footer + FOOTER > end:
            # A length has 64 bits, and this number must fit int64.
            needed = min(HEADER + length + FOOTER, MAX_NEEDED)
            break
        checked = check_crc and length < large
        if checked and mask(checksum(view[payload:footer])) != unpack_footer(view, footer)[0]:
            fault = FaultCode.DATA_CRC
            break
        offsets.append(payload)
        lengths.append(length)
        stop = footer + FOOTER
    return FrameScan(np.array(offsets, np.int64), np.array(lengths, np.int64), stop, needed, fault)


def _is_intact(view: memoryview, begin: int, end: int) -> bool:
    """Return ``True`` if a CRC stands after the payload and matches it."""
    if end + FOOTER > len(view):
        return False
    return bool(mask(_crc32c.crc32c(view[begin:end])) == _CRC.unpack_from(view, end)[0])


def corrupt_row(rows: RecordRows, large: int = 0) -> int:
    """Return the first row whose CRC after it is wrong or missing; -1 if all are intact.

    Args:
        rows: Payloads inside of their frames.
        large: Bytes from which a payload is checked; smaller ones are not.
    """
    views = [buffer.data for buffer in rows.buffers]
    ends = (rows.offsets + rows.lengths).tolist()
    places = zip(rows.buffer_index.tolist(), rows.offsets.tolist(), ends, strict=True)
    for row, (index, begin, end) in enumerate(places):
        if end - begin >= large and not _is_intact(views[index], begin, end):
            return row
    return -1


def frame_records(rows: RecordRows) -> ByteArray:
    """Write the TFRecord frames of all rows, end to end, into new memory."""
    parts: list[Bytes] = []
    for payload in rows.payloads():
        length = _LENGTH.pack(len(payload))
        parts += (length, _CRC.pack(masked_crc32c(length)))
        parts += (payload, _CRC.pack(masked_crc32c(payload)))
    # A bytearray, since an array over bytes cannot be written to.
    return np.frombuffer(bytearray().join(parts), np.uint8)


def gather(
    rows: RecordRows,
    allocate: Allocate = fresh,  # noqa: ARG001 - joining brings its own memory
) -> BytesColumn:
    """Copy the payloads of rows into one column.

    Args:
        rows: The records.
        allocate: Not used: joining brings its own memory.
    """
    return BytesColumn.of(list(rows.payloads()))
