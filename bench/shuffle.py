"""Compares streamrec's shuffle with tf.data's shuffle buffer and Grain's window shuffle.

Every way to shuffle has as much memory: streamrec's default window of 256 MiB. The data are sorted
by class, which is the worst that a shuffle is given. The figure is the *chi-square* of the classes
in a batch of 256, over that of a perfect shuffle, as ``streamrec info --shuffle`` measures that of
shards (docs/explanation/shuffling.md). A perfect shuffle has 1.

Records are numbered from 0 in the order of the shards. streamrec's order is that of the tests'
oracle. The others' are their algorithms, step by step: so the numbers need neither TensorFlow nor
Grain, and do not depend on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.cases import say
from bench.harness import Column, Report, Run, benchmark, table_of
from streamrec.config.dataset import DEFAULT_LANES, MOST_OPEN_SHARDS
from streamrec.formats.shards.index import CHUNK_BYTES
from streamrec.measure.shuffling import mixing_of
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.shard_order import ShardOrder, open_at_once
from streamrec.plan.order.window import FRAME_OVERHEAD, Windows
from streamrec.values.record_rows import Chunks
from tests.plan.oracle import Oracle

Numbers = npt.NDArray[np.int64]

EVEN = 128
"""Number of lanes that divides the shards of all datasets, and has one shard open a lane."""
LANES = DEFAULT_LANES, 8, EVEN
"""Numbers of streamrec's lanes: by default each has three shards open; of 8, eighteen."""
CYCLES = MOST_OPEN_SHARDS, EVEN, DEFAULT_LANES, 16
"""Numbers of shards that others have open: as many as streamrec, and as is usual."""


@dataclass(frozen=True)
class Data:
    """Shards of equal records, sorted by class from the first to the last."""

    name: str
    shards: int
    records_per_shard: int
    record_bytes: int
    classes: int = 100

    @property
    def records(self) -> int:
        return self.shards * self.records_per_shard

    @property
    def classes_of(self) -> Numbers:
        return np.arange(self.records) * self.classes // self.records

    def in_memory(self, nbytes: int) -> int:
        """Return the number of records that a buffer of so many bytes holds."""
        return nbytes // (self.record_bytes + FRAME_OVERHEAD)


BATCH_SIZE = 256
WINDOW = 256 << 20
DATA = (
    Data("pictures of 110 KB, 128 shards of 1,024", 128, 1024, 110_000),
    Data("pictures of 110 KB, 1,024 shards of 128", 1024, 128, 110_000),
    Data("texts of 2 KB, 128 shards of 4,096", 128, 4096, 2_000),
    Data("texts of 2 KB, 512 shards of 1,024", 512, 1024, 2_000),
)
# -- orders ----------------------------------------------------------------------------------------


def by_shard(lanes: int) -> Callable[[Data, int, int], Numbers]:
    """Return streamrec's order without an index."""

    def order(data: Data, nbytes: int, seed: int) -> Numbers:
        lengths = ((data.record_bytes,) * data.records_per_shard,) * data.shards
        shards = ShardOrder(data.shards, lanes, shuffle=True, seed=seed)
        open_shards = open_at_once(data.shards, lanes, nbytes)
        oracle = Oracle(lengths, shards, Windows(nbytes, lanes, seed, open_shards=open_shards))
        rows = np.array(oracle.rank(0, 1, range(1)), np.int64)
        return rows[:, 1] * data.records_per_shard + rows[:, 2]

    return order


