"""Shards and records of extreme sizes, for tests and benchmarks."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from streamrec.formats.shards.tfrecord import frame
from streamrec.kernel import masked_crc32c
from streamrec.kernel.contract import FOOTER, HEADER
from streamrec.values.columns import BytesColumn
from streamrec.values.record_rows import RecordRows
from tests.kernel.wire_bytes import DELIMITED, delimited, entry, example, int64_list, tag, varint

if TYPE_CHECKING:
    from streamrec.values.columns import ByteArray

__all__ = [
    "PERIOD",
    "duplicates",
    "empty_records",
    "empty_rows",
    "heading",
    "many_features",
    "name",
    "packed_values",
    "rows_of",
    "zeros_in_a_frame",
]

PERIOD = 100
"""Values of :func:`packed_values` count from 0 to this, again and again."""


def rows_of(record: ByteArray) -> RecordRows:
    """Return one row, without a copy."""
    return RecordRows.from_column(BytesColumn(record, np.array([0, len(record)])))


def empty_records(count: int) -> ByteArray:
    """Return a shard of records of 0 bytes."""
    return np.tile(np.frombuffer(frame(b""), np.uint8), count)


def empty_rows(count: int) -> RecordRows:
    """Rows of 0 bytes."""
    return RecordRows.from_column(BytesColumn(np.empty(0, np.uint8), np.zeros(count + 1, np.int64)))


def heading(size: int) -> bytes:
    """Return the bytes before ``size`` bytes of packed values: an Example's int64 feature "a"."""
    key = delimited(1, b"a")
    head = b""
    for field in (1, 3, 2):  # the values in Int64List, this in Feature, that in the entry
        head = tag(field, DELIMITED) + varint(size + len(head)) + head
    head = key + head
    for _ in range(2):  # the entry in Features, these in Example
        head = tag(1, DELIMITED) + varint(size + len(head)) + head
    return head


def packed_values(count: int) -> ByteArray:
    """Return an Example whose feature "a" holds so many int64, of one byte each."""
    head = np.frombuffer(heading(count), np.uint8)
    record = np.empty(len(head) + count, np.uint8)
    record[: len(head)] = head
    record[len(head) :] = np.resize(np.arange(PERIOD, dtype=np.uint8), count)
    return record


def name(number: int) -> str:
    """Return a name that is like all others at its beginning and its end."""
    return f"features/{number:07}/embedding"


def many_features(count: int) -> ByteArray:
    """Return an Example of so many features, each of which holds its number."""
    entries = [entry(name(number), int64_list(number)) for number in range(count)]
    return np.frombuffer(example(*entries), np.uint8)


def duplicates(count: int) -> ByteArray:
    """Return an Example that gives feature "a" so many times: 0, then 1, and so on."""
    entries = [entry("a", int64_list(number)) for number in range(count)]
    return np.frombuffer(example(*entries), np.uint8)


def zeros_in_a_frame(size: int) -> ByteArray:
    """Return a shard of one record of zeros."""
    shard = np.zeros(HEADER + size + FOOTER, np.uint8)
    length = struct.pack("<Q", size)
    crcs = masked_crc32c(length), masked_crc32c(shard[HEADER:-FOOTER].data)
    shard[:HEADER] = np.frombuffer(length + struct.pack("<I", crcs[0]), np.uint8)
    shard[-FOOTER:] = np.frombuffer(struct.pack("<I", crcs[1]), np.uint8)
    return shard
