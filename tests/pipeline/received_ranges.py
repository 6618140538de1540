"""Helpers that make received ranges of one small shard."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.shards.tfrecord import FrameScanner, frame
from streamrec.pipeline.fetch.range_queue import RangeRead
from streamrec.pipeline.lane.damage_policy import DamagePolicy
from streamrec.pipeline.lane.record_reader import RecordReader
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.reading.ranges import LaneRanges, RangeRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrec.pipeline.fetch.range_queue import RangeQueue, Shards
    from streamrec.plan.order.shard_order import Extent

DATA = [frame(b"x" * n) for n in (3, 0, 50, 7, 200, 1)]
SHARD = b"".join(DATA)
STARTS = [sum(map(len, DATA[:i])) for i in range(len(DATA) + 1)]
"""Begin of each record's frame in the shard, and the end of the last one."""
CRCS = [int.from_bytes(data[-4:], "little") for data in (DATA[0], *DATA)]
"""The CRC in a position before each record: of the record before, or of the first."""
END = Coordinates(9, 0, 0)


def at(extent: int, record: int, **more: Any) -> Coordinates:
    """Return the coordinates of a lane whose next record is that one of the shard."""
    return Coordinates(extent, STARTS[record], record, CRCS[record], **more)


def received(extent: Extent, start: int, stop: int, data: bytes = SHARD) -> RangeRead:
    memory = np.frombuffer(data[start:stop], np.uint8)
    return RangeRead(RangeRequest(extent, start, stop), memory, filled=len(memory), done=True)


def damaged(at: int) -> bytes:
    """Return the shard with one byte changed."""
    data = bytearray(SHARD)
    data[at] ^= 0xFF
    return bytes(data)


def nothing_more() -> LaneRanges:
    return LaneRanges(iter([]), {}, reach=1)


def coordinates(numbers: Iterable[int]) -> Coordinates:
    """Return the coordinates of a lane without sources."""
    return Coordinates(*map(int, numbers))  # type: ignore[arg-type]


def reader_of(
    queue: RangeQueue, shards: Shards, start: Coordinates, end: Coordinates = END
) -> RecordReader:
    """Return a reader that checks all CRCs and skips no damage."""
    return RecordReader(queue, shards, start, end, FrameScanner, DamagePolicy(Counter()))
