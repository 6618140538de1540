"""The shards of a shuffle by shard, as each epoch deals them to lanes.

A permutation of the shards is drawn for each group of as many epochs as there are lanes, and is cut
into rows of one shard a lane. Each row has a random cycle through all lanes, and in each further
epoch of the group its shards move one lane along it. So every lane has every shard once in a group.
The shards of the last row, if it is shorter, turn as those that are not shuffled. A lane has its
rows in an order that is drawn for each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.plan.order.permutation import numbers, permutation, seed_of, turned

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """The shards that lanes have in each epoch, in order.

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
