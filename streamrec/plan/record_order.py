"""Order by record: an index tells where chunks of the shards begin, and lanes get equal pieces.

The records of all epochs, each epoch's permuted chunks end to end, are one endless sequence. As
many of them as lie before an epoch's end are dealt out evenly: lane ``l`` has as many as there are
numbers ``k`` among them with ``k mod lanes = l``. So an epoch's lanes differ by one record at most,
and so do the lanes of any number of epochs. Which records a lane has is not a matter of that
remainder, though: they are a stretch of the epoch's sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.plan.order import Extent
from streamrec.plan.permutation import permutation, seed_of, stratified
from streamrec.plan.position import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from streamrec.plan.window import Windows

    Numbers = npt.NDArray[np.int64]

__all__ = ["ChunkTable", "ChunkWindows", "RecordOrder", "Start"]

CHUNKS = 0x4348554E4B53  # "CHUNKS": keeps the permutation of chunks apart from those of windows
GROWTH = (2,)
"""The first window of an epoch is a half. A lane's full one has only five chunks by default, and a
sixteenth, as by shard, would be one: its batches would have few classes."""
KEPT = 3
"""Epochs whose permutations are kept: lanes are at most about two epochs apart."""


class ChunkTable(Protocol):
    """All chunks of a dataset, shard after shard: int64 ``[chunks]`` each."""

    @property
    def shard(self) -> Numbers:
        """The chunk's shard."""
        ...

    @property
    def begin(self) -> Numbers:
        """The byte of the shard at which it begins."""
        ...

    @property
    def end(self) -> Numbers:
        """The byte behind it."""
        ...

    @property
    def first_record(self) -> Numbers:
        """The number in the shard of its first record."""
        ...

    @property
    def records(self) -> Numbers:
        """How many it holds; at least one."""
        ...


class Start(NamedTuple):
    """Where a lane begins to read to deliver a given record first."""

    extent: int
    offset: int
    """Bytes: the begin of a chunk."""
    record: int
    """The number in its shard of that chunk's first record."""
    window: int
    row: int
    """Records to leave out."""


class _Piece(NamedTuple):
    """A lane's part of an epoch: stretches of records, each by their numbers in the table."""

    units: Numbers
    """The unit of the permutation that each is a part of."""
    first: Numbers
    last: Numbers
    """One past the stretch's last record."""
    before: Numbers
    """int64 ``[stretches + 1]``: how many records the lane has before each."""


