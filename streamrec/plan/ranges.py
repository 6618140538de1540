"""Which byte ranges to ask for, and the memory that they may take."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Self

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.plan.order import Extent

__all__ = [
    "LaneRanges",
    "MemoryPlan",
    "RangeRequest",
    "ReadAhead",
    "grown",
    "least_budget",
    "sent_bytes",
]

KIB, MIB = 1 << 10, 1 << 20
SMALLEST_HEAD = 64 * KIB
LARGEST_HEAD = 512 * KIB
MANY_HEADS = 12 * MIB
"""Of all lanes. 48 heads of 512 KiB would take 30 ms of CPU time more to receive than of 256 KiB,
which the first batch waits for. Halved they are at most: each may have to hold the next record."""
LARGEST_RANGE = 8 * MIB
"""Past 8 MiB a request's latency no longer shows in its rate."""
LARGEST_READ_AHEAD = 768 * MIB
"""What a link of 2 GB/s needs of a store where a range of 8 MiB takes a fifth of a second: 400 MB
are on their way, each lane is using a range up, and lanes do not all come to the ends of theirs at
once. With 512 MiB, in ranges of 4 MiB, the rate was a fifth to a quarter lower."""
LARGEST_READ_AHEAD_NEAR = 256 * MIB
"""More would begin with touching that much fresh memory, at a fraction of the speed of memory that
is used again, and with no round trip to do it in."""
FIRST_READ_AHEAD = 128 * MIB
"""What is read ahead until the consumer is seen to need more. Reading further ahead than it needs
takes time from it: for touching fresh memory, and for bytes that a stopped job never uses."""
LARGEST_RESERVE = 128 * MIB
LOOK = 4 * KIB
"""Bytes of a shard's beginning that are read where no more may be needed."""
MOST_AT_ONCE = 96
"""Ranges of full size that the read-ahead is to hold, for up to 48 lanes: fewer and larger ones
would leave more of it in what lanes are using up; more and smaller ones cost more CPU time a
byte."""
A_LANE_FAR = 2
"""The same a lane: where some lanes find no room for a range, all others wait for them in turn."""
A_LANE_NEAR = 3
"""The same a lane for what is near, where no latency has to be hidden: the range that is used up,
the one that has landed behind it, and the one that is being read. With two, lanes that come to the
ends of their ranges together wait together."""
FEWEST_AT_ONCE = 12
"""The same for few lanes: a disk or a mounted network's file system has its latency, too."""
GROWTH = 4
"""Each range of a lane is about this many times the one before it, up to the plan's range size."""


