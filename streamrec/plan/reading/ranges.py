"""The byte ranges to request, and the memory that they may take."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Self

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.plan.order.shard_order import Extent

KIB, MIB = 1 << 10, 1 << 20
SMALLEST_FIRST_RANGE = 64 * KIB
LARGEST_FIRST_RANGE = 512 * KIB
MOST_FOR_FIRST_RANGES = 12 * MIB
"""Bytes of the first ranges of all lanes, beyond which their size is halved, but once at most: each
may have to hold the next record. The first batch waits for them, and 48 of 512 KiB take 30 ms of
CPU time more to receive than 48 of 256 KiB."""
LARGEST_FIRST_SHARD = 4 * MIB
"""Bytes of a lane's first shard that one request reads: several would read more in less time."""
LARGEST_RANGE = 8 * MIB
"""A request of 8 MiB is so long that its latency no longer shows in its rate."""
LARGEST_READ_AHEAD = 768 * MIB
"""The need of a link of 2 GB/s to a store where a range of 8 MiB takes a fifth of a second: 400 MB
are in flight, each lane is using up a range, and lanes reach the ends of theirs at different times.
With 512 MiB, in ranges of 4 MiB, the rate was a fifth to a quarter lower."""
LARGEST_READ_AHEAD_NEAR = 256 * MIB
"""The same for files on this machine. More would first have to be touched, at a fraction of the
speed of reused memory, and there is no round trip that hides it."""
FIRST_READ_AHEAD = 128 * MIB
"""The read-ahead until the consumer is seen to need more. Reading further ahead than it needs costs
it time: to touch new memory, and for bytes that a stopped job never uses."""
FIRST_READ_AHEAD_NEAR = 8 * MIB
"""The same for files on this machine, and up to 8 lanes. A range of a file comes at once, so that
a consumer which needs more loses little until it is seen to wait. A feeder's client that takes one
batch and leaves uses hardly any of it: after a batch of 5 MB, 17 MB have been read where 96 MiB at
first had read 58."""
FIRST_A_LANE_NEAR = 1 * MIB
"""The same for each of more lanes: with 8 MiB, 48 lanes wait in turn for small ranges, and the
first 500 MB take a fifth longer."""
LARGEST_RESERVE = 128 * MIB
PROBE = 4 * KIB
"""Bytes of a probe: the beginning of a shard, which tells whether it is compressed."""
WITHIN_RECORD = 4 * MIB
"""Bytes of a request within a record that is larger than its lane's ranges. The batch waits for the
whole record, so that several connections read it together."""
A_BIT_LARGER = 9 / 8
"""What a shard of unknown size may have more than the one before it: the shards of a dataset are
alike, and not equal."""
MOST_AT_ONCE = 96
"""Ranges of full size that the read-ahead holds, for up to 48 lanes. With fewer and larger ones,
more of it would be bytes that lanes are using up; more and smaller ones cost more CPU time a
byte."""
A_LANE_FAR = 2
"""The same for each lane: if some have no room for a range, all others wait for them in turn."""
A_LANE_NEAR = 3
"""The same for each lane of files on this machine, which have no latency to hide: the range in use,
the one after it, and the one that is being read. With two, lanes that reach the ends of their
ranges together wait together. As many tiny ranges are enough, until the consumer is seen to wait:
else 30 steps over 200 tiny records in one shard read it 118 times, for 2 ms of CPU time a step."""
FEWEST_AT_ONCE = 12
"""The same for few lanes of such files: disks and network file systems have some latency."""
GROWTH = 4
"""The growth of a lane's ranges, each this many times the one before, up to the plan's size."""


