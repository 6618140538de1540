"""What a kernel takes and gives: the words that its implementations share.

An implementation reads buffers, writes arrays, and reports faults as codes: it knows no URL and
raises nothing of the public error tree. ``streamrec.formats`` turns its codes into errors that say
what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamrec.types import Indices

__all__ = [
    "FOOTER",
    "HEADER",
    "MAX_NEEDED",
    "ColumnPlan",
    "DataType",
    "Fault",
    "FrameScan",
    "KernelFault",
    "Kind",
]

# A TFRecord frame: uint64 length, uint32 masked CRC32C of these 8 bytes, the payload, uint32 masked
# CRC32C of the payload; little-endian. Source: tensorflow/core/lib/io/record_writer.h.
HEADER = 12
"""Bytes of a frame before its payload."""
FOOTER = 4
"""Bytes of a frame after its payload."""

MAX_NEEDED = 2**63 - 1
"""``FrameScan.needed`` of a frame whose size int64 cannot hold."""


class Fault(IntEnum):
    """What is wrong with the bytes."""

    NONE = 0
    LENGTH_CRC = 1
    """A frame's length does not match its CRC."""
    DATA_CRC = 2
    """A frame's payload does not match its CRC."""
    MALFORMED = 3
    """A record is no serialized Example."""
    MISSING = 4
    """A feature without a default is absent."""
    WRONG_KIND = 5
    """A feature's list is of another type than the plan's."""
    WRONG_COUNT = 6
    """A feature has another number of values than the plan's shape."""


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


class Kind(Enum):
    """How a feature's values become a column."""

    FIXED = "fixed"
    """The same number of values in every row: an array ``[rows, *shape]``."""
    VARLEN = "varlen"
    """Any number of values a row: a :class:`Ragged`."""


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
    """The shape of one row's values, for ``FIXED``."""
    default: tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...] | None = None
    """The values of a row that lacks the feature, ``count`` of them; ``None``: it may not lack."""

    @property
    def count(self) -> int:
        """How many values one row of a ``FIXED`` column holds."""
        return prod(self.shape)


class KernelFault(Exception):
    """A record cannot be parsed as planned.

    Args:
        code: What is wrong.
        record: The row's number in the input.
        feature: The feature's name, where it is about one.
    """

    def __init__(self, code: Fault, record: int, feature: str | None = None) -> None:
        super().__init__(f"{code.name} in row {record}, feature {feature!r}")
        self.code = code
        self.record = record
        self.feature = feature
