"""Records of shards in runs, and numbers in few bytes, as an audit log has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

WIDEST = 9
"""Bytes of the longest varint, which has 63 bits."""
TOO_LARGE = 1 << 48
"""The least sum of numbers that no list of runs has."""
MOST_RECORDS = 1 << 24
"""The most records of a list."""


class RecordList(NamedTuple):
    """Records, sorted, in runs of successive ones of a shard: int64 ``[runs]`` each."""

    shards: Numbers
    first: Numbers
    counts: Numbers

    @classmethod
    def of(cls, shards: npt.NDArray[Any], records: npt.NDArray[Any]) -> RecordList:
        """Collect records; one that comes twice is in two runs."""
        order = np.lexsort((records, shards))
        shards, records = shards[order].astype(np.int64), records[order].astype(np.int64)
        # No shard has the number -1.
        is_first = np.diff(shards, prepend=-1) != 0
        begins = np.flatnonzero(is_first | (np.diff(records, prepend=-1) != 1))
        counts = np.diff(begins, append=len(shards))
        return cls(shards[begins], records[begins], counts)

    def encode(self) -> bytes:
        """Encode them as varints, of which the first is the number of bytes of all others.

        All shards come first, as distances from the run before; then the first record of each run,
        as the distance from the last record of the run before in the same shard; then the number of
        records of each run, minus 1.
        """
        same = np.diff(self.shards, prepend=-1) == 0
        last = np.roll(self.first + self.counts - 1, 1)
        columns = (
            np.diff(self.shards, prepend=0),
            np.where(same, self.first - last, self.first),
            self.counts - 1,
        )
        content = varints(np.concatenate(columns))
        return varints(np.array([len(content)])) + content

    @classmethod
    def decode(cls, content: bytes) -> RecordList:
        """Decode the varints that :meth:`encode` writes after their number of bytes.

        Raises:
            ValueError: It is something else.
        """
        numbers = from_varints(content)
        if len(numbers) % 3:
            raise ValueError("a list of runs is incomplete")
        steps, gaps, counts = numbers.reshape(3, -1)
        # As floats, whose sum does not wrap around: then no sum below does.
        if numbers.sum(dtype=np.float64) >= TOO_LARGE or counts.sum() + len(counts) > MOST_RECORDS:
            raise ValueError("records are too many, or their numbers too large")
        shards = np.cumsum(steps)
        # In a shard, the first record of a run is the sum of all gaps and lengths before it.
        begins = np.diff(shards, prepend=-1) != 0
        total = np.cumsum(gaps) + np.cumsum(counts) - counts
        before = np.where(begins, total - gaps, 0)
        first = total - np.maximum.accumulate(before) if len(total) else total
        return cls(shards, first, counts + 1)

    def pairs(self) -> tuple[Numbers, Numbers]:
        """Return the shard and the number of each record: int64 ``[records]`` each."""
        inside = np.arange(self.counts.sum()) - np.repeat(
            np.cumsum(self.counts) - self.counts, self.counts
        )
        return np.repeat(self.shards, self.counts), np.repeat(self.first, self.counts) + inside


def varints(numbers: Numbers) -> bytes:
    """Encode numbers from 0 up as varints (LEB128)."""
    limits = 1 << np.arange(7, 7 * WIDEST, 7)
    widths = np.searchsorted(limits, numbers, "right") + 1
    begins = np.cumsum(widths) - widths
    octets = np.empty(int(widths.sum()), np.uint8)
    for place in range(int(widths.max(initial=0))):
        has_one = widths > place
        more = (widths[has_one] > place + 1) << 7
        octets[begins[has_one] + place] = numbers[has_one] >> 7 * place & 0x7F | more
    return octets.tobytes()


def from_varints(content: bytes) -> Numbers:
    """Decode varints.

    Raises:
        ValueError: The last one is incomplete, or one is too long.
    """
    octets = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    if len(octets) and (not len(ends) or ends[-1] != len(octets) - 1):
        raise ValueError("a number is incomplete")
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    widths = ends - begins + 1
    if widths.max(initial=0) > WIDEST:
        raise ValueError("a number is too long")
    places = np.arange(len(octets)) - np.repeat(begins, widths)
    parts = (octets & 0x7F).astype(np.int64) << 7 * places
    return np.add.reduceat(parts, begins) if len(begins) else parts


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at a byte; return it and the byte after it.

    Raises:
        ValueError: It is incomplete or too long.
    """
    number = 0
    for place, byte in enumerate(content[at : at + WIDEST]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number is incomplete")
