"""The order of section "Order" in docs/design.md, written down as plainly as it can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.window import Windows, records_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.plan.order import ShardOrder


@dataclass(frozen=True)
class Oracle:
    """Knows the records' lengths, and says in which order they must come."""

    shards: tuple[tuple[int, ...], ...]
    """The payload lengths of each shard's records."""
    order: ShardOrder
    windows: Windows | None = None
    keep: Callable[[int], bool] = lambda length: True
    """The filter, by a record's length."""

    def lane(self, lane: int, epochs: range) -> list[tuple[int, int, int]]:
        """(epoch, shard, record) of all that the lane delivers in these epochs."""
        out: list[tuple[int, int, int]] = []
        for epoch in epochs:
            records = self._lane_epoch(lane, epoch)
            out += records if self.windows is None else self._shuffled(records, lane, epoch)
        return out

    def rank(self, rank: int, world_size: int, epochs: range) -> list[tuple[int, int, int]]:
        """What one rank delivers, in order."""
        keyed = [
            ((number, lane), record)
            for lane in range(rank, self.order.lanes, world_size)
            for number, record in enumerate(self.lane(lane, epochs))
        ]
        return [record for _, record in sorted(keyed)]

    def _lane_epoch(self, lane: int, epoch: int) -> list[tuple[int, int, int]]:
        out = []
        number = self.order.first(lane, epoch)
        while (extent := self.order.extent(lane, number)).epoch == epoch:
            lengths = self.shards[extent.shard]
            out += [(epoch, extent.shard, i) for i, n in enumerate(lengths) if self.keep(n)]
            number += 1
        return out

    def _shuffled(
        self, records: list[tuple[int, int, int]], lane: int, epoch: int
    ) -> list[tuple[int, int, int]]:
        assert self.windows is not None
        out, number = [], 0
        while records:
            lengths = np.array([self.shards[shard][i] for _, shard, i in records], np.int64)
            count = records_until(lengths, self.windows.size(lane, number))
            order = self.windows.permutation(lane, epoch, number, count)
            out += [records[i] for i in order.tolist()]
            records, number = records[count:], number + 1
        return out
