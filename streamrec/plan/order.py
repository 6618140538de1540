"""The extents of each lane, in order.

An extent is a stretch of one shard that is read from end to end. A lane is an endless sequence of
extents, numbered from 0 within the lane; epochs follow each other without a break.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from streamrec.config.dataset import FEWEST_OPEN_SHARDS, MOST_OPEN_SHARDS, WINDOW_A_SHARD
from streamrec.plan.permutation import permutation, seed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Cached = Callable[[int, int, int], Numbers]

__all__ = ["Extent", "ShardOrder", "open_at_once"]

SHARDS = 0x5348415244  # "SHARD": separates the permutation of shards from those of windows
KEPT = 4
"""Epochs whose permutations are kept: lanes are at most about two epochs apart, and a forecast
looks one further."""


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
    """The byte behind its last record; ``None``: the shard's end."""
    first_record: int = 0
    """The number in the shard of the record at ``begin``."""
    skip: int = 0
    """Records from ``begin`` on that are not of the extent: an index knows only chunks."""
    records: int | None = None
    """The number of the extent's records; ``None``: all to its end."""


@dataclass(frozen=True)
class ShardOrder:
    """Order by shard: every extent is a whole shard.

    Epoch ``e`` is a seeded permutation of the shards (or their sorted order); the epochs end to
    end are one sequence, whose element ``k`` goes to lane ``k mod lanes``. Counting on over the
    epochs keeps any lane from running ahead when ``lanes`` does not divide the number of shards.
    Where a lane has open shards, its element ``n`` goes to open shard ``n mod open_shards``.

    Args:
        shards: The number of shards; at least one.
        lanes: The number of lanes; at least one.
        shuffle: ``True`` to permute the shards anew in each epoch.
        seed: The seed of the permutations.
        first_shard: The number of the first shard, where these are a part of a dataset's.
        open_shards: The parts of each lane, which are read side by side.
        open_shard: The number of the open shard whose extents these are.
    """

    shards: int
    lanes: int
    shuffle: bool = False
    seed: int = 0
    first_shard: int = 0
    open_shards: int = 1
    open_shard: int = 0
    _permutations: Cached = field(
        default_factory=lambda: lru_cache(KEPT)(_permutation), repr=False, compare=False
    )
    _places: Cached = field(
        default_factory=lambda: lru_cache(KEPT)(_places), repr=False, compare=False
    )

    @property
    def period(self) -> int:
        """Epochs after which the lanes have the same shards again, if nothing is shuffled."""
        return self.lanes // math.gcd(self.lanes, self.shards)

    def divided(self, open_shards: int) -> tuple[ShardOrder, ...]:
        """Divide each lane into its open shards; return their orders, which share caches."""
        return tuple(
            replace(self, open_shards=open_shards, open_shard=open_shard)
            for open_shard in range(open_shards)
        )

    def extent(self, lane: int, number: int) -> Extent:
        """Return the lane's extent of that number."""
        element = number * self.open_shards + self.open_shard
        epoch, place = divmod(lane + element * self.lanes, self.shards)
        shard = (
            self._permutations(self.shards, self.seed, epoch).item(place) if self.shuffle else place
        )
        return Extent(number, epoch, self.first_shard + shard)

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
        done = min(1.0, offset / size) if size else 0.5
        for number in count(epoch):
            element = number * self.shards + self._place(number, shard - self.first_shard)
            yield (element // width + done) * width / self.shards

    def reach(self, lane: int) -> int:  # noqa: ARG002 - by shard, all lanes reach as far
        """Return the number of different shards in the whole, endless lane."""
        step = self.lanes * self.open_shards
        return self.shards if self.shuffle else self.shards // math.gcd(self.shards, step)

    def _place(self, epoch: int, shard: int) -> int:
        """Return the shard's place in the epoch."""
        return self._places(self.shards, self.seed, epoch).item(shard) if self.shuffle else shard


def _permutation(shards: int, seed: int, epoch: int) -> Numbers:
    return permutation(shards, seed_of(SHARDS, seed, epoch))


def _places(shards: int, seed: int, epoch: int) -> Numbers:
    """Return the place of each shard in the epoch's permutation."""
    return np.argsort(_permutation(shards, seed, epoch))
