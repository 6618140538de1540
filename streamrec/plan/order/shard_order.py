"""The extents of each lane, in order.

An extent is a stretch of one shard that is read from end to end. A lane is an endless sequence of
extents, numbered from 0 within the lane; epochs follow each other without a break.

All lanes deliver records at the same rate, so a lane with short shards comes to its next epoch
sooner. If it kept them, their records would come more often than others for ever. So lanes change
their shards from epoch to epoch: in each group of as many epochs as there are lanes, every lane has
every shard once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.config.dataset import FEWEST_OPEN_SHARDS, MOST_OPEN_SHARDS, WINDOW_A_SHARD
from streamrec.plan.order.permutation import numbers, permutation, seed_of, turned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]


SHARDS = 0x5348415244  # "SHARD": separates the permutation of shards from those of windows
CYCLES = 0x4359434C45  # "CYCLE"
ROWS = 0x524F57  # "ROW"
KEPT = 4
"""Epochs whose permutations are kept: lanes are at most about two epochs apart, and a forecast
looks one further."""


class _Group(NamedTuple):
    """The random numbers of a group of epochs."""

    shards: Numbers
    """A permutation of the shards."""
    cycles: Numbers
    """int64 ``[rows, lanes]``: the lanes in the order of each row's cycle."""
    places: Numbers
    """int64 ``[rows, lanes]``: the place of each lane in the cycle."""


@dataclass(frozen=True)
class DealtShards:
    """The shards of a shuffle by shard, as each epoch deals them to lanes, in order.

    A permutation of the shards is drawn for each group of as many epochs as there are lanes, and is
    cut into rows of one shard a lane. Each row has a random cycle through all lanes, and in each
    further epoch of the group its shards move one lane along it. So every lane has every shard once
    in a group. The shards of the last row, if it is shorter, turn as those that are not shuffled. A
    lane has its rows in an order that is drawn for each epoch.

    Args:
        shards: The number of shards; at least one.
        lanes: The number of lanes; at least one.
        seed: The seed of all permutations.
    """

    shards: int
    lanes: int
    seed: int
    of_lane: Callable[[int, int, int], Numbers] = field(init=False, repr=False, compare=False)
    """Returns the shards of a lane in an epoch, in order; see :meth:`_of_lane`."""
    _group: Callable[[int], _Group] = field(init=False, repr=False, compare=False)
    _places: Callable[[int, int], Numbers] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the caches."""
        # Caches of its own: one on the class would keep every order alive.
        object.__setattr__(self, "of_lane", lru_cache(KEPT * self.lanes)(self._of_lane))
        object.__setattr__(self, "_group", lru_cache(KEPT)(self._draw))
        object.__setattr__(self, "_places", lru_cache(KEPT)(self._all_places))

    def place(self, shard: int, epoch: int, origin: int) -> tuple[int, int]:
        """Return the lane that has a shard in an epoch, and the shard's place among its shards."""
        lane, place = self._places(epoch, origin)[shard].tolist()
        return lane, place

    def _of_lane(self, lane: int, epoch: int, origin: int) -> Numbers:
        """Deal an epoch's shards to a lane.

        Args:
            lane: The lane.
            epoch: The epoch.
            origin: The epoch at whose beginning all lanes began.
        """
        turns = (epoch - origin) % self.lanes
        begin = epoch - turns
        group = self._group(begin)
        rows = np.arange(len(group.cycles))
        place = (lane - begin * self.shards) % self.lanes  # as elements are counted over epochs
        columns = group.cycles[rows, (group.places[:, place] - turns) % self.lanes]
        dealt = rows * self.lanes + columns
        same = turned(lane, self.lanes, self.shards, epoch - origin)
        last = len(rows) * self.lanes + (same - epoch * self.shards) % self.lanes
        if last < self.shards:
            dealt = np.append(dealt, last)
        # In the group's first epoch, the permutation of shards is all the order it needs.
        if turns:
            dealt = dealt[permutation(len(dealt), seed_of(ROWS, self.seed, epoch, lane))]
        own_shards: Numbers = group.shards[dealt]
        return own_shards

    def _draw(self, epoch: int) -> _Group:
        """Draw the group of epochs that begins with this one."""
        rows = self.shards // self.lanes
        indices = np.arange(rows * self.lanes, dtype=np.uint64)
        keys = numbers(indices, seed_of(CYCLES, self.seed, epoch))
        cycles = np.argsort(keys.reshape(rows, self.lanes), axis=1, kind="stable")
        shards = permutation(self.shards, seed_of(SHARDS, self.seed, epoch))
        return _Group(shards, cycles, np.argsort(cycles, axis=1))

    def _all_places(self, epoch: int, origin: int) -> Numbers:
        """Return int64 ``[shards, 2]``: the lane of each shard in an epoch, and its place there."""
        places = np.empty((self.shards, 2), np.int64)
        for lane in range(self.lanes):
            elements = self.of_lane(lane, epoch, origin)
            places[elements, 0], places[elements, 1] = lane, np.arange(len(elements))
        return places


