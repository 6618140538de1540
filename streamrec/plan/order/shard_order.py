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
from itertools import count
from typing import TYPE_CHECKING

from streamrec.config.dataset import FEWEST_OPEN_SHARDS, MOST_OPEN_SHARDS, WINDOW_A_SHARD
from streamrec.plan.order.dealt_shards import DealtShards
from streamrec.plan.order.permutation import turned

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    next_record: int | None = None
    """The number in the shard of the record at ``end``, by the index; ``None``: there is none."""


@dataclass(frozen=True)
class ShardOrder:
    """Order by shard: every extent is a whole shard.

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
        open_shards: The parts of each lane, which are read side by side.
        open_shard: The number of the open shard whose extents these are.
        origin: The epoch at whose beginning all lanes began.
    """

    shards: int
    lanes: int
    shuffle: bool = False
    seed: int = 0
    first_shard: int = 0
    open_shards: int = 1
    open_shard: int = 0
    origin: int = 0
    _dealt: DealtShards | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Keep the shards that another order of the same ones has dealt, and its cache."""
        dealt = DealtShards(self.shards, self.lanes, self.seed) if self.shuffle else None
        if self._dealt != dealt:
            object.__setattr__(self, "_dealt", dealt)

    @property
    def period(self) -> int:
        """Epochs after which lanes that begin there have the same shards, if not shuffled."""
        return self.lanes // math.gcd(self.lanes, self.shards)

    def since(self, origin: int) -> ShardOrder:
        """Return the order of lanes that all began at that epoch."""
        return replace(self, origin=origin)

    def divided(self, open_shards: int) -> tuple[ShardOrder, ...]:
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
            element = self._element(number, shard - self.first_shard)
            yield (element // self.open_shards + done) * width / self.shards

    def reach(self, lane: int) -> int:  # noqa: ARG002 - all lanes reach as far
        """Return the number of different shards in the whole, endless lane."""
        return self.shards

    def _before(self, lane: int, epoch: int) -> int:
        """Return the number of the lane's elements in the epochs before this one."""
        return max(0, -((lane - epoch * self.shards) // self.lanes))

    def _element(self, epoch: int, shard: int) -> int:
        """Return the number in its lane of the element that has the shard in that epoch."""
        if self._dealt is None:
            return (epoch * self.shards + shard) // self.lanes
        lane, place = self._dealt.place(shard, epoch, self.origin)
        return self._before(lane, epoch) + place