def chunks_of(data: Data) -> Chunks:
    """Make the chunks that an index has: of ``CHUNK_BYTES`` or more, each beginning at a record."""
    frame = data.record_bytes + FRAME_OVERHEAD
    first = np.arange(0, data.records_per_shard, -(-CHUNK_BYTES // frame))
    records = np.diff(first, append=data.records_per_shard)
    shard = np.repeat(np.arange(data.shards), len(first))
    first, records = (np.tile(numbers, data.shards) for numbers in (first, records))
    return Chunks(shard, first * frame, (first + records) * frame, first, records)


def by_record(lanes: int) -> Callable[[Data, int, int], Numbers]:
    """Return streamrec's order with an index."""

    def order(data: Data, nbytes: int, seed: int) -> Numbers:
        records = RecordOrder(chunks_of(data), lanes, shuffle=True, seed=seed)
        windows = ChunkWindows(records, Windows(nbytes, lanes, seed))
        parts = [_lane(data, records, windows, lane) for lane in range(lanes)]
        turns = np.concatenate([np.arange(len(part)) for part in parts])
        return np.concatenate(parts)[np.argsort(turns, kind="stable")]

    return order


def _lane(data: Data, order: RecordOrder, windows: ChunkWindows, lane: int) -> Numbers:
    extents = takewhile(lambda extent: extent.epoch == 0, order.extents(lane, 0))
    read = np.concatenate(
        [
            np.arange(extent.records or 0)
            + (extent.shard * data.records_per_shard + extent.first_record + extent.skip)
            for extent in extents
        ]
    )
    out, number = [], 0
    while len(read):
        size = windows.opens(lane, 0, number)
        out.append(read[:size][windows.permutation(lane, 0, number, np.zeros(size, np.int32))])
        read, number = read[size:], number + 1
    return np.concatenate(out)


def shuffled_buffer(cycle: int) -> Callable[[Data, int, int], Numbers]:
    """Return tf.data's order: files shuffled, ``cycle`` of them interleaved, and ``shuffle``."""

    def order(data: Data, nbytes: int, seed: int) -> Numbers:
        random = np.random.default_rng(seed)
        source = interleaved(data, cycle, random)
        buffer = list(islice(source, data.in_memory(nbytes)))
        picks = random.random(data.records).tolist()
        out = []
        for pick in picks:
            slot = int(pick * len(buffer))
            out.append(buffer[slot])
            following = next(source, None)
            if following is None:
                buffer[slot] = buffer[-1]
                buffer.pop()
            else:
                buffer[slot] = following
        return np.array(out, np.int64)

    return order


def shuffled_windows(cycle: int) -> Callable[[Data, int, int], Numbers]:
    """Return Grain's order: files shuffled, ``cycle`` of them interleaved, windows shuffled."""

    def order(data: Data, nbytes: int, seed: int) -> Numbers:
        random = np.random.default_rng(seed)
        numbers = np.fromiter(interleaved(data, cycle, random), np.int64, data.records)
        size = data.in_memory(nbytes)
        for first in range(0, data.records, size):
            random.shuffle(numbers[first : first + size])
        return numbers

    return order


def perfect(data: Data, nbytes: int, seed: int) -> Numbers:  # noqa: ARG001 - it needs all of it
    return np.random.default_rng(seed).permutation(data.records)


def interleaved(data: Data, cycle: int, random: np.random.Generator) -> Iterator[int]:
    """Yield a record of each of ``cycle`` open shards in turn; the next replaces one that ends."""
    waiting = iter(random.permutation(data.shards).tolist())
    slots = [_records(data, shard) for shard in islice(waiting, cycle)]
    while slots:
        for place, slot in enumerate(slots):
            number = next(slot, None)
            if number is None:
                slots[place] = _records(data, next(waiting, None))
                number = next(slots[place], None)
            if number is not None:
                yield number
        if not any(slot.__length_hint__() for slot in slots):
            slots = [_records(data, shard) for shard in islice(waiting, cycle)]


def _records(data: Data, shard: int | None) -> Any:
    """Return an iterator over the numbers of a shard's records."""
    first = 0 if shard is None else shard * data.records_per_shard
    return iter(range(first, first + (0 if shard is None else data.records_per_shard)))


ORDERS: dict[str, Callable[[Data, int, int], Numbers]] = {
    **{f"streamrec, by shard, {lanes} lanes": by_shard(lanes) for lanes in LANES},
    f"streamrec, by record, {DEFAULT_LANES} lanes": by_record(DEFAULT_LANES),
    **{f"tf.data, interleave {cycle}": shuffled_buffer(cycle) for cycle in CYCLES},
    "tf.data, one file at a time": shuffled_buffer(1),
    **{f"Grain, interleave {cycle}": shuffled_windows(cycle) for cycle in CYCLES},
    "perfect": perfect,
}
"""Function that makes each order, by title."""

# -- the command -----------------------------------------------------------------------------------


@benchmark("shuffle", only=True)
def main(run: Run) -> Report:
    orders = {title: order for title, order in ORDERS.items() if run.selects(title)}
    rows = []
    for title, order in orders.items():
        say(title)
        rows.append({"order": title, **{data.name: chi_square(order, data) for data in DATA}})
    columns = (Column("order", "order", str), *(Column(data.name, data.name) for data in DATA))
    settings = {"batch_size": BATCH_SIZE, "window": WINDOW}
    return Report(table_of(columns, rows), {"settings": settings, "rows": rows})


def chi_square(order: Callable[[Data, int, int], Numbers], data: Data) -> float:
    """Return the figure of one epoch's order."""
    return mixing_of(data.classes_of[order(data, WINDOW, 0)], BATCH_SIZE).chi_square


if __name__ == "__main__":
    main()