@dataclass(frozen=True, slots=True)
class Room:
    """What lanes may take for ranges."""

    share: int
    """The bytes that one lane may take whatever the others have: its window and its head."""
    ahead: int
    """The bytes that lanes may take beyond their shares, whoever needs them soonest."""

    def beyond(self, taken: float) -> float:
        """How much of what a lane has is beyond its share."""
        return max(0.0, taken - self.share)

    def reach(self, taken: float, beyond: float) -> float:
        """The most bytes that a lane may have more.

        Args:
            taken: What the lane has.
            beyond: What all lanes together have beyond their shares.
        """
        return max(0.0, self.share - taken) + max(0.0, self.ahead - beyond)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How the byte budget is divided: ``total = reserve + windows + lanes x head + speculative``.

    The reserve and what each lane needs to go on are set aside first: a budget that reads ahead
    with all of it leaves nothing for the batch that would free some.
    """

    total: int
    reserve: int
    """For the batch that is being decoded, those that wait, and those on the engine's socket."""
    windows: int
    """For the shuffle windows of the own lanes."""
    lanes: int
    """The own lanes: all shards that they have open at once count."""
    head: int
    """The size of a lane's first range, a power of two; every lane may always have one."""
    range_size: int
    """What ranges grow to, a power of two."""
    read_ahead: int = LARGEST_READ_AHEAD
    """The most that is read ahead of what windows and heads hold, however large the budget is."""

    @property
    def speculative(self) -> int:
        """Bytes for reading ahead of what is needed next."""
        return self.total - self.reserve - self.windows - self.lanes * self.head

    @property
    def waiting(self) -> int:
        """The part of the reserve that decoded batches may take while they wait."""
        return 3 * self.reserve // 8

    @property
    def for_ranges(self) -> int:
        """The bytes that all ranges together may take, those in windows included.

        Where there is room, the next windows fill while the present ones drain.
        """
        return self._for_ranges(self.read_ahead)

    def _for_ranges(self, read_ahead: int) -> int:
        wanted = 2 * self.windows + self.lanes * self.head + read_ahead
        return min(self.total - self.reserve, wanted)

    @property
    def for_inflated(self) -> int:
        """The part of ``for_ranges`` that decompressed bytes take where shards are compressed.

        Records wait for their windows decompressed, so the windows are wholly in it.
        """
        heads = self.lanes * self.head
        return self.windows + (self.for_ranges - self.windows - heads) // 2

    def room(self, reserved: int = 0, read_ahead: int | None = None) -> Room:
        """What lanes may take of ``for_ranges``, beside so many bytes that something else takes.

        What is decompressed waits for the windows in its own memory, so the windows' part is given
        up first.

        Args:
            reserved: Bytes that something else takes.
            read_ahead: How much of the plan's ``read_ahead`` is used at present; all by default.
        """
        for_ranges = self._for_ranges(self.read_ahead if read_ahead is None else read_ahead)
        share = max(0, self.windows - reserved) // self.lanes + self.head
        return Room(share, for_ranges - reserved - self.lanes * share)

    @classmethod
    def divide(cls, total: int, *, lanes: int, windows: int, near: bool = False) -> Self:
        """Divide a budget.

        Args:
            total: Bytes.
            lanes: The own lanes, or the shards they have open at once where those are more.
            windows: Bytes of their shuffle windows.
            near: The bytes come from this machine. Reading further ahead than each lane's next
                ranges only spends memory, and time on touching it for the first time.

        Raises:
            ConfigError: It cannot hold what must be held; the message shows the arithmetic.
        """
        reserve = _reserve(total)
        left = total - reserve - windows
        if left < lanes * SMALLEST_HEAD:
            raise ConfigError(_too_small(total, reserve, windows, lanes))
        head = min(_largest_head(lanes), max(SMALLEST_HEAD, _power_of_two(left // (4 * lanes))))
        at_once = _at_once_near(lanes) if near else max(MOST_AT_ONCE, A_LANE_FAR * lanes)
        largest = LARGEST_READ_AHEAD_NEAR if near else LARGEST_READ_AHEAD
        read_ahead = min(largest, at_once * LARGEST_RANGE)
        ahead = min(left - lanes * head, windows + read_ahead)
        share = max(ahead // at_once, min(ahead // (2 * lanes), head))
        range_size = min(LARGEST_RANGE, max(head, _power_of_two(share)))
        return cls(total, reserve, windows, lanes, head, range_size, read_ahead)


class ReadAhead:
    """How far is read ahead of the consumer: further each time it waits although all of it is used.

    A link that is as fast as the consumer soon has all that the plan allows; a slow consumer, who
    finds what it needs, keeps to the first part of it.

    Args:
        plan: Says how far at most. Of a smaller budget as great a part is taken at first as of one
            that is large enough.
    """

    def __init__(self, plan: MemoryPlan) -> None:
        self._most = most = min(plan.read_ahead, plan.speculative)
        self.size = min(most, -(-FIRST_READ_AHEAD * most // plan.read_ahead))

    def __repr__(self) -> str:
        return f"<ReadAhead of {self.size} bytes, {self._most} at most>"

    def grow(self) -> None:
        """The consumer waits, and there is no room to read further ahead: go on by an eighth."""
        self.size = min(self._most, self.size + -(-self.size // 8))


def least_budget(lanes: int, windows: int = 0) -> int:
    """The smallest budget that :meth:`MemoryPlan.divide` takes, in whole MiB.

    Args:
        lanes: As there.
        windows: As there.
    """
    held = windows + lanes * SMALLEST_HEAD
    return -(-min(-(-held * 4 // 3), held + LARGEST_RESERVE) // MIB) * MIB


def sent_bytes(total: int) -> int:
    """The part of a budget's reserve for batches between the engine's process and the trainer's."""
    return _reserve(total) // 4


def _at_once_near(lanes: int) -> int:
    """Of what is near: a whole range for each of many lanes, or else they wait in turn."""
    return max(lanes, min(MOST_AT_ONCE // 2, max(FEWEST_AT_ONCE, A_LANE_NEAR * lanes)))


def _reserve(total: int) -> int:
    return min(LARGEST_RESERVE, total // 4)


def _largest_head(lanes: int) -> int:
    return min(LARGEST_HEAD, max(LARGEST_HEAD // 2, _power_of_two(MANY_HEADS // lanes)))


def _power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 0


def _too_small(total: int, reserve: int, windows: int, lanes: int) -> str:
    needed = least_budget(lanes, windows) // MIB
    return (
        f"memory_budget of {total / MIB:.0f} MiB is too small: {reserve / MIB:.0f} MiB reserve + "
        f"{windows / MIB:.0f} MiB shuffle windows + {lanes} open shards x {SMALLEST_HEAD // KIB} "
        f"KiB; set memory_budget to {needed} MiB or more, or shuffle_window to less"
    )


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The bytes ``[start, stop)`` of an extent's shard; ``stop`` may lie past the shard's end."""

    extent: Extent
    start: int
    stop: int


class LaneRanges:
    """The ranges of one lane in the order in which they are needed, across shard boundaries.

    Args:
        extents: The lane's extents, from the first that is needed; may have no end.
        sizes: The shards' sizes in bytes, as far as known; read anew at every call.
        reach: After how many different empty shards in a row the lane cannot meet any other.
        offset: Where in the first extent's shard to begin, in bytes.
        looks: Ask for a few bytes of the first shard's beginning: they tell whether it is
            compressed, and ``offset`` no place in it. If the shard's size is known, a range at
            ``offset`` is asked for as well, as a guess; nothing more until :meth:`go_on` says
            where.
    """

    def __init__(
        self,
        extents: Iterator[Extent],
        sizes: Mapping[int, int],
        reach: int,
        *,
        offset: int | None = None,
        looks: bool = False,
    ) -> None:
        self.looks = looks
        self.guessed = False
        """Whether a range was asked for that may be of no use."""
        self._guess_at = offset if looks else None
        self._extents = extents
        self._sizes = sizes
        self._reach = reach
        self._empty: set[int] = set()
        self._extent: Extent | None = next(extents, None)
        self._next = self._begin(None if looks else offset)
        self._asked = False
        self._guess: float = inf

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to ask for, ever."""
        return self._extent is None

    @property
    def rest(self) -> float:
        """How many bytes of the shard are still to be asked for.

        Of one of unknown size it is a guess, a bit more than the one before had: memory is taken
        for what is asked for. If it has more, another range follows.
        """
        end = None if self._extent is None else self._end(self._extent)
        return self._guess if end is None or end <= self._next else end - self._next

    def next(self, size: int) -> RangeRequest | None:
        """The next range of at most ``size`` bytes.

        ``None`` when the lane has ended, or when the end of the present shard must be known first:
        of a shard of unknown size only one range is asked for, and its response says the size.
        """
        while (extent := self._extent) is not None:
            end = self._end(extent)
            if self._asked and self.looks:
                return self._guessed_range(extent, end, size)
            if self._asked and end is None:
                return None
            size = min(size, LOOK) if self.looks else size
            if end is None or self._next < end:
                stop = self._next + int(min(size, self.rest))
                request = RangeRequest(extent, self._next, stop)
                self._next, self._asked = stop, True
                return request
            self._advance(extent)
        return None

    def go_on(self, offset: int) -> None:
        """What was looked for is found: read on from there, unless that was guessed."""
        self.looks = False
        if not self.guessed or offset != self._guess_at:
            self._next = offset

    def _guessed_range(self, extent: Extent, end: int | None, size: int) -> RangeRequest | None:
        start = self._guess_at
        if self.guessed or start is None or end is None or end <= start:
            return None
        self.guessed = True
        self._next = min(start + size, end)
        return RangeRequest(extent, start, self._next)

    def leave(self, extent: Extent) -> None:
        """Ask for nothing more of this extent, if anything is still to be asked for."""
        if extent is self._extent:
            self._advance(extent)

    def _end(self, extent: Extent) -> int | None:
        return extent.end if extent.end is not None else self._sizes.get(extent.shard)

    def _advance(self, extent: Extent) -> None:
        if (size := self._sizes.get(extent.shard)) is not None:
            self._guess = max(LOOK, size * 9 // 8)
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
    """The size of the range after one of ``size`` bytes: small first, so that lanes yield early.

    What would be half of the largest or more is the largest: memory of a size in between is touched
    for one range a lane, and then of little use.
    """
    size *= GROWTH
    return size if 2 * size < largest else largest
