"""Small mixes on disk, and what a stream over them must deliver."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.plan.order.mixture import NOTHING, component_seed, draws_of
from streamrec.plan.order.shard_order import ShardOrder
from streamrec.plan.order.window import Windows, records_until
from tests.pipeline.small_datasets import settings_of, write
from tests.plan.oracle import plainly_drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from streamrec.config import DatasetSettings

Lengths = tuple[tuple[int, ...], ...]
Pair = tuple[int, int]
"""(shard, record), the shards of all components numbered together."""


def write_mix(directory: Path, components: Mapping[str, Lengths]) -> dict[str, str | list[str]]:
    """Write each component's shards, and return the source that finds them."""
    return {name: write(directory / name, shards) for name, shards in components.items()}


def mix_of(
    directory: Path, components: Mapping[str, Lengths], weights: Any, **values: Any
) -> DatasetSettings:
    """Make validated settings of a mix that has been written."""
    source: Any = write_mix(directory, components)
    return settings_of(source, weights=weights, **values)


@dataclass(frozen=True)
class MixOracle:
    """An oracle that gives a mix's order record by record."""

    components: Mapping[str, Lengths]
    settings: DatasetSettings
    lanes: int
    keep: Callable[[int], bool] = lambda length: True

    @property
    def shards(self) -> Lengths:
        """The payload lengths of all records, in bytes."""
        return tuple(shard for name in sorted(self.components) for shard in self.components[name])

    def rank(self, rank: int, world_size: int, most: int, epoch: int = 0) -> list[Pair]:
        """Return the first ``count`` records that one rank delivers, or all."""
        return list(islice(self._round_robin(rank, world_size, epoch), most))

    def _round_robin(self, rank: int, world_size: int, epoch: int) -> Iterator[Pair]:
        lanes = [self.lane(lane, epoch) for lane in range(rank, self.lanes, world_size)]
        while lanes:
            for lane in list(lanes):
                pair = next(lane, None)
                if pair is None:
                    lanes.remove(lane)
                else:
                    yield pair

    def lane(self, lane: int, epoch: int) -> Iterator[Pair]:
        """Return a lane's filtered records in the order of its windows."""
        kept = (item for item in self.drawn(lane, epoch) if self.keep(self._length(item[1])))
        settings = self.settings
        windows = Windows(int(settings.shuffle_window), self.lanes, settings.seed)
        for mix_epoch, items in groupby(kept, lambda item: item[0]):
            pairs, number = (pair for _, pair in items), 0
            if not settings.shuffle:
                yield from pairs
            while window := self._window(pairs, windows.size(lane, number)):
                order = windows.permutation(
                    lane, mix_epoch, number, np.zeros(len(window), np.int32)
                )
                yield from (window[i] for i in order.tolist())
                number += 1

    def drawn(self, lane: int, epoch: int) -> Iterator[tuple[int, Pair]]:
        """Return a lane's records in the order of the draws, each with the mix's epoch."""
        settings, first = self.settings, 0
        streams, epochs = [], []
        for number, name in enumerate(sorted(self.components)):
            shards = self.components[name]
            streams.append(self._component(number, len(shards), first, lane, epoch))
            order = ShardOrder(len(shards), self.lanes)
            epochs.append(order.extent(lane, order.first(lane, epoch)).epoch)
            first += len(shards)
        assert settings.weights is not None
        draws = draws_of(settings.weights, self.lanes, settings.seed)
        ended: set[int] = set()
        n, mix_epoch = 0, epoch
        while (component := plainly_drawn(draws, lane, epoch, n, ended)) != NOTHING:
            item = next(streams[component], None)
            if item is not None:
                epochs[component], pair = item
                weights = [w for first, w in draws.phases if first <= n * self.lanes + lane][-1]
                lowest = min(e for e, weight in zip(epochs, weights, strict=True) if weight)
                mix_epoch = max(mix_epoch, lowest)
                yield mix_epoch, pair
                n += 1
            elif settings.exhausted == "stop":
                return
            else:
                ended.add(component)

    def _component(
        self, number: int, shards: int, first: int, lane: int, epoch: int
    ) -> Iterator[tuple[int, Pair]]:
        settings = self.settings
        seed = component_seed(settings.seed, number) if settings.shuffle else 0
        order = ShardOrder(shards, self.lanes, settings.shuffle, seed, origin=epoch)
        for extent in order.extents(lane, order.first(lane, epoch)):
            if settings.exhausted != "repeat" and extent.epoch > epoch:
                return
            shard = first + extent.shard
            for record in range(len(self.shards[shard])):
                yield extent.epoch, (shard, record)

    def _window(self, pairs: Iterator[Pair], size: int) -> list[Pair]:
        window: list[Pair] = []
        for pair in pairs:
            window.append(pair)
            lengths = np.array([*map(self._length, window), 0], np.int64)
            if records_until(lengths, size) <= len(window):
                break
        return window

    def _length(self, pair: Pair) -> int:
        return self.shards[pair[0]][pair[1]]
