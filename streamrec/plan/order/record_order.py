"""The order by record: an index tells where chunks of the shards begin, and lanes get equal pieces.

The records of all epochs, each epoch's permuted chunks end to end, are one endless sequence. Up to
the end of any epoch, lane ``l`` has as many records as there are numbers ``k`` in the sequence with
``k mod lanes = l``. So the lanes of an epoch, and of any number of epochs, differ by one record at
most. Only the count follows from that remainder: the records themselves are a stretch of the
epoch's sequence.

Where a stage makes the counts of what lanes deliver unknown, they come to their next epoch at
different times. So that no record comes more often than others for ever, lanes then turn as those
by shard do: in each group of as many epochs as there are lanes, every lane has every record once.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import count
from math import gcd
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.order.permutation import LanePieces, permutation, seed_of, stratified
from streamrec.plan.order.shard_order import KEPT, Extent, ShardOrder
from streamrec.values.columns import offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.plan.order.coordinates import Structured
    from streamrec.plan.order.shard_order import ShardPart
    from streamrec.plan.order.window import Windows
    from streamrec.values.record_rows import Chunks

    Numbers = npt.NDArray[np.int64]

CHUNKS = 0x4348554E4B53  # "CHUNKS": separates the permutation of chunks from those of windows
PIECE = 0x5049454345  # "PIECE"
GROWTH = (2,)
"""Divisors of the first windows of an epoch. A full window has only five chunks by default, and a
sixteenth of it, as by shard, would be a single one: its batches would have few classes."""


class _LanePiece(NamedTuple):
    """A lane's part of an epoch: stretches of records, which are numbered as in the table."""

    units: Numbers
    """The unit of the permutation of which each stretch is a part."""
    first: Numbers
    """The first record of each stretch."""
    last: Numbers
    """The record after each stretch."""
    before: Numbers
    """int64 ``[stretches + 1]``: the lane's records before each stretch, and in all."""


