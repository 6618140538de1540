"""Which places of an extent its records take, and what stands there where they are lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamrec.formats.tfrecord import FOOTER, HEADER
from streamrec.types import RecordBlock

if TYPE_CHECKING:
    from streamrec.formats.tfrecord import DamagedSpan
    from streamrec.plan.order import Extent

__all__ = ["missing_from", "part_of", "placeholder_of"]

_NOTHING = np.empty(0, np.uint8)


def part_of(extent: Extent, block: RecordBlock) -> RecordBlock:
    """The records of a block that belong to its extent."""
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
    """A block of the one record that a span is: its place, without its bytes."""
    length = len(damaged.content) - HEADER - FOOTER
    offsets, lengths = np.array([HEADER]), np.array([length])
    return RecordBlock(_NOTHING, offsets, lengths, shard, damaged.record, damaged.offset, lost=True)


def missing_from(extent: Extent, found: int) -> RecordBlock:
    """The places of those of an extent's records that were not found before its end.

    Args:
        extent: An index says how many records it has.
        found: The number in the shard of the record that would have come next.
    """
    assert extent.end is not None
    assert extent.records is not None
    begin = extent.first_record + extent.skip
    first = max(begin, found)
    count = max(0, begin + extent.records - first)
    nothing = np.zeros(count, np.int64)
    base = extent.end - HEADER - FOOTER
    return RecordBlock(_NOTHING, nothing + HEADER, nothing, extent.shard, first, base, lost=True)
