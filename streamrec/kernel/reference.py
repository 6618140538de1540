"""The kernel in Python: its executable specification, and what runs where no compiler is.

Readable first. NumPy, ``crc32c`` and protobuf's own C code do the work on the bytes; what Python
does is counted per record, never per byte.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import crc32c as _crc32c
import numpy as np

from streamrec.kernel.contract import (
    FOOTER,
    HEADER,
    MAX_NEEDED,
    ColumnPlan,
    DataType,
    Fault,
    FrameScan,
    KernelFault,
    Kind,
)
from streamrec.types import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.types import Bytes, Column, Octets, RecordRows

__all__ = ["crc32c", "frame_records", "gather", "masked_crc32c", "parse_examples", "scan_frames"]

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
# The CRC of bytes that hold a CRC is a weak check, so TFRecord stores CRCs rotated and shifted.
# Source of the constant: tensorflow/core/lib/hash/crc32c.h, kMaskDelta.
_MASK_DELTA = 0xA282EAD8
_LOW_32 = 0xFFFFFFFF


def crc32c(data: Bytes, value: int = 0) -> int:
    """CRC32C (Castagnoli; RFC 3720, appendix B.4).

    Args:
        data: The bytes, contiguous.
        value: The CRC of the bytes before these, to go on from.
    """
    return int(_crc32c.crc32c(data, value))


def masked_crc32c(data: Bytes) -> int:
    """CRC32C in the form in which a TFRecord stores it."""
    return _mask(_crc32c.crc32c(data))


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _LOW_32


def scan_frames(buffer: Octets, begin: int, end: int, check_crc: bool) -> FrameScan:
    """Find the TFRecord frames that stand end to end in a buffer.

    Stops at the first incomplete frame, at the first fault, or at ``end``.

    Args:
        buffer: uint8, one dimension, contiguous.
        begin: Where the first frame begins in it, in bytes.
        end: Where to stop, in bytes.
        check_crc: Check both CRCs of every frame; else neither.
    """
    offsets: list[int] = []
    lengths: list[int] = []
    view = buffer.data
    checksum, unpack_header, unpack_footer = _crc32c.crc32c, _HEADER.unpack_from, _CRC.unpack_from
    stop, needed, fault = begin, 0, Fault.NONE
    while stop + HEADER <= end:
        length, length_crc = unpack_header(view, stop)
        if check_crc and _mask(checksum(view[stop : stop + 8])) != length_crc:
            fault = Fault.LENGTH_CRC
            break
        payload = stop + HEADER
        footer = payload + length
        if footer + FOOTER > end:
            needed = min(HEADER + length + FOOTER, MAX_NEEDED)
            break
        if check_crc and _mask(checksum(view[payload:footer])) != unpack_footer(view, footer)[0]:
            fault = Fault.DATA_CRC
            break
        offsets.append(payload)
        lengths.append(length)
        stop = footer + FOOTER
    return FrameScan(np.array(offsets, np.int64), np.array(lengths, np.int64), stop, needed, fault)


def frame_records(rows: RecordRows) -> Octets:
    """Write the TFRecord frames of all rows, end to end, into memory of their own."""
    parts: list[Bytes] = []
    for payload in rows.payloads():
        length = _LENGTH.pack(len(payload))
        parts += (length, _CRC.pack(masked_crc32c(length)))
        parts += (payload, _CRC.pack(masked_crc32c(payload)))
    return np.frombuffer(bytearray().join(parts), np.uint8)


def gather(rows: RecordRows) -> BytesColumn:
    """Copy the rows' payloads into one column of its own memory."""
    return BytesColumn.of(list(rows.payloads()))


def parse_examples(rows: RecordRows, plans: Sequence[ColumnPlan]) -> list[Column]:
    """Parse serialized ``tf.train.Example`` messages into columns.

    What is no part of a plan is skipped. Of a feature that occurs twice the last counts.

    Args:
        rows: The serialized messages.
        plans: The columns.

    Returns:
        One column a plan: ``FIXED`` gives an array ``[rows, *shape]`` or a :class:`BytesColumn`,
        ``VARLEN`` a :class:`Ragged`.

    Raises:
        KernelFault: Of the first row that does not fit; of its plans the first.
    """
    from google.protobuf.message import DecodeError

    from streamrec.kernel.messages import MESSAGES

    parse = MESSAGES["Example"].FromString
    builders = [_BUILDERS[plan.kind](plan) for plan in plans]
    for row, payload in enumerate(rows.payloads()):
        try:
            features = parse(payload).features.feature
        except DecodeError:
            raise KernelFault(Fault.MALFORMED, row) from None
        for builder in builders:
            fault = builder.add(features)
            if fault:
                raise KernelFault(fault, row, builder.plan.name)
    return [builder.column(len(rows)) for builder in builders]