@dataclass(frozen=True, eq=False)
class RecordOrder:
    """An order whose epochs are permutations of chunks; without shuffle, chunks keep their order.

    An extent is the part of a chunk, or of a shard where chunks are joined, that lies in the lane's
    piece. The extents of an epoch are numbered from ``epoch * stride`` on, so numbers have gaps.

    Args:
        table: The chunks.
        lanes: The number of lanes; at least one.
        shuffle: ``True`` to permute the chunks anew in each epoch.
        seed: The seed of the permutations.
        joins: ``True`` to join successive chunks of a shard into one extent, unless they are
            shuffled. It changes the numbers of extents, but not the order.
        origin: The epoch at whose beginning all lanes began; ``None``: they do not turn.
        shard_parts: The records that the order has of a shard, by its number; of others it has all.
    """

    table: Chunks
    lanes: int
    shuffle: bool = False
    seed: int = 0
    joins: bool = True
    origin: int | None = None
    shard_parts: Mapping[int, ShardPart] = field(default_factory=dict)
    _before: Numbers = field(init=False, repr=False)
    """int64 ``[chunks + 1]``: the records before each chunk, and in all, in the table's order."""
    _units: Numbers = field(init=False, repr=False)
    """The first record of each unit, and the number of all records."""
    _own: Numbers = field(init=False, repr=False)
    """The units that are permuted: all, but for those that lie outside the shards' parts."""
    _sequence: Callable[[int], tuple[Numbers, Numbers]] = field(init=False, repr=False)
    """Returns the units in an epoch's order, and the number of records before each."""
    _times: Callable[[int], npt.NDArray[np.float64]] = field(init=False, repr=False)
    """Returns when an epoch reads each chunk's beginning: from 0 to below 1."""

    def __post_init__(self) -> None:
        """Count the records before each chunk and each unit."""
        before = offsets_of(self.table.records)
        object.__setattr__(self, "_before", before)
        # Where another shard begins; no shard has the number -1.
        shards = np.flatnonzero(np.diff(self.table.shard, prepend=-1))
        joins = self.joins and not self.shuffle
        units = np.append(before[shards], before[-1]) if joins else before
        own = np.arange(len(units) - 1, dtype=np.int64)
        if self.shard_parts:
            units, own = self._cut_units(units, before)
        object.__setattr__(self, "_units", units)
        object.__setattr__(self, "_own", own)
        object.__setattr__(self, "_sequence", lru_cache(KEPT)(self._permute))
        object.__setattr__(self, "_times", lru_cache(KEPT)(self._begins))

    def __repr__(self) -> str:
        return f"<RecordOrder of {self.records} records, {self.lanes} lanes>"

    def since(self, origin: int) -> RecordOrder:
        """Return the order of lanes that all began at that epoch; they turn if these do."""
        return self if self.origin in (None, origin) else replace(self, origin=origin)

    @cached_property
    def records(self) -> int:
        """The number of records in an epoch."""
        return int(np.diff(self._units)[self._own].sum())

    @property
    def period(self) -> int:
        """Epochs after which the lanes have the same records again, if nothing is shuffled."""
        return self.lanes // gcd(self.lanes, self.records)

    @property
    def stride(self) -> int:
        """The distance between the numbers of the first extents of successive epochs."""
        return max(1, len(self._own))

    @property
    def largest(self) -> int:
        """Bytes of the largest chunk; 0 if there is none."""
        return int((self.table.end - self.table.begin).max(initial=0))

    # -- how many records lanes have ---------------------------------------------------------------

    def before(self, lane: int, epoch: int) -> int:
        """Return the number of the lane's records in the epochs before this one."""
        # Rounded up, as a negative number is rounded down.
        return -((lane - epoch * self.records) // self.lanes)

    def epoch_of(self, lane: int, number: int) -> int:
        """Return the epoch of the lane's record of that number, counted over all epochs."""
        return (number * self.lanes + lane) // self.records

    # -- extents -----------------------------------------------------------------------------------

    def extents(self, lane: int, number: int) -> Iterator[Extent]:
        """Iterate over the lane's extents from that number on, without end."""
        epoch, index = divmod(number, self.stride)
        # An epoch without records would be followed by others without end.
        while self.records:
            order, before = self._sequence(epoch)
            _, _, low, high = self._bounds(lane, epoch)
            for number, place in enumerate(self._own_places(lane, epoch)[index:], index):
                unit = order[place]
                first = int(self._units[unit] + max(0, low - before[place]))
                last = int(self._units[unit + 1] - max(0, before[place + 1] - high))
                yield self._extent(epoch, number, first, last)
            epoch, index = epoch + 1, 0

    def extent(self, lane: int, number: int) -> Extent:
        """Return the lane's first extent of that number or a higher one."""
        return next(self.extents(lane, number))

    def first(self, lane: int, epoch: int) -> int:  # noqa: ARG002 - all lanes count alike
        """Return the number of the lane's first extent in that epoch, else in a later one."""
        return epoch * self.stride

    def reach(self, lane: int) -> int:  # noqa: ARG002 - all lanes count alike
        """Return the number of extents after which the lane may meet the same ones again."""
        return self.stride

    def times(self, epoch: int, shard: int, offset: int, size: int | None) -> Iterator[float]:  # noqa: ARG002 - by shard the size is needed
        """Yield when epochs read a byte; see :meth:`ShardOrder.times`."""
        first, last = self._shard_chunks.item(shard), self._shard_chunks.item(shard + 1)
        inside = int(np.searchsorted(self.table.begin[first:last], offset, "right"))
        # A last shard without chunks begins after all of them.
        chunk = min(max(first, first + inside - 1), len(self.table.shard) - 1)
        return (number + self._times(number).item(chunk) for number in count(epoch))

    def check(self, lanes: Sequence[int], coordinates: Structured) -> None:
        """Check that the coordinates of lanes lie inside of the extents that they name.

        Args:
            lanes: The lanes.
            coordinates: Those of a position; an offset of 0 means the extent's beginning.

        Raises:
            MalformedPosition: They do not, so no stream has saved them.
        """
        for lane, numbers in zip(lanes, coordinates.tolist(), strict=True):
            number, offset, record = numbers[:3]
            extent = self.extent(lane, number)
            last = extent.first_record + extent.skip + (extent.records or 0)
            inside = extent.begin <= offset <= (extent.end or 0)
            if offset and not (inside and extent.first_record <= record <= last):
                raise MalformedPosition(
                    f"the state's lane {lane} stands at byte {offset}, record {record}, where the "
                    f"index has no chunk of number {number}; give the state as it was saved"
                )

    def start(self, lane: int, number: int, windows: ChunkWindows | None) -> Coordinates:
        """Return where to start reading for the lane's record of that number, over all epochs."""
        epoch = self.epoch_of(lane, number)
        piece = self._piece(lane, epoch)
        wanted = number - self.before(lane, epoch)
        window = 0
        if windows is not None:
            window = windows.of_record(lane, epoch, wanted)
            begin = windows.begin(lane, epoch, window)
        else:
            begin = wanted
        # Only beginnings of chunks have known offsets. So reading begins at one, and `row` says how
        # many records before the right one are dropped.
        place = int(np.searchsorted(piece.before, begin, "right")) - 1
        record = int(piece.first[place] + begin - piece.before[place])
        chunk = self._chunk(record)
        first = max(int(piece.first[place]), int(self._before[chunk]))
        table = self.table
        return Coordinates(
            epoch * self.stride + place,
            int(table.begin[chunk]),
            int(table.first_record[chunk]),
            window=window,
            row=wanted - begin + record - first,
        )

    def weights(self, lane: int, epoch: int) -> tuple[Numbers, Numbers]:
        """Return the bytes of each of the lane's extents in an epoch, and the records before each.

        Chunks must not be joined. The bytes of a part of a chunk are estimated.
        """
        order, before = self._sequence(epoch)
        begin, end, low, high = self._bounds(lane, epoch)
        counted = before[begin : end + 1] - low
        counted[0], counted[-1] = 0, high - low
        sizes = self._unit_bytes[order[begin:end]]
        # A lane's piece may begin and end within a unit.
        for place in {0, end - begin - 1} if end > begin else ():
            records = counted[place + 1] - counted[place]
            sizes[place] = self._bytes_of(self._unit_chunks[order[begin + place]], records)
        return sizes, counted

    def parts(self, lane: int, epoch: int, begin: int, end: int) -> Numbers:
        """Count, by extent, the lane's records from ``begin`` to before ``end`` of an epoch.

        Chunks must not be joined.

        Returns:
            int64 ``[extents]``: at least one record each.
        """
        _, before = self._sequence(epoch)
        low, high = self._pieces.cut(lane, epoch) + np.array([begin, end])
        first, last = np.searchsorted(before, low, "right"), np.searchsorted(before, high, "left")
        return np.diff(before[first:last], prepend=low, append=high)

    def records_at(self, lane: int, epoch: int, numbers: Numbers) -> Numbers:
        """Return the records, numbered as in the table, at these places of the lane's epoch."""
        order, before = self._sequence(epoch)
        places = self._pieces.bounds(lane, epoch)[0] + numbers
        at = np.searchsorted(before, places, "right") - 1
        return self._units[order[at]] + places - before[at]

    def place_of(self, record: int, epoch: int) -> tuple[int, int]:
        """Return the lane that has a record in an epoch, and the record's place in it.

        It is the inverse of :meth:`records_at`, for lanes that do not turn.
        """
        unit = int(np.searchsorted(self._units, record, "right")) - 1
        order, before = self._sequence(epoch)
        place = int(before[np.flatnonzero(order == unit)[0]] + record - self._units[unit])
        cut = self._pieces.cut
        lane = bisect_right(range(self.lanes), place, key=lambda lane: cut(lane, epoch)) - 1
        return lane, place - cut(lane, epoch)

    def chunk_places(self, records: Numbers) -> tuple[Numbers, Numbers]:
        """Return the chunk of each record, and the number of records before it in the chunk."""
        chunks = np.searchsorted(self._before, records, "right") - 1
        return chunks, records - self._before[chunks]

    def record_number(self, shard: int, record: int) -> int | None:
        """Return the number in the table of a shard's record; ``None``: the order does not have it.

        It is the inverse of :meth:`chunk_places`.
        """
        table = self.table
        first, last = np.searchsorted(table.shard, [shard, shard + 1]).tolist()
        begin, count = (0, int(self._before[last] - self._before[first]))
        if shard in self.shard_parts:
            begin, count, _ = self.shard_parts[shard]
        return int(self._before[first]) + record if 0 <= record - begin < count else None

    def record_numbers(self, shards: Numbers, records: Numbers) -> Numbers:
        """Return the numbers in the table of the shards' records, all of which there must be."""
        numbers: Numbers = self._before[self._shard_chunks[shards]] + records
        return numbers

    @cached_property
    def _shard_chunks(self) -> Numbers:
        """The number of the first chunk of each shard, and of all chunks."""
        shards = int(self.table.shard.max(initial=-1)) + 2
        return np.searchsorted(self.table.shard, np.arange(shards)).astype(np.int64)

    @cached_property
    def _unit_bytes(self) -> Numbers:
        """The bytes of each unit, which is a chunk or a part of one."""
        return self._bytes_of(self._unit_chunks, np.diff(self._units))

    def _bytes_of(self, chunks: Numbers, records: Numbers) -> Numbers:
        """Return the bytes of so many records of each chunk."""
        sizes: Numbers = self.table.end[chunks] - self.table.begin[chunks]
        return sizes * records // self.table.records[chunks]

    @cached_property
    def _unit_chunks(self) -> Numbers:
        """The chunk in which each unit begins."""
        return np.searchsorted(self._before, self._units[:-1], "right") - 1

    def _chunk(self, record: int) -> int:
        return int(np.searchsorted(self._before, record, "right")) - 1

    def _cut_units(self, units: Numbers, before: Numbers) -> tuple[Numbers, Numbers]:
        """Cut units where the parts of shards begin and end; return them, and which are inside."""
        shards, chunks = np.unique(self.table.shard, return_index=True)
        firsts, ends = before[chunks], np.append(before[chunks[1:]], before[-1:])
        for place, shard in enumerate(shards.tolist()):
            if shard in self.shard_parts:
                firsts[place] += self.shard_parts[shard].first
                ends[place] = firsts[place] + self.shard_parts[shard].records
        units = np.unique(np.concatenate([units, firsts, ends]))
        begun, ended = (np.searchsorted(cuts, units[:-1], "right") for cuts in (firsts, ends))
        return units, np.flatnonzero(begun > ended)

    def _extent(self, epoch: int, place: int, first: int, last: int) -> Extent:
        begin, end, table = self._chunk(first), self._chunk(last - 1), self.table
        return Extent(
            number=epoch * self.stride + place,
            epoch=epoch,
            shard=int(table.shard[begin]),
            begin=int(table.begin[begin]),
            end=int(table.end[end]),
            first_record=int(table.first_record[begin]),
            skip=first - int(self._before[begin]),
            records=last - first,
            next_record=int(table.first_record[end] + table.records[end]),
        )

    def _piece(self, lane: int, epoch: int) -> _LanePiece:
        """Return the lane's stretches of records in the epoch's sequence."""
        order, before = self._sequence(epoch)
        begin, end, low, high = self._bounds(lane, epoch)
        units = order[begin:end]
        first, last = self._units[units], self._units[units + 1]
        if len(units):
            # A lane's piece may begin and end within a unit.
            first[0] += low - before[begin]
            last[-1] -= before[end] - high
        counted = offsets_of(last - first)
        return _LanePiece(units, first, last, counted)

    def _own_places(self, lane: int, epoch: int) -> list[int]:
        """Return the places of the lane's units in the epoch's sequence, in the lane's order."""
        begin, end, *_ = self._bounds(lane, epoch)
        places = np.arange(begin, end)
        if self.shuffle and self.origin is not None and (epoch - self.origin) % self.lanes:
            # The sequence is that of the epoch with which the group began.
            places = places[permutation(len(places), seed_of(PIECE, self.seed, epoch, lane))]
        own: list[int] = places.tolist()
        return own

    @cached_property
    def _pieces(self) -> LanePieces:
        return LanePieces(self.records, self.lanes, self.origin)

    def _bounds(self, lane: int, epoch: int) -> tuple[int, int, int, int]:
        """Return the bounds of the lane's piece of the epoch: in units, then in records."""
        _, before = self._sequence(epoch)
        low, high = self._pieces.bounds(lane, epoch)
        begin = int(np.searchsorted(before, low, "right")) - 1
        return begin, int(np.searchsorted(before, high, "left")) if high > low else begin, low, high

    def _permute(self, epoch: int) -> tuple[Numbers, Numbers]:
        order = self._own
        if self.shuffle:
            # All epochs of a group have the order of its first one: the lanes turn within that.
            since = 0 if self.origin is None else (epoch - self.origin) % self.lanes
            order = order[permutation(len(order), seed_of(CHUNKS, self.seed, epoch - since))]
        return order, offsets_of(np.diff(self._units)[order])

    def _begins(self, epoch: int) -> npt.NDArray[np.float64]:
        order, before = self._sequence(epoch)
        unit = np.searchsorted(self._units, self._before[:-1], "right") - 1
        begins = before[:-1].copy()
        for lane in range(0 if self.origin is None else self.lanes):
            _, _, low, high = self._bounds(lane, epoch)
            places = self._own_places(lane, epoch)
            parts = np.minimum(before[1:][places], high) - np.maximum(before[:-1][places], low)
            # A unit at the edge belongs to the lane that has its first record.
            inside = np.array([before[place] >= low for place in places], np.bool_)
            begins[np.array(places, np.int64)[inside]] = (np.cumsum(parts) - parts)[inside]
        # From the epoch's order back to that of the table.
        of_units = np.zeros(len(self._units) - 1, np.int64)
        of_units[order] = begins
        records = of_units[unit] + self._before[:-1] - self._units[unit]
        times: npt.NDArray[np.float64] = records * self.lanes / self.records % 1
        return times

    # -- where a rank stands -----------------------------------------------------------------------

    def counts(self, lanes: Sequence[int], begin: int, end: int) -> Numbers:
        """Return the records of each lane in the epochs from ``begin`` to before ``end``."""
        counts = [self.before(lane, end) - self.before(lane, begin) for lane in lanes]
        return np.array(counts, np.int64)


@dataclass(frozen=True, eq=False)
class ChunkWindows:
    """The windows of all lanes, each made of consecutive extents of its lane.

    They follow from the index: no record is read to find the window of a position.

    Args:
        order: The order of the extents.
        windows: The sizes of windows, and their permutations.
    """

    order: RecordOrder
    windows: Windows
    _bounds: dict[int, tuple[int, Numbers]] = field(default_factory=dict, repr=False)
    """For each lane an epoch, and the records before each of its windows and in all."""

    def begin(self, lane: int, epoch: int, number: int) -> int:
        """Return the number of the lane's records in the epoch before the window of that number."""
        return int(self._of(lane, epoch)[number])

    def of_record(self, lane: int, epoch: int, record: int) -> int:
        """Return the number of the window that holds that record of the lane in the epoch."""
        return int(np.searchsorted(self._of(lane, epoch), record, "right")) - 1

    def opens(self, lane: int, epoch: int, number: int) -> int:
        """Return the number of records in the window."""
        bounds = self._of(lane, epoch)
        return int(bounds[number + 1] - bounds[number]) if number + 1 < len(bounds) else 0

    def takes(self, lengths: Numbers, missing: int) -> tuple[int, int]:
        """Return how many of these records the window takes, and by how much it then lacks less."""
        count = min(len(lengths), missing)
        return count, count

    def lacks(self, missing: int) -> int:
        """Return about how many bytes the window lacks, for ``missing`` records."""
        return missing * self._bytes // max(1, self.order.records)

    @cached_property
    def _bytes(self) -> int:
        # Kept: lanes ask often, and the sum of a million takes a millisecond.
        table = self.order.table
        return int((table.end - table.begin).sum())

    def permutation(
        self, lane: int, epoch: int, number: int, shards: npt.NDArray[np.int32]
    ) -> Numbers:
        """Return the order in which the window's records leave it, evenly from all its chunks."""
        # A batch has a few records of each lane. Drawn from the whole window, some would be of one
        # chunk by chance, and neighbours in a shard are often alike.
        if not self.windows.shuffles:
            return self.windows.permutation(lane, epoch, number, shards)
        begin = self.begin(lane, epoch, number)
        parts = self.order.parts(lane, epoch, begin, begin + len(shards))
        return stratified(parts, self.windows.seed_of(lane, epoch, number))

    def _of(self, lane: int, epoch: int) -> Numbers:
        # One epoch is kept for each lane, as lanes go on and do not come back.
        bounds = self._bounds.get(lane)
        if bounds is None or bounds[0] != epoch:
            bounds = self._bounds[lane] = epoch, self._window_bounds(lane, epoch)
        return bounds[1]

    def _window_bounds(self, lane: int, epoch: int) -> Numbers:
        """Group extents into windows: each takes extents as long as they fit, and at least one."""
        sizes, before = self.order.weights(lane, epoch)
        sizes = np.maximum(sizes, self.windows.shard_bytes)
        ends = np.cumsum(sizes)
        starts, begins = ends - sizes, [0]
        for number in range(len(GROWTH) + 1):
            if (begin := begins[-1]) < len(ends):
                room = self.windows.size(lane, number, GROWTH)
                after = int(np.searchsorted(ends, starts[begin] + room, "right"))
                begins.append(max(begin + 1, after))
        # All others are full. There may be 200,000: a table says what comes after each beginning.
        room = self.windows.size(lane, len(GROWTH) + 1, GROWTH)
        fits = np.searchsorted(ends, starts + room, "right")
        after_each = np.maximum(fits, np.arange(1, len(ends) + 1))
        while (begin := begins[-1]) < len(ends):
            begins.append(after_each.item(begin))
        return before.take(begins)


Order: TypeAlias = ShardOrder | RecordOrder
"""An assignment of a dataset's records to lanes: by shard, or (with an index) by record."""
