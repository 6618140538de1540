"""Placeholders for records that are damaged or missing, and the part of a block in its extent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.values.records import RecordBlock

if TYPE_CHECKING:
    from streamrec.formats.shards.tfrecord import DamagedSpan
    from streamrec.plan.order import Extent

__all__ = ["missing_from", "part_of", "placeholder_of"]

_NOTHING = np.empty(0, np.uint8)


def part_of(extent: Extent, block: RecordBlock) -> RecordBlock:
    """Return the records of a block that belong to its extent."""
    if extent.records is None:
        return block
    begin = extent.first_record + extent.skip
    first = max(0, begin - block.first_ordinal)
    last = max(first, begin + extent.records - block.first_ordinal)
    if first == 0 and last >= len(block):
        return block
    return replace(
        block,
        offsets=block.offsets[first:last],
        lengths=block.lengths[first:last],
        first_ordinal=block.first_ordinal + first,
    )


def placeholder_of(damaged: DamagedSpan, shard: int) -> RecordBlock:
    """Make a placeholder for a damaged span that is exactly one record: a row without bytes."""
    length = len(damaged.content) - HEADER - FOOTER
    offsets, lengths = np.array([HEADER]), np.array([length])
    return RecordBlock(_NOTHING, offsets, lengths, shard, damaged.record, damaged.offset, lost=True)


def missing_from(extent: Extent, found: int) -> RecordBlock:
    """Make placeholders for the extent's records that were not found before its end.

    Args:
        extent: An extent whose records an index counts.
        found: The number in the shard of the first record that was not found.
    """
    assert extent.end is not None
    assert extent.records is not None
    begin = extent.first_record + extent.skip
    first = max(begin, found)
    count = max(0, begin + extent.records - first)
    nothing = np.zeros(count, np.int64)
    base = extent.end - HEADER - FOOTER
    return RecordBlock(_NOTHING, nothing + HEADER, nothing, extent.shard, first, base, lost=True)
