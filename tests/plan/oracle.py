"""The order of docs/explanation/order.md, written down as plainly as it can be."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.order.mixture import DRAW, NOTHING
from streamrec.plan.order.permutation import (
    GOLDEN_GAMMA,
    MASK,
    MIX_1,
    MIX_2,
    WHOLE,
    permutation,
    seed_of,
)
from streamrec.plan.order.record_order import CHUNKS, GROWTH, PIECE
from streamrec.plan.order.window import BUCKETS, WINDOW, Buckets, Windows, records_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.plan.order.mixture import Draws
    from streamrec.plan.order.shard_order import ShardOrder

Record = tuple[int, int, int]
"""(epoch, shard, number)."""


@dataclass(frozen=True)
class Oracle:
    """Knows the records' lengths, and says in which order they must come."""

    shards: tuple[tuple[int, ...], ...]
    """The payload lengths of each shard's records."""
    order: ShardOrder
    windows: Windows | None = None
    keep: Callable[[int], bool] = lambda length: True
    """The filter, by a record's length."""
    buckets: Buckets | None = None

    def lane(self, lane: int, epochs: range) -> list[tuple[int, int, int]]:
        """(epoch, shard, record) of all that the lane delivers in these epochs."""
        out: list[tuple[int, int, int]] = []
        for epoch in epochs:
            records = self._lane_epoch(lane, epoch)
            first = len(out)
            out += records if self.windows is None else self._shuffled(records, lane, epoch, first)
        return out

    def rank(self, rank: int, world_size: int, epochs: range) -> list[tuple[int, int, int]]:
        """Return the records that one rank delivers, in order."""
        keyed = [
            ((number, lane), record)
            for lane in range(rank, self.order.lanes, world_size)
            for number, record in enumerate(self.lane(lane, epochs))
        ]
        return [record for _, record in sorted(keyed)]

    def _lane_epoch(self, lane: int, epoch: int) -> list[Record]:
        """Return the kept records of the lane's windows, from each open shard in turn."""
        left = [
            self._open_shard_epoch(open_shard, lane, epoch)
            for open_shard in self.order.divide(self.open_shards)
        ]
        out: list[Record] = []
        turn = 0
        while any(left):
            open_shard, size = left[turn % self.open_shards], 0
            limit = self.windows.turn(lane, turn) if self.windows is not None else 1
            while open_shard and size < limit:
                out.append(open_shard.pop(0))
                size += self._weight(out[-1]) + 16
            turn += 1
        return [record for record in out if self.keep(self._length(record))]

    def _open_shard_epoch(self, order: ShardOrder, lane: int, epoch: int) -> list[Record]:
        out = []
        number = order.first(lane, epoch)
        while (extent := order.extent(lane, number)).epoch == epoch:
            out += [(epoch, extent.shard, i) for i in range(len(self.shards[extent.shard]))]
            number += 1
        return out

    def _length(self, record: Record) -> int:
        _, shard, number = record
        return self.shards[shard][number]

    def _weight(self, record: Record) -> int:
        """Return a record's length, with what its shard counts for if it is the shard's first."""
        charge = 0 if self.windows is None or record[2] else self.windows.shard_bytes
        return self._length(record) + charge

    @property
    def open_shards(self) -> int:
        """Return the number of shards that each lane has open at once."""
        return 1 if self.windows is None else self.windows.open_shards

    def _left(self, lane: int, epoch: int, number: int, shards: list[int]) -> list[int]:
        """Return the order in which records of these shards leave a window."""
        assert self.windows is not None
        if self.open_shards == 1:
            own = np.array(shards, np.int32)
            plain: list[int] = self.windows.permutation(lane, epoch, number, own).tolist()
            return plain
        by_shard = sorted(range(len(shards)), key=lambda i: shards[i])
        seed = seed_of(WINDOW, self.windows.seed, epoch, lane, number)
        return [by_shard[i] for i in plainly_stratified(sorted(shards), seed)]

    def _shuffled(
        self, records: list[tuple[int, int, int]], lane: int, epoch: int, first: int
    ) -> list[tuple[int, int, int]]:
        assert self.windows is not None
        out: list[tuple[int, int, int]] = []
        number = 0
        while records:
            lengths = [self._length(record) for record in records]
            weights = np.array([self._weight(record) for record in records], np.int64)
            count = records_until(weights, self.windows.size(lane, number))
            drawn = self._left(lane, epoch, number, [shard for _, shard, _ in records[:count]])
            if self.buckets is not None:
                drawn = plainly_bucketed(
                    self.buckets, lane, first + len(out), lengths[:count], drawn
                )
            out += [records[i] for i in drawn]
            records, number = records[count:], number + 1
        return out