@dataclass(frozen=True, slots=True)
class RangeMemory:
    """The memory that lanes may take for ranges."""

    share: int
    """Bytes that each lane may always take: its part of the windows, and its first range."""
    ahead: int
    """Bytes that all lanes together may take beyond their shares."""

    def beyond(self, taken: float) -> float:
        """Return the bytes of a lane that are beyond its share."""
        return max(0.0, taken - self.share)

    def reach(self, taken: float, beyond: float) -> float:
        """Return the bytes that a lane may take at most.

        Args:
            taken: The bytes that the lane has.
            beyond: The bytes that all lanes together have beyond their shares.
        """
        return max(0.0, self.share - taken) + max(0.0, self.ahead - beyond)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A division of the budget.

    ``total = reserve + windows + lanes x first_range + speculative``

    The reserve and the lanes' shares are set aside first: read-ahead that took all memory would
    leave none for the batch that would free some.
    """

    total: int
    reserve: int
    """Bytes for the batch being decoded, waiting batches, and those on the engine's socket."""
    windows: int
    """Bytes for the shuffle windows of the rank's lanes."""
    lanes: int
    """The rank's lanes; where those have several shards open at once, the open shards."""
    first_range: int
    """Bytes of a lane's first range, a power of two; every lane may always have one."""
    range_size: int
    """Bytes that ranges grow to, a power of two."""
    read_ahead: int = LARGEST_READ_AHEAD
    """The most bytes read ahead of windows and first ranges, however large the budget is."""
    first_read_ahead: int = FIRST_READ_AHEAD
    """The bytes of it until the consumer is seen to need more."""
    first_tiny_ranges: int = sys.maxsize
    """The most tiny ranges of a lane until then. A store's latency is hidden by many."""
    episodes: int = 0
    """Bytes, beside the total, for pictures of episodes that are kept from batch to batch."""

    @property
    def speculative(self) -> int:
        """Bytes for reading ahead."""
        return self.total - self.reserve - self.windows - self.lanes * self.first_range

    @property
    def waiting(self) -> int:
        """Bytes of the reserve that decoded batches may take while they wait."""
        return 3 * self.reserve // 8

    @property
    def decoded(self) -> int:
        """Bytes that decoded batches may hold until the consumer has the next one."""
        # Their sizes are estimates at first, by which ``waiting`` bounds them; these are exact.
        return self.total // 2

    def held(self, batch: int, *, is_sent: bool) -> int:
        """Return the bytes that decoded batches hold together at most, by the bytes of one.

        Args:
            batch: Bytes of a batch.
            is_sent: True if they lie in memory that this process shares with the consumer, which
                has one batch while others are on their way.
        """
        # Of any size, one waits, one is handed over, and the consumer has one.
        on_its_way = max(sent_bytes(self.total), batch) if is_sent else 0
        return min(max(self.waiting, batch) + 2 * batch, self.decoded) + on_its_way

    @property
    def for_ranges(self) -> int:
        """Bytes that all ranges together may take, those in windows included."""
        return self._for_ranges(self.read_ahead)

    def _for_ranges(self, read_ahead: int) -> int:
        # Twice the windows: the next ones fill while the present ones drain.
        wanted = 2 * self.windows + self.lanes * self.first_range + read_ahead
        return min(self.total - self.reserve, wanted)

    @property
    def for_inflated(self) -> int:
        """Bytes of ``for_ranges`` for decompressed data, where shards are compressed."""
        # It includes the windows, whose records wait decompressed.
        first_ranges = self.lanes * self.first_range
        return self.windows + (self.for_ranges - self.windows - first_ranges) // 2

    def room(self, reserved: int = 0, read_ahead: int | None = None) -> RangeMemory:
        """Return the part of ``for_ranges`` that lanes may take.

        Args:
            reserved: Bytes that decompressed data takes.
            read_ahead: Bytes that are read ahead at present; the plan's ``read_ahead`` by default.
        """
        # Decompressed records wait for their windows in ``reserved``, so it replaces the windows.
        # The rest of it lies beside the present read-ahead: it would take all of a small one.
        wanted = self._for_ranges(self.read_ahead if read_ahead is None else read_ahead)
        for_ranges = min(wanted - min(reserved, self.windows), self.for_ranges - reserved)
        share = max(0, self.windows - reserved) // self.lanes + self.first_range
        return RangeMemory(share, for_ranges - self.lanes * share)

    @classmethod
    def divide(cls, total: int, *, lanes: int, windows: int, near: bool = False) -> Self:
        """Divide a budget.

        Args:
            total: Bytes of the budget.
            lanes: The rank's lanes, or the shards that they have open at once, if more.
            windows: Bytes of their shuffle windows.
            near: ``True`` for files on this machine: reading further ahead than each lane's next
                ranges costs memory, and time to touch it first. Less is read ahead at first, too.

        Raises:
            ConfigError: The budget is too small; the message shows the arithmetic.
        """
        reserve = _reserve(total)
        left = total - reserve - windows
        if left < lanes * SMALLEST_FIRST_RANGE:
            raise ConfigError(_too_small(total, reserve, windows, lanes))
        # A quarter of what the windows leave, if that is enough: the rest is for reading ahead.
        first_range = min(
            _largest_first_range(lanes),
            max(SMALLEST_FIRST_RANGE, _power_of_two(left // (4 * lanes))),
        )
        at_once = _at_once_near(lanes) if near else max(MOST_AT_ONCE, A_LANE_FAR * lanes)
        largest = LARGEST_READ_AHEAD_NEAR if near else LARGEST_READ_AHEAD
        read_ahead = min(largest, at_once * LARGEST_RANGE)
        # With the windows once more: the next ones fill while the present ones drain.
        ahead = min(left - lanes * first_range, windows + read_ahead)
        share = max(ahead // at_once, min(ahead // (2 * lanes), first_range))
        range_size = min(LARGEST_RANGE, max(first_range, _power_of_two(share)))
        first_near = max(FIRST_READ_AHEAD_NEAR, lanes * FIRST_A_LANE_NEAR)
        return cls(
            total=total,
            reserve=reserve,
            windows=windows,
            lanes=lanes,
            first_range=first_range,
            range_size=range_size,
            read_ahead=read_ahead,
            first_read_ahead=first_near if near else FIRST_READ_AHEAD,
            first_tiny_ranges=A_LANE_NEAR if near else sys.maxsize,
        )


class ReadAhead:
    """The bytes to read ahead, more each time the consumer waits although all of them are used.

    A consumer as fast as its link soon has all that the plan allows; a slow one, which never waits,
    keeps to the first part.

    Args:
        plan: Sets the most bytes. At first the same part of them is used for any budget.
    """

    def __init__(self, plan: MemoryPlan) -> None:
        self._most = most = min(plan.read_ahead, plan.speculative)
        # As great a part of the plan's whole read-ahead for any budget.
        self.size = min(most, -(-plan.first_read_ahead * most // plan.read_ahead))
        self._moderate = min(most, FIRST_READ_AHEAD * most // plan.read_ahead)
        self._next_doubling = self.size

    def __repr__(self) -> str:
        return f"<ReadAhead of {self.size} bytes, {self._most} at most>"

    def grow(self, nbytes_read: int) -> None:
        """Grow, since the consumer waits and all of the read-ahead is used.

        A small beginning doubles, at most once for half as many bytes read, so that a few waits end
        it and a client that soon leaves does not. Otherwise the read-ahead grows by an eighth.

        Args:
            nbytes_read: The bytes read since the start.
        """
        if self.size < self._moderate and nbytes_read >= self._next_doubling:
            self.size = min(self._moderate, 2 * self.size)
            self._next_doubling = nbytes_read + self.size // 2
        else:
            self.size = min(self._most, self.size + -(-self.size // 8))


def least_budget(lanes: int, windows: int = 0) -> int:
    """Return the smallest budget that :meth:`MemoryPlan.divide` accepts: bytes, in whole MiB.

    Args:
        lanes: The same as there.
        windows: The same as there.
    """
    nbytes = windows + lanes * SMALLEST_FIRST_RANGE
    # A reserve of a quarter is a third of the rest, up to its limit.
    return -(-min(-(-nbytes * 4 // 3), nbytes + LARGEST_RESERVE) // MIB) * MIB


def sent_bytes(total: int) -> int:
    """Return the bytes of a budget's reserve for batches on their way from an engine process."""
    return _reserve(total) // 4


def _at_once_near(lanes: int) -> int:
    """Return the ranges of full size that the read-ahead holds for files on this machine."""
    # A whole range for each of many lanes, or they would wait in turn.
    return max(lanes, min(MOST_AT_ONCE // 2, max(FEWEST_AT_ONCE, A_LANE_NEAR * lanes)))


def _reserve(total: int) -> int:
    return min(LARGEST_RESERVE, total // 4)


def _largest_first_range(lanes: int) -> int:
    return min(
        LARGEST_FIRST_RANGE,
        max(LARGEST_FIRST_RANGE // 2, _power_of_two(MOST_FOR_FIRST_RANGES // lanes)),
    )


def _power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 0


def _too_small(total: int, reserve: int, windows: int, lanes: int) -> str:
    needed = least_budget(lanes, windows) // MIB
    smallest = SMALLEST_FIRST_RANGE // KIB
    return (
        f"memory_budget of {total / MIB:.0f} MiB is too small: {reserve / MIB:.0f} MiB reserve + "
        f"{windows / MIB:.0f} MiB shuffle windows + {lanes} open shards x {smallest} KiB; set "
        f"memory_budget to {needed} MiB or more, or lower shuffle_window"
    )


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A request for the bytes ``[start, stop)`` of a shard; ``stop`` may lie past its end."""

    extent: Extent
    start: int
    stop: int


class LaneRanges:
    """The ranges of one lane in the order of need, across shard boundaries.

    Args:
        extents: The lane's extents from the first one needed, possibly without end.
        sizes: The shards' sizes in bytes, as far as known; read anew at every call.
        reach: The number of different shards in the lane: if so many in a row are empty, all are.
        offset: The byte of the first extent's shard at which to begin.
        probes: Begin with a probe of the first shard, which tells whether it is compressed;
            nothing follows until :meth:`go_on` is called.
    """

    def __init__(
        self,
        extents: Iterator[Extent],
        sizes: Mapping[int, int],
        reach: int,
        *,
        offset: int | None = None,
        probes: bool = False,
    ) -> None:
        self.probes = probes
        self._extents = extents
        self._sizes = sizes
        self._reach = reach
        self._empty: set[int] = set()
        self._extent: Extent | None = next(extents, None)
        self._next = self._begin(offset)
        self._asked = False
        self.guess: float = inf
        """Bytes of a shard whose size is not known."""

    @property
    def ended(self) -> bool:
        """``True`` once no range is left to request."""
        return self._extent is None

    @property
    def whole(self) -> float:
        """Bytes of the extent that the next range is of; a guess if its size is unknown.

        Infinite if nothing is left, or a probe is to tell first.
        """
        if self._extent is None or self.probes:
            return inf
        end = self._end(self._extent)
        if end is None or end <= self._next:
            return self._alike(self._extent)
        return end - self._extent.begin

    @property
    def rest(self) -> float:
        """Bytes of the shard that are still to be requested; a guess if its size is unknown."""
        # The guess is a bit more than the shard before had, since a request takes memory for all of
        # its bytes. If the shard has more, another range follows.
        if self._extent is None:
            return self.guess
        end = self._end(self._extent)
        if end is None or end <= self._next:
            return max(PROBE, self._alike(self._extent) * A_BIT_LARGER)
        return end - self._next

    def next(self, size: int) -> RangeRequest | None:
        """Return the next range, of at most ``size`` bytes.

        ``None``: the lane has ended, or the size of the present shard must be known first. The
        answer to the first range of a shard tells its size.
        """
        while (extent := self._extent) is not None:
            end = self._end(extent)
            # The answer that is under way tells the size, or whether the shard is compressed.
            if self._asked and (self.probes or end is None):
                return None
            size = min(size, PROBE) if self.probes else size
            if end is None or self._next < end:
                # The rest is infinite while no shard's size is known.
                stop = self._next + int(min(size, self.rest))
                request = RangeRequest(extent, self._next, stop)
                self._next, self._asked = stop, True
                if stop == end and not self.probes:
                    self._advance(extent)  # so that ``rest`` tells of the next shard
                return request
            self._advance(extent)
        return None

    def place_in(self, extent: Extent) -> float:
        """Return the byte of an extent at which the next range begins; infinite if it is left."""
        return self._next if extent is self._extent and not self.probes else inf

    def go_on(self, offset: int) -> None:
        """Read on from ``offset``, as the probe has been answered."""
        self.probes, self._next = False, offset

    def leave(self, extent: Extent) -> None:
        """Request nothing more of this extent."""
        if extent is self._extent:
            self._advance(extent)

    def _end(self, extent: Extent) -> int | None:
        return extent.end if extent.end is not None else self._sizes.get(extent.shard)

    def _alike(self, extent: Extent) -> float:
        """Return the bytes of a shard, or of the one before it, if it has any that are known."""
        return self._sizes.get(extent.shard) or self.guess

    def _advance(self, extent: Extent) -> None:
        self.guess = self._alike(extent)
        # By their shards, since an epoch later the same empty ones come again.
        if self._end(extent) == extent.begin:
            self._empty.add(extent.shard)
        else:
            self._empty.clear()
        hopeless = len(self._empty) >= self._reach
        self._extent = None if hopeless else next(self._extents, None)
        self._next, self._asked = self._begin(None), False

    def _begin(self, offset: int | None) -> int:
        if self._extent is None:
            return 0
        return self._extent.begin if offset is None else offset


def grown(size: int, largest: int) -> int:
    """Return the size of the next range: small at first, so that lanes yield early."""
    size *= GROWTH
    # Half of the largest or more becomes the largest: memory of a size in between would be touched
    # for one range a lane and then be of little use.
    return size if 2 * size < largest else largest
