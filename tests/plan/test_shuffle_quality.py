"""The quality of shuffles, by record and by shard, on data that are sorted by class."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import numpy.typing as npt
import pytest

from streamrec.config.dataset import DEFAULT_LANES
from streamrec.formats.shards.index import CHUNK_BYTES, Index
from streamrec.measure.shuffling import mixing_of
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.shard_order import ShardOrder, open_at_once
from streamrec.plan.order.window import Windows
from tests.by_day import at_night
from tests.plan.oracle import Oracle
from tests.plan.record_orders import entry

WINDOW = 256 << 20
BATCH = 256
CLASSES = 100
PICTURES = 128, 1024, 110_000
ROUNDS = 12
"""Rounds of the lanes: more than twice the five chunks of a lane's full window."""


def lane_of(order: RecordOrder, windows: ChunkWindows, lane: int, shard: int) -> list[int]:
    """Return the records of the lane's first epoch, by their numbers in the dataset."""
    extents = takewhile(lambda extent: extent.epoch == 0, order.extents(lane, 0))
    firsts = [(e.shard * shard + e.first_record + e.skip, e.records or 0) for e in extents]
    read = np.concatenate([np.arange(first, first + count) for first, count in firsts])
    out: list[int] = []
    number = 0
    while len(out) < len(read):
        size = windows.opens(lane, 0, number)
        drawn = windows.permutation(lane, 0, number, np.zeros(size, np.int32))
        out += read[len(out) : len(out) + size][drawn].tolist()
        number += 1
    return out


def epoch_of(shards: int, records: int, length: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the records of all lanes in the order of the round robin, by their numbers."""
    one = entry("shard", (length,) * records, CHUNK_BYTES)
    order = RecordOrder(Index((one,) * shards).chunks(), DEFAULT_LANES, shuffle=True, seed=seed)
    windows = ChunkWindows(order, Windows(WINDOW, DEFAULT_LANES, seed))
    lanes = [lane_of(order, windows, lane, records) for lane in range(DEFAULT_LANES)]
    turns = np.concatenate([np.arange(len(lane)) for lane in lanes])
    numbers = np.concatenate(lanes)[np.argsort(turns, kind="stable")]
    assert np.bincount(numbers, minlength=order.records).tolist() == [1] * order.records
    return numbers


def chi_square(numbers: npt.NDArray[np.int64], records: int) -> float:
    """Return that of the classes in a batch; a perfect shuffle has 1."""
    return mixing_of(numbers * CLASSES // records, BATCH).chi_square


def by_shard_of(shards: int, records: int, length: int, lanes: int) -> npt.NDArray[np.int64]:
    """Return an epoch by shard, in the order of the round robin, by the records' numbers."""
    order = ShardOrder(shards, lanes, shuffle=True)
    windows = Windows(WINDOW, lanes, 0, open_shards=open_at_once(shards, lanes, WINDOW))
    oracle = Oracle(((length,) * records,) * shards, order, windows)
    rows = np.array(oracle.rank(0, 1, range(1)), np.int64)
    return rows[:, 1] * records + rows[:, 2]


@pytest.mark.parametrize("lanes", [8, DEFAULT_LANES, at_night(64)])
@pytest.mark.parametrize(
    ("shape", "most"), [(PICTURES, 1.24), ((512, 128, 220_000), 2.1)], ids=["128", "512"]
)
def test_by_shard_it_is_no_worse_than_a_shuffle_buffer(
    shape: tuple[int, int, int], most: float, lanes: int
) -> None:
    """Whatever the lanes: the limits are what tf.data's has over as many open files."""
    numbers = by_shard_of(*shape, lanes)
    assert np.bincount(numbers).tolist() == [1] * len(numbers)
    assert chi_square(numbers, len(numbers)) < most


@pytest.mark.parametrize("seed", [0, at_night(1)])
@pytest.mark.parametrize(
    ("shards", "records", "length"),
    [PICTURES, (1024, 128, 110_000), (128, 4096, 2_000), (512, 4096, 2_000)],
)
def test_batches_of_data_sorted_by_class_are_nearly_fair_samples(
    shards: int, records: int, length: int, seed: int
) -> None:
    """By default: chi-square over its degrees of freedom, of which a perfect shuffle has 1."""
    numbers = epoch_of(shards, records, length, seed)
    assert chi_square(numbers, shards * records) < 1.5


def test_chunks_do_not_come_round_in_the_same_order() -> None:
    """Else the records of one chunk would come at equal distances."""
    numbers = epoch_of(*PICTURES, seed=0)
    distances = [rounds * DEFAULT_LANES for rounds in range(1, ROUNDS)]
    found = [float(np.corrcoef(numbers[:-n], numbers[n:])[0, 1]) for n in distances]
    assert 0 < found[0] < 0.07  # of one lane's records, few that follow each other are of one chunk
    assert max(found) < 0.25