@dataclass(frozen=True, eq=False)
class RecordOrder:
    """An epoch is a permutation of the chunks; without shuffle they come as they stand.

    An extent is a chunk, or what of it is in the lane's piece; where chunks are joined it is what
    of a shard is in the lane's piece. Its number is ``epoch * stride`` and on: numbers have gaps.

    Args:
        table: The chunks.
        lanes: How many there are; at least one.
        shuffle: Whether each epoch has a permutation of its own.
        seed: Of the permutations.
        joins: Whether chunks of a shard that follow each other are one extent, as none is where
            they are shuffled. It changes the numbers of the extents, and not the order.
    """

    table: ChunkTable
    lanes: int
    shuffle: bool = False
    seed: int = 0
    joins: bool = True
    _before: Numbers = field(init=False, repr=False)
    """int64 ``[chunks + 1]``: how many records stand before each chunk, in the table's order."""
    _units: Numbers = field(init=False, repr=False)
    """The record at which each unit of the permutation begins, and the end."""
    _epochs: dict[int, tuple[Numbers, Numbers]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Number the records."""
        before = np.concatenate([[0], np.cumsum(self.table.records)]).astype(np.int64)
        object.__setattr__(self, "_before", before)
        shards = np.flatnonzero(np.diff(self.table.shard, prepend=-1))
        joins = self.joins and not self.shuffle
        units = np.append(before[shards], before[-1]) if joins else before
        object.__setattr__(self, "_units", units)

    def __repr__(self) -> str:
        return f"<RecordOrder of {self.records} records, {self.lanes} lanes>"

    @property
    def records(self) -> int:
        """Of an epoch."""
        return int(self._before[-1])

    @property
    def stride(self) -> int:
        """By how much the numbers of an epoch's extents are beyond those of the one before."""
        return max(1, len(self._units) - 1)

    @property
    def largest(self) -> int:
        """Bytes of the largest chunk; 0 if there is none."""
        return int((self.table.end - self.table.begin).max(initial=0))

    # -- how many records lanes have ---------------------------------------------------------------

    def before(self, lane: int, epoch: int) -> int:
        """How many records the lane has in the epochs before this one."""
        return -((lane - epoch * self.records) // self.lanes)

    def epoch_of(self, lane: int, number: int) -> int:
        """The epoch of the lane's record of that number, counted over all epochs."""
        return (number * self.lanes + lane) // self.records

    # -- extents -----------------------------------------------------------------------------------

    def extents(self, lane: int, number: int) -> Iterator[Extent]:
        """The lane's extents from that number on, without end."""
        epoch, index = divmod(number, self.stride)
        while self.records:
            order, before = self._sequence(epoch)
            begin, end, low, high = self._bounds(lane, epoch)
            for place in range(begin + index, end):
                unit = order[place]
                first = int(self._units[unit] + max(0, low - before[place]))
                last = int(self._units[unit + 1] - max(0, before[place + 1] - high))
                yield self._extent(epoch, place - begin, first, last)
            epoch, index = epoch + 1, 0

    def extent(self, lane: int, number: int) -> Extent:
        """The lane's first extent of that number or a higher one."""
        return next(self.extents(lane, number))

    def first(self, lane: int, epoch: int) -> int:  # noqa: ARG002 - all lanes count alike
        """The number of the lane's first extent in that epoch or, if it has none there, after."""
        return epoch * self.stride

    def reach(self, lane: int) -> int:  # noqa: ARG002 - all lanes count alike
        """By how much the numbers of extents rise until the lane may meet the same ones again."""
        return self.stride

    def check(self, lanes: Sequence[int], coordinates: Numbers) -> None:
        """Refuse places that lie outside of the extents that they name.

        Args:
            lanes: Whose places they are.
            coordinates: As in a position; where an extent's beginning is meant, 0 will do.

        Raises:
            MalformedPosition: No stream ever stood there.
        """
        for lane, place in zip(lanes, coordinates[: RECORD + 1].T.tolist(), strict=True):
            number, offset, record = place
            extent = self.extent(lane, number)
            last = extent.first_record + extent.skip + (extent.records or 0)
            inside = extent.begin <= offset <= (extent.end or 0)
            if offset and not (inside and extent.first_record <= record <= last):
                raise MalformedPosition(
                    f"the state's lane {lane} stands at byte {offset}, record {record}, where the "
                    f"index has no chunk of number {number}"
                )

    def start(self, lane: int, number: int, windows: ChunkWindows | None) -> Start:
        """Where to begin to read for the lane's record of that number, over all epochs."""
        epoch = self.epoch_of(lane, number)
        piece = self._piece(lane, epoch)
        wanted = number - self.before(lane, epoch)
        window = 0
        if windows is not None:
            window = windows.of_record(lane, epoch, wanted)
            begin = windows.begin(lane, epoch, window)
        else:
            begin = wanted
        place = int(np.searchsorted(piece.before, begin, "right")) - 1
        record = int(piece.first[place] + begin - piece.before[place])
        chunk = self._chunk(record)
        first = max(int(piece.first[place]), int(self._before[chunk]))
        table = self.table
        return Start(
            epoch * self.stride + place,
            int(table.begin[chunk]),
            int(table.first_record[chunk]),
            window,
            wanted - begin + record - first,
        )

    def weights(self, lane: int, epoch: int) -> tuple[Numbers, Numbers]:
        """Bytes of each of the lane's extents in an epoch, and how many records come before each.

        Only where an extent is a chunk: none are joined. Of a part of one they are estimated.
        """
        piece = self._piece(lane, epoch)
        chunks = piece.units
        sizes = self.table.end[chunks] - self.table.begin[chunks]
        return sizes * (piece.last - piece.first) // self.table.records[chunks], piece.before

    def parts(self, lane: int, epoch: int, begin: int, end: int) -> Numbers:
        """Of the lane's records from ``begin`` to before ``end`` of an epoch, those of each extent.

        Only where an extent is a chunk: none are joined.

        Returns:
            int64 ``[extents]``: how many, at least one.
        """
        _, before = self._sequence(epoch)
        low, high = self._cut(lane, epoch) + np.array([begin, end])
        first, last = np.searchsorted(before, low, "right"), np.searchsorted(before, high, "left")
        return np.diff(before[first:last], prepend=low, append=high)

    def _chunk(self, record: int) -> int:
        return int(np.searchsorted(self._before, record, "right")) - 1

    def _extent(self, epoch: int, place: int, first: int, last: int) -> Extent:
        begin, end, table = self._chunk(first), self._chunk(last - 1), self.table
        return Extent(
            epoch * self.stride + place,
            epoch,
            int(table.shard[begin]),
            int(table.begin[begin]),
            int(table.end[end]),
            int(table.first_record[begin]),
            first - int(self._before[begin]),
            last - first,
        )

    def _piece(self, lane: int, epoch: int) -> _Piece:
        """The records from ``low`` to before ``high`` of the epoch's sequence."""
        order, before = self._sequence(epoch)
        begin, end, low, high = self._bounds(lane, epoch)
        units = order[begin:end]
        first, last = self._units[units], self._units[units + 1]
        if len(units):
            first[0] += low - before[begin]
            last[-1] -= before[end] - high
        counted = np.concatenate([[0], np.cumsum(last - first)]).astype(np.int64)
        return _Piece(units, first, last, counted)

    def _bounds(self, lane: int, epoch: int) -> tuple[int, int, int, int]:
        """The lane's piece of the epoch's sequence: its units and its records, each from, to."""
        _, before = self._sequence(epoch)
        low, high = self._cut(lane, epoch), self._cut(lane + 1, epoch)
        begin = int(np.searchsorted(before, low, "right")) - 1
        return begin, int(np.searchsorted(before, high, "left")) if high > low else begin, low, high

    def _cut(self, lane: int, epoch: int) -> int:
        """How many of the epoch's records the lanes before this one have."""
        least, surplus = divmod(self.records, self.lanes)
        begin = epoch * self.records % self.lanes  # the first lane with one record more
        wrapped = max(0, begin + surplus - self.lanes)
        return lane * least + min(max(0, lane - begin), surplus - wrapped) + min(lane, wrapped)

    def _sequence(self, epoch: int) -> tuple[Numbers, Numbers]:
        """The units in the epoch's order, and how many records come before each."""
        epoch = epoch if self.shuffle else 0
        known = self._epochs
        if epoch not in known:
            while len(known) >= KEPT:
                del known[min(known)]
            order = np.arange(len(self._units) - 1, dtype=np.int64)
            if self.shuffle:
                order = permutation(len(order), seed_of(CHUNKS, self.seed, epoch))
            records = np.diff(self._units)[order]
            known[epoch] = order, np.concatenate([[0], np.cumsum(records)]).astype(np.int64)
        return known[epoch]

    # -- where a rank stands -----------------------------------------------------------------------

    def counts(self, lanes: Sequence[int], begin: int, end: int) -> Numbers:
        """How many records lanes have in the epochs from ``begin`` to before ``end``."""
        counts = [self.before(lane, end) - self.before(lane, begin) for lane in lanes]
        return np.array(counts, np.int64)


def taken(lanes: int, counts: Numbers | None, rows: int) -> Numbers:
    """How many records a rank's lanes have given when it has delivered so many rows.

    Args:
        lanes: The rank's lanes.
        counts: How many each has in the run, which differ by one at most; ``None``: no end.
        rows: What was delivered.
    """
    rounds, rest = divmod(rows, lanes)
    if counts is None or rounds < counts.min():
        return rounds + (np.arange(lanes) < rest).astype(np.int64)
    rounds = int(counts.min())
    longer = counts > rounds
    return rounds + (longer & (np.cumsum(longer) <= rows - rounds * lanes)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ChunkWindows:
    """The windows of all lanes, each of some consecutive extents of its lane.

    All is known from the index: a position needs nothing else, and no record is read to find it.

    Args:
        order: The extents.
        windows: How large windows are to be, and their permutations.
    """

    order: RecordOrder
    windows: Windows
    _bounds: dict[int, tuple[int, Numbers]] = field(default_factory=dict, repr=False)
    """By lane: an epoch, and the records before each of its windows and in all."""

    def begin(self, lane: int, epoch: int, number: int) -> int:
        """How many of the epoch's records the lane has before the window of that number."""
        return int(self._of(lane, epoch)[number])

    def of_record(self, lane: int, epoch: int, record: int) -> int:
        """The number of the window that holds that of the lane's records in the epoch."""
        return int(np.searchsorted(self._of(lane, epoch), record, "right")) - 1

    def opens(self, lane: int, epoch: int, number: int) -> int:
        """How many records the window takes."""
        bounds = self._of(lane, epoch)
        return int(bounds[number + 1] - bounds[number]) if number + 1 < len(bounds) else 0

    def takes(self, lengths: Numbers, missing: int) -> tuple[int, int]:
        """How many of these records the window takes, and how many fewer it lacks then."""
        count = min(len(lengths), missing)
        return count, count

    def lacks(self, missing: int) -> int:
        """Bytes that the window lacks, about."""
        table = self.order.table
        return missing * int((table.end - table.begin).sum()) // max(1, self.order.records)

    def permutation(
        self, lane: int, epoch: int, number: int, shards: npt.NDArray[np.int32]
    ) -> Numbers:
        """The order in which the window's records leave it: of all its chunks evenly.

        A batch has a few records of each lane. Were they drawn from the whole window, some would
        be of one chunk by chance, and neighbours in a shard are often alike.
        """
        if not self.windows.shuffles:
            return self.windows.permutation(lane, epoch, number, shards)
        begin = self.begin(lane, epoch, number)
        parts = self.order.parts(lane, epoch, begin, begin + len(shards))
        return stratified(parts, self.windows.seed_of(lane, epoch, number))

    def _of(self, lane: int, epoch: int) -> Numbers:
        known = self._bounds.get(lane)
        if known is None or known[0] != epoch:
            known = self._bounds[lane] = epoch, self._found(lane, epoch)
        return known[1]

    def _found(self, lane: int, epoch: int) -> Numbers:
        """A window takes extents as long as they fit, and one at least."""
        sizes, before = self.order.weights(lane, epoch)
        ends: list[int] = np.cumsum(sizes).tolist()  # there may be 200,000: lists are faster here
        places = [0]
        while (place := places[-1]) < len(ends):
            room = self.windows.size(lane, len(places) - 1, GROWTH)
            limit = (ends[place - 1] if place else 0) + room
            places.append(max(place + 1, bisect_right(ends, limit, place)))
        return before.take(places)