def open_at_once(shards: int, lanes: int, window: int) -> int:
    """Return the number of shards that each lane of a shuffle by shard has open.

    Args:
        shards: The shards of the dataset.
        lanes: The lanes that share them.
        window: ``shuffle_window``: bytes over all lanes.
    """
    together = min(MOST_OPEN_SHARDS, max(FEWEST_OPEN_SHARDS, window // WINDOW_A_SHARD))
    return max(1, min(together // lanes, -(-shards // lanes)))


@dataclass(frozen=True, slots=True)
class Extent:
    """A stretch of one shard."""

    number: int
    """The extent's number within the lane, over all epochs."""
    epoch: int
    shard: int
    begin: int = 0
    """The byte of the shard at which its first record begins."""
    end: int | None = None
    """The byte after its last record; ``None``: the shard's end."""
    first_record: int = 0
    """The number in the shard of the record at ``begin``."""
    skip: int = 0
    """Records from ``begin`` on that are not of the extent: an index knows only chunks."""
    records: int | None = None
    """The number of the extent's records; ``None``: all to its end."""
    next_record: int | None = None
    """The number in the shard of the record at ``end``, by the index; of a shard without one, the
    number of its records, if the dataset says it; ``None``: not known."""


class ShardPart(NamedTuple):
    """The records of a shard that a dataset has, where it says how many the shard has."""

    first: int
    """The number in the shard of the first of them."""
    records: int
    """Their number."""
    total: int
    """All records of the shard."""

    @property
    def is_whole(self) -> bool:
        """True if the dataset has all records of the shard."""
        return self.records == self.total


@dataclass(frozen=True)
class ShardOrder:
    """Order by shard: every extent is a whole shard, or the part of it that the dataset has.

    An epoch has all shards; the epochs end to end are one sequence, whose element ``k`` goes to
    lane ``k mod lanes``. Counting on over the epochs keeps any lane from running ahead when
    ``lanes`` does not divide the number of shards. Shards are in the order of their numbers, or
    dealt to the lanes at random; in ``lanes`` epochs every lane has every shard once. Where a lane
    has open shards, its element ``n`` goes to open shard ``n mod open_shards``.

    Args:
        shards: The number of shards; at least one.
        lanes: The number of lanes; at least one.
        shuffle: ``True`` to deal the shards at random.
        seed: The seed of the permutations.
        first_shard: The number of the first shard, where these are a part of a dataset's.
        parts: The records of each shard; empty: all of them, as many as there are.
        open_shards: The parts of each lane, which are read side by side.
        open_shard: The number of the open shard whose extents these are.
        origin: The epoch at whose beginning all lanes began.
    """

    shards: int
    lanes: int
    shuffle: bool = False
    seed: int = 0
    first_shard: int = 0
    parts: tuple[ShardPart, ...] = ()
    open_shards: int = 1
    open_shard: int = 0
    origin: int = 0
    _dealt: DealtShards | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Keep the shards that another order of the same ones has dealt, and its cache."""
        dealt = DealtShards(self.shards, self.lanes, self.seed) if self.shuffle else None
        # An equal one that replace() handed on is kept, for its caches.
        if self._dealt != dealt:
            object.__setattr__(self, "_dealt", dealt)

    @property
    def period(self) -> int:
        """Epochs after which lanes that begin there have the same shards, if not shuffled."""
        return self.lanes // math.gcd(self.lanes, self.shards)

    def since(self, origin: int) -> ShardOrder:
        """Return the order of lanes that all began at that epoch."""
        return replace(self, origin=origin)

    def divide(self, open_shards: int) -> tuple[ShardOrder, ...]:
        """Divide each lane into its open shards; return their orders, which share caches."""
        return tuple(
            replace(self, open_shards=open_shards, open_shard=open_shard)
            for open_shard in range(open_shards)
        )

    def extent(self, lane: int, number: int) -> Extent:
        """Return the lane's extent of that number."""
        element = number * self.open_shards + self.open_shard
        epoch = (lane + element * self.lanes) // self.shards
        if self._dealt is None:
            same = turned(lane, self.lanes, self.shards, epoch - self.origin)
            shard = same + element * self.lanes - epoch * self.shards
        else:
            dealt = self._dealt.of_lane(lane, epoch, self.origin)
            shard = dealt.item(element - self._before(lane, epoch))
        own = self.first_shard + shard
        if not self.parts:
            return Extent(number, epoch, own)
        first, records, total = part = self.parts[shard]
        # A whole shard is read to its end, where its records are counted.
        cut = None if part.is_whole else records
        return Extent(number, epoch, own, skip=first, records=cut, next_record=total)

    def extents(self, lane: int, number: int) -> Iterator[Extent]:
        """Iterate over the lane's extents from that number on, without end."""
        return (self.extent(lane, n) for n in count(number))

    def first(self, lane: int, epoch: int) -> int:
        """Return the number of the lane's first extent in that epoch, else in a later one."""
        begin = lane + self.open_shard * self.lanes
        return max(0, -((begin - epoch * self.shards) // (self.lanes * self.open_shards)))

    def times(self, epoch: int, shard: int, offset: int, size: int | None) -> Iterator[float]:
        """Yield when epochs read a byte, counted in epochs, if all lanes are equally fast.

        Args:
            epoch: The first epoch to tell of.
            shard: The number of the shard.
            offset: The byte.
            size: Bytes of the shard, if known.
        """
        width = self.lanes * self.open_shards
        # Of an unknown size the middle is the best guess.
        done = min(1.0, offset / size) if size else 0.5
        for number in count(epoch):
            element = self._element(number, shard - self.first_shard)
            yield (element // self.open_shards + done) * width / self.shards

    def reach(self, lane: int) -> int:  # noqa: ARG002 - all lanes reach as far
        """Return the number of different shards in the whole, endless lane."""
        return self.shards

    def _before(self, lane: int, epoch: int) -> int:
        """Return the number of the lane's elements in the epochs before this one."""
        # Rounded up, as a negative number is rounded down.
        return max(0, -((lane - epoch * self.shards) // self.lanes))

    def _element(self, epoch: int, shard: int) -> int:
        """Return the number in its lane of the element that has the shard in that epoch."""
        if self._dealt is None:
            return (epoch * self.shards + shard) // self.lanes
        lane, place = self._dealt.place(shard, epoch, self.origin)
        return self._before(lane, epoch) + place
