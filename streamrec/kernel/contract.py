"""What a kernel takes and gives: the words that its implementations share.

An implementation reads buffers, writes arrays, and reports faults as codes: it knows no URL and
raises nothing of the public error tree. ``streamrec.formats`` turns its codes into errors that say
what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from math import prod
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.types import ByteArray, Column, Indices, RecordRows

__all__ = [
    "FOOTER",
    "HEADER",
    "LARGEST_MESSAGE",
    "MASK_DELTA",
    "MAX_NEEDED",
    "Allocate",
    "ColumnPlan",
    "DataType",
    "Fault",
    "FrameScan",
    "Interleaved",
    "KernelFault",
    "Kind",
    "Parser",
    "Run",
    "fresh",
    "mask",
    "unmask",
]

# A TFRecord frame: uint64 length, uint32 masked CRC32C of these 8 bytes, the payload, uint32 masked
# CRC32C of the payload; little-endian. Source: tensorflow/core/lib/io/record_writer.h.
HEADER = 12
"""Bytes of a frame before its payload."""
FOOTER = 4
"""Bytes of a frame after its payload."""

MAX_NEEDED = 2**63 - 1
"""``FrameScan.needed`` of a frame whose size int64 cannot hold."""

LARGEST_MESSAGE = 2**31 - 1
"""Bytes of the longest serialized message: "the maximum size supported by all implementations".
Source: protobuf.dev/programming-guides/proto-limits."""

Allocate: TypeAlias = "Callable[[int], ByteArray]"
"""Gives so many bytes of memory with undefined contents: uint8, one dimension, 64-byte aligned or
as aligned as NumPy's own."""


def fresh(size: int) -> ByteArray:
    """Newly allocated memory."""
    return np.empty(size, np.uint8)


# The CRC of bytes that hold a CRC is a weak check, so TFRecord stores CRCs rotated and shifted.
# Source of the constant: tensorflow/core/lib/hash/crc32c.h, kMaskDelta.
MASK_DELTA = 0xA282EAD8


def mask(crc: int) -> int:
    """A CRC32C in the form in which a TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def unmask(stored: int) -> int:
    """The CRC32C that a TFRecord stores in this form."""
    rotated = (stored - MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


class Fault(IntEnum):
    """What is wrong with the bytes."""

    NONE = 0
    LENGTH_CRC = 1
    """A frame's length does not match its CRC."""
    DATA_CRC = 2
    """A frame's payload does not match its CRC."""
    MALFORMED = 3
    """A record is no serialized Example, or no SequenceExample."""
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
    """What :func:`scan_frames` found."""

    offsets: Indices
    """int64 ``[n]``: where each payload begins in the buffer."""
    lengths: Indices
    """int64 ``[n]``: the payloads' sizes in bytes."""
    stop: int
    """The first byte not consumed: where the next frame begins."""
    needed: int
    """The whole size of the frame at ``stop``, if its header is complete and no fault; else 0."""
    fault: Fault
    """What is wrong with the frame at ``stop``: ``NONE``, ``LENGTH_CRC`` or ``DATA_CRC``."""


R_co = TypeVar("R_co", covariant=True)


class Run(NamedTuple, Generic[R_co]):
    """Consecutive rows of a lane; what a kernel takes are :class:`RecordRows`."""

    rows: R_co
    """Those that it is of; their arrays are contiguous."""
    first: int
    """The run's first row in them."""
    last: int
    """The row behind its last one."""
    epoch: int
    """The epoch of them all."""


class Interleaved(NamedTuple):
    """The rows of several lanes in one order."""

    rows: RecordRows
    """With the buffers of all runs, end to end."""
    epochs: Indices
    """int64 ``[rows]``."""
    ends: Indices
    """int64 ``[rows]``: running sums of the payloads' sizes, in bytes."""


class Kind(Enum):
    """How a feature's values become a column."""

    FIXED = "fixed"
    """The same number of values in every row: an array ``[rows, *shape]``."""
    VARLEN = "varlen"
    """Any number of values a row: a :class:`Ragged`."""
    RAW = "raw"
    """One byte string of the same length in every row: uint8 ``[rows, *shape]``."""
    STEPS = "steps"
    """Of a SequenceExample's feature lists, any number of steps a row, each with any number of
    values: a :class:`Ragged` of steps, whose values are a :class:`Ragged` of the steps' values. A
    step of which no list is set has none."""


class DataType(Enum):
    """The three types that an Example can hold."""

    INT64 = "int64"
    FLOAT32 = "float32"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """One column to parse out of every record."""

    name: str
    kind: Kind
    dtype: DataType
    shape: tuple[int, ...] = ()
    """The shape of one row's values for ``FIXED``, of its bytes for ``RAW``."""
    default: tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...] | None = None
    """The values of a row that lacks the feature: ``count`` of them for ``FIXED``, one string of
    ``count`` bytes for ``RAW``, none for ``STEPS``. ``None``: it may not lack. ``VARLEN`` needs no
    default: a row that lacks the feature has no values."""

    @property
    def count(self) -> int:
        """How many values one row of a ``FIXED`` column holds, how many bytes one of ``RAW``."""
        return prod(self.shape)


class KernelFault(Exception):
    """A record cannot be parsed as planned.

    Args:
        code: What is wrong.
        record: The row's number in the input.
        feature: The feature's name, where it is about one.
        offset: The byte of the record at which it shows, where the implementation knows.
    """

    def __init__(
        self, code: Fault, record: int, feature: str | None = None, offset: int | None = None
    ) -> None:
        super().__init__(f"{code.name} in row {record}, feature {feature!r}")
        self.code = code
        self.record = record
        self.feature = feature
        self.offset = offset


class Parser(Protocol):
    """Serialized messages to columns; prepared once, used from any number of threads.

    What is accepted is what protobuf accepts: a record that its parser refuses is ``MALFORMED``,
    whether or not the fault is in what a plan asks for. Of a feature that occurs twice the last
    counts. What is in no plan is checked and skipped. A feature of which no list is set is absent.

    Args:
        plans: The columns of an Example's features, or of a SequenceExample's context: ``FIXED``,
            ``VARLEN`` or ``RAW``. No two have the same name.
        lists: The columns of a SequenceExample's feature lists: ``STEPS``. No two have the same
            name. ``None``: the records are Examples.
        allocate: Where the memory of large columns may come from.
    """

    def __init__(
        self,
        plans: Sequence[ColumnPlan],
        lists: Sequence[ColumnPlan] | None = None,
        allocate: Allocate = fresh,
    ) -> None: ...

    def parse(self, rows: RecordRows) -> list[Column]:
        """Parse records into columns.

        Args:
            rows: The serialized messages.

        Returns:
            One column a plan, then one a list.

        Raises:
            KernelFault: Of the first row that does not fit: what is wrong with its bytes as a
                whole, else of its plans the first, else of its lists the first.
        """
        ...