@dataclass(frozen=True)
class RecordOracle:
    """The order by record, with a list of every record and nothing computed."""

    shards: tuple[tuple[int, ...], ...]
    """The payload lengths of each shard's records."""
    chunk_bytes: int
    lanes: int
    shuffle: bool = False
    seed: int = 0
    windows: Windows | None = None
    keep: Callable[[int], bool] | None = None
    """The filter, by a record's length: nobody knows the counts, and windows are of bytes."""
    buckets: Buckets | None = None
    origin: int = 0
    """With a filter: the epoch at whose beginning all lanes began."""

    @property
    def records(self) -> int:
        return sum(len(lengths) for lengths in self.shards)

    def chunks(self) -> list[list[tuple[int, int]]]:
        """(shard, record) of each chunk."""
        out: list[list[tuple[int, int]]] = []
        for shard, lengths in enumerate(self.shards):
            room = 0
            for record, length in enumerate(lengths):
                if room <= 0:
                    out.append([])
                    room = self.chunk_bytes
                out[-1].append((shard, record))
                room -= length + 16
        return out

    def nbytes(self, records: list[tuple[int, int]]) -> int:
        return sum(self.shards[shard][record] + 16 for shard, record in records)

    def lane_epoch(self, lane: int, epoch: int) -> list[tuple[list[tuple[int, int]], int]]:
        """Return the lane's part of each chunk in an epoch, and about how many bytes that is."""
        chunks, turn = self.chunks(), (epoch - self.origin) % self.lanes
        if self.shuffle:
            drawn = epoch if self.keep is None else epoch - turn
            order = permutation(len(chunks), seed_of(CHUNKS, self.seed, drawn))
            chunks = [chunks[i] for i in order.tolist()]
        first = epoch * self.records
        counts = [
            sum(1 for k in range(first, first + self.records) if k % self.lanes == number)
            for number in range(self.lanes)
        ]
        piece = lane
        if self.keep is not None:
            counts.sort(reverse=True)
            piece = next(p for p in range(self.lanes) if self._owner(p, epoch) == lane)
        parts = self._parts(chunks, sum(counts[:piece]), counts[piece])
        if self.keep is not None and self.shuffle and turn:
            own = permutation(len(parts), seed_of(PIECE, self.seed, epoch, lane))
            parts = [parts[i] for i in own.tolist()]
        return parts

    def _owner(self, piece: int, epoch: int) -> int:
        """Return the lane that has a piece: counted on over the epochs, then turned."""
        divisor = gcd(self.lanes, self.records)
        lane = (piece + epoch * self.records) % self.lanes
        turns = (epoch - self.origin) // (self.lanes // divisor)
        return lane // divisor * divisor + (lane + turns) % divisor

    def _parts(
        self, chunks: list[list[tuple[int, int]]], low: int, count: int
    ) -> list[tuple[list[tuple[int, int]], int]]:
        out, at = [], 0
        for chunk in chunks:
            part = [r for i, r in enumerate(chunk, at) if low <= i < low + count]
            at += len(chunk)
            if part:
                least = 0 if self.windows is None else self.windows.shard_bytes
                out.append((part, max(least, self.nbytes(chunk) * len(part) // len(chunk))))
        return out

    def lane(self, lane: int, epochs: range) -> list[Record]:
        """All that the lane delivers in these epochs."""
        out: list[Record] = []
        for epoch in epochs:
            for number, window in enumerate(self.windowed(lane, epoch)):
                order = self._order(window, lane, epoch, number, len(out))
                out += [(epoch, *window[i]) for i in order]
        return out

    def _order(
        self, window: list[tuple[int, int]], lane: int, epoch: int, number: int, first: int
    ) -> list[int]:
        """Return the order in which a window's records leave it."""
        if self.windows is None:
            return list(range(len(window)))
        if self.keep is None and self.shuffle:
            numbered = {r: i for i, chunk in enumerate(self.chunks()) for r in chunk}
            seed = seed_of(WINDOW, self.windows.seed, epoch, lane, number)
            drawn = plainly_stratified([numbered[record] for record in window], seed)
        else:
            shards = np.zeros(len(window), np.int32)
            drawn = self.windows.permutation(lane, epoch, number, shards).tolist()
        if self.buckets is None:
            return drawn
        lengths = [self.shards[shard][record] for shard, record in window]
        return plainly_bucketed(self.buckets, lane, first, lengths, drawn)

    def windowed(self, lane: int, epoch: int) -> list[list[tuple[int, int]]]:
        """Its windows, in the order in which their records come."""
        parts = self.lane_epoch(lane, epoch)
        if self.keep is not None:
            every = [r for part, _ in parts for r in part if self.keep(self.shards[r[0]][r[1]])]
            return self._in_bytes(every, lane)
        if self.windows is None:
            return [part for part, _ in parts]
        out: list[list[tuple[int, int]]] = []
        while parts:
            room = self.windows.size(lane, len(out), GROWTH)
            count, size = 1, parts[0][1]
            while count < len(parts) and size + parts[count][1] <= room:
                size += parts[count][1]
                count += 1
            out.append([record for part, _ in parts[:count] for record in part])
            parts = parts[count:]
        return out

    def _in_bytes(self, records: list[tuple[int, int]], lane: int) -> list[list[tuple[int, int]]]:
        if self.windows is None:
            return [records]
        out: list[list[tuple[int, int]]] = []
        while records:
            lengths = np.array([self.shards[shard][i] for shard, i in records], np.int64)
            count = records_until(lengths, self.windows.size(lane, len(out)))
            out.append(records[:count])
            records = records[count:]
        return out

    def rank(self, rank: int, world_size: int, epochs: range) -> list[Record]:
        """Return the records that one rank delivers, in order."""
        keyed = [
            ((number, lane), record)
            for lane in range(rank, self.lanes, world_size)
            for number, record in enumerate(self.lane(lane, epochs))
        ]
        return [record for _, record in sorted(keyed)]


def number(place: int, seed: int) -> int:
    """SplitMix64's output, one at a time."""
    z = (seed + (place + 1) * GOLDEN_GAMMA) & MASK
    z = (z ^ (z >> 30)) * MIX_1 & MASK
    z = (z ^ (z >> 27)) * MIX_2 & MASK
    return z ^ (z >> 31)


def plainly_stratified(chunks: Sequence[int], seed: int) -> list[int]:
    """Return the order in which a window of these chunks leaves (docs/explanation/order.md)."""
    count, points, place = len(chunks), {}, 0
    for chunk in dict.fromkeys(chunks):
        own = [i for i, other in enumerate(chunks) if other == chunk]
        width = WHOLE // len(own)
        for rank, i in enumerate(sorted(own, key=lambda i: number(i, seed))):
            points[i] = rank * width + number(count + place, seed) % width
            place += 1
    return sorted(range(count), key=lambda i: points[i])


def plainly_bucketed(
    buckets: Buckets, lane: int, first: int, lengths: Sequence[int], drawn: list[int]
) -> list[int]:
    """Return the order in which a window's records leave it, as docs/explanation/order.md says."""
    places = range(first, first + len(lengths))
    wanted = [bucket_of(buckets, (i * buckets.lanes + lane) // buckets.rows) for i in places]
    by_length = sorted(drawn, key=lambda record: lengths[record])
    bucket = dict(zip(by_length, sorted(wanted), strict=True))
    left, order = list(drawn), []
    for asked in wanted:
        order.append(next(record for record in left if bucket[record] == asked))
        left.remove(order[-1])
    return order


def bucket_of(buckets: Buckets, batch: int) -> int:
    """Return the bucket of a global batch."""
    cycle, place = divmod(batch, buckets.count)
    seed, first = seed_of(BUCKETS, buckets.seed), cycle * buckets.count
    return sorted(range(buckets.count), key=lambda k: number(first + k, seed))[place]


def plainly_drawn(draws: Draws, lane: int, epoch: int, n: int, ended: set[int]) -> int:
    """Make one draw, as docs/explanation/order.md describes it."""
    record = n * draws.lanes + lane
    weights = [w for first, w in draws.phases if first <= record][-1]
    left = [c for c, weight in enumerate(weights) if weight]
    attempt = 0
    while left:
        hashed = number(n, seed_of(DRAW, draws.seed, epoch, lane, attempt))
        total, sum_ = sum(Fraction(weights[c]) for c in left), Fraction(0)
        for component in left:
            sum_ += Fraction(weights[component])
            if hashed < int((1 << 64) * sum_ / total):
                break
        if component not in ended:
            return component
        left.remove(component)
        attempt += 1
    return NOTHING
