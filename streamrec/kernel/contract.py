"""The contract of a kernel: the types and constants that its implementations share.

An implementation reads buffers, writes arrays, and reports faults as codes: it knows no URL and
does not raise the public errors. ``streamrec.formats`` turns its codes into errors that say what to
do next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec.values.aligned import empty

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from streamrec.values.columns import ByteArray, Indices

# A TFRecord frame: uint64 length, uint32 masked CRC32C of these 8 bytes, the payload, uint32 masked
# CRC32C of the payload; little-endian. Source: tensorflow/core/lib/io/record_writer.h.
HEADER = 12
"""Bytes of a frame before its payload."""
FOOTER = 4
"""Bytes of a frame after its payload."""

MAX_NEEDED = 2**63 - 1
"""The ``FrameScan.needed`` of a frame whose size does not fit into int64."""

LARGEST_MESSAGE = 2**31 - 1
"""Bytes of the longest serialized message: "the maximum size supported by all implementations".
Source: protobuf.dev/programming-guides/proto-limits."""

Allocate: TypeAlias = "Callable[[int], ByteArray]"
"""A function from a size in bytes to memory with undefined contents: uint8, one dimension, aligned
to 64 bytes."""
Admit: TypeAlias = "Callable[[int, str], None]"
"""A function that is told of bytes before they are taken, and of the column with most of them. It
raises where they are too many."""


def fresh(size: int) -> ByteArray:
    """Allocate new memory of ``size`` bytes."""
    return empty((size,), np.uint8)


# The CRC of bytes that hold a CRC is a weak check, so TFRecord stores CRCs rotated and shifted.
# Source of the constant: tensorflow/core/lib/hash/crc32c.h, kMaskDelta.
MASK_DELTA = 0xA282EAD8


def mask(crc: int) -> int:
    """Convert a CRC32C to the masked form that a TFRecord stores."""
    # Python's integers do not wrap around as TensorFlow's uint32 do.
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def unmask(stored: int) -> int:
    """Convert the masked form that a TFRecord stores to a CRC32C."""
    rotated = (stored - MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


# The numbers are those of enum sr_fault in c/fault.h.
class FaultCode(IntEnum):
    """A fault of a frame or a record."""

    NONE = 0
    LENGTH_CRC = 1
    """A frame's length does not match its CRC."""
    DATA_CRC = 2
    """A frame's payload does not match its CRC."""
    MALFORMED = 3
    """A record is not a serialized Example, or SequenceExample."""
    MISSING = 4
    """A feature without a default is absent."""
    WRONG_KIND = 5
    """A feature's list is of another type than the plan's."""
    WRONG_COUNT = 6
    """A feature has another number of values than the plan's shape."""
    WRONG_SIZE = 7
    """A byte string has another length than the plan's shape."""
    TOO_LARGE = 8
    """A record is longer than ``LARGEST_MESSAGE``."""


class FrameScan(NamedTuple):
    """The frames that :func:`scan_frames` found."""

    offsets: Indices
    """int64 ``[n]``: the byte of the buffer at which each payload begins."""
    lengths: Indices
    """int64 ``[n]``: the payloads' sizes in bytes."""
    stop: int
    """The first byte not consumed, at which the next frame begins."""
    needed: int
    """Bytes of the whole frame at ``stop``, if its header is complete and intact; else 0."""
    fault: FaultCode
    """The fault of the frame at ``stop``: ``NONE``, ``LENGTH_CRC`` or ``DATA_CRC``."""


class ColumnKind(Enum):
    """The form of a column."""

    FIXED = "fixed"
    """The same number of values in every row: an array ``[rows, *shape]``."""
    VARLEN = "varlen"
    """Any number of values a row: a :class:`Ragged`."""
    RAW = "raw"
    """One byte string of the same length in every row: uint8 ``[rows, *shape]``."""
    STEPS = "steps"
    """A feature list of a SequenceExample: any number of steps a row, each with any number of
    values. It is a :class:`Ragged` of steps, whose values are a :class:`Ragged` of the steps'
    values. A step without a list has no values."""


class DataType(Enum):
    """One of the three types of values in an Example."""

    INT64 = "int64"
    FLOAT32 = "float32"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """The plan of one column, which is parsed from every record."""

    name: str
    kind: ColumnKind
    dtype: DataType
    shape: tuple[int, ...] = ()
    """The shape of one row's values for ``FIXED``, of its bytes for ``RAW``."""
    default: tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...] | None = None
    """The values of a row that lacks the feature: ``count`` of them for ``FIXED``, one string of
    ``count`` bytes for ``RAW``, none for ``STEPS``. ``None``: the feature is required. ``VARLEN``
    needs no default: a row without the feature has no values."""

    @property
    def count(self) -> int:
        """The values in one row of a ``FIXED`` column, or the bytes in one of ``RAW``."""
        # 1 for the shape (), which is a single value.
        return prod(self.shape)


class FieldColumn(NamedTuple):
    """One field of serialized messages, for all rows: each row's values, after their heads."""

    heads: tuple[bytes, ...]
    """What stands before the values, from the outside in, up to four of them: after each head comes
    the number of bytes after it, as a varint."""
    values: npt.NDArray[Any] | tuple[bytes, ...]
    """All rows' values end to end, in one dimension: int64, which are written as varints; or uint8
    or float32, as they are. Or one byte string a row."""
    splits: Indices | None
    """int64 ``[rows + 1]``: row ``i`` has the values ``splits[i]`` to ``splits[i + 1]``; ``None``
    where there is one byte string a row."""
    omits_last: bool = False
    """``True`` to leave out the last head where a row has no bytes of values."""
    missing: npt.NDArray[np.bool_] | None = None
    """bool ``[rows]``: the rows without the field; ``None`` means none."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.values) if self.splits is None else len(self.splits) - 1


class KernelFault(Exception):
    """A record cannot be parsed as planned.

    Args:
        code: The fault.
        record: The row's number in the input.
        feature: The feature's name, where the fault is in one.
        offset: The byte of the record at which it shows, where the implementation knows that.
    """

    def __init__(
        self, code: FaultCode, record: int, feature: str | None = None, offset: int | None = None
    ) -> None:
        super().__init__(f"{code.name} in row {record}, feature {feature!r}")
        self.code = code
        self.record = record
        self.feature = feature
        self.offset = offset