_LISTS = {
    DataType.INT64: "int64_list",
    DataType.FLOAT32: "float_list",
    DataType.BYTES: "bytes_list",
}
_LONG = 64
"""Values from which on one NumPy call a list (2 us) beats one Python object a value (33 ns)."""


class _Numbers:
    """Collects numbers into one array."""

    def __init__(self, dtype: type[np.int64 | np.float32]) -> None:
        self._dtype = dtype
        self._chunks: list[npt.NDArray[Any]] = []
        self._run: list[Any] = []

    def extend(self, values: Any) -> None:
        if len(values) < _LONG:
            self._run.extend(values)
        else:
            if self._run:
                self._end_run()
            self._chunks.append(np.array(values, self._dtype))

    def _end_run(self) -> None:
        self._chunks.append(np.array(self._run, self._dtype))
        self._run.clear()

    def array(self) -> npt.NDArray[Any]:
        self._end_run()
        return np.concatenate(self._chunks)


def _numbers(dtype: DataType) -> _Numbers:
    return _Numbers(np.int64 if dtype is DataType.INT64 else np.float32)


class _Builder:
    """Collects one column's values, row by row."""

    def __init__(self, plan: ColumnPlan) -> None:
        self.plan = plan
        self.list_name = _LISTS[plan.dtype]
        self.strings: list[Any] = []
        self.numbers = _numbers(plan.dtype)
        self.extend = (self.strings if plan.dtype is DataType.BYTES else self.numbers).extend

    def why_empty(self, features: Any) -> Fault:
        """What it means that a row has no value of the plan's type; ``NONE``: an empty list.

        A feature of which no list is set counts as absent, as TensorFlow has it.
        """
        kind = features[self.plan.name].WhichOneof("kind")
        if kind is None:
            return Fault.MISSING
        return Fault.NONE if kind == self.list_name else Fault.WRONG_KIND


class _FixedBuilder(_Builder):
    def add(self, features: Any) -> Fault:
        """Take the row's values, or say what is wrong with them."""
        # Indexing a protobuf map makes what it lacks: an absent feature is one without values.
        values = getattr(features[self.plan.name], self.list_name).value
        count = len(values)
        if count == self.plan.count and count:
            self.extend(values)
            return Fault.NONE
        return Fault.WRONG_COUNT if count else self._add_empty(features)

    def _add_empty(self, features: Any) -> Fault:
        fault = self.why_empty(features)
        if fault is Fault.MISSING and self.plan.default is not None:
            self.extend(self.plan.default)
            return Fault.NONE
        return Fault.WRONG_COUNT if fault is Fault.NONE and self.plan.count else fault

    def column(self, rows: int) -> Column:
        if self.plan.dtype is DataType.BYTES:
            return BytesColumn.of(self.strings, self.plan.shape)
        return self.numbers.array().reshape(rows, *self.plan.shape)


class _VarLenBuilder(_Builder):
    def __init__(self, plan: ColumnPlan) -> None:
        super().__init__(plan)
        self._lengths: list[int] = []

    def add(self, features: Any) -> Fault:
        """Take the row's values, or say what is wrong with them."""
        values = getattr(features[self.plan.name], self.list_name).value
        self._lengths.append(len(values))
        if values:
            self.extend(values)
            return Fault.NONE
        fault = self.why_empty(features)
        return Fault.NONE if fault is Fault.MISSING else fault

    def column(self, rows: int) -> Column:  # noqa: ARG002 - as of the other kinds
        splits = offsets_of(np.array(self._lengths, np.int64))
        if self.plan.dtype is DataType.BYTES:
            return Ragged(BytesColumn.of(self.strings), splits)
        return Ragged(self.numbers.array(), splits)


_BUILDERS: dict[Kind, type[_FixedBuilder | _VarLenBuilder]] = {
    Kind.FIXED: _FixedBuilder,
    Kind.VARLEN: _VarLenBuilder,
}
