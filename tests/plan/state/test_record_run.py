"""The records of a step in a large dataset: from arrays alone, which no I/O fills."""

from __future__ import annotations

import numpy as np
import pytest

from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.window import Windows
from streamrec.plan.state.record_run import Delivery, RecordRun, lane_counts
from streamrec.values.record_rows import Chunks


def large_run(shards: int, chunks: int, records: int, rank: int) -> RecordRun:
    """Return rank ``rank`` of 8 in a run over equal shards of equal chunks of 1 MiB."""
    count = shards * chunks
    begin = np.tile(np.arange(chunks, dtype=np.int64) << 20, shards)
    table = Chunks(
        np.repeat(np.arange(shards, dtype=np.int64), chunks),
        begin,
        begin + (1 << 20),
        np.tile(np.arange(chunks, dtype=np.int64) * records, shards),
        np.full(count, records, np.int64),
    )
    order = RecordOrder(table, 48, shuffle=True, seed=5, joins=False)
    return RecordRun(
        order=order,
        windows=ChunkWindows(order, Windows(256 << 20, 48, 5)),
        lanes=range(rank, 48, 8),
        batch_size=32,
        epoch=0,
        step=0,
        end_epoch=3,
        remainder="drop",
    )


def test_any_step_of_a_hundred_thousand_shards_and_its_inverse() -> None:
    run = large_run(100_000, 1, 10_000, rank=3)
    assert run.order.records == 10**9
    assert run.steps is not None
    step = run.steps - 1
    found = Delivery(run).of_steps(step, step + 1)
    assert found.steps.tolist() == [step] * 32
    assert set(found.lanes.tolist()) <= set(run.lanes)
    again = [Delivery(run).step_of(int(r), int(e)) for r, e in zip(*found[3:1:-1], strict=True)][:4]
    assert again == [step] * 4
    chunks, inside = run.order.chunk_places(found.records)
    shards = run.order.table.shard[chunks].tolist()
    numbers = (run.order.table.first_record[chunks] + inside).tolist()
    places = [run.order.record_number(s, n) for s, n in zip(shards, numbers, strict=True)]
    assert places == found.records.tolist()
    assert run.order.record_number(0, 10_000) is None


@pytest.mark.parametrize("rows", range(14))
def test_taken_is_the_round_robin(rows: int) -> None:
    counts = np.array([4, 5, 4, 5])
    given_rows = [
        (number, lane) for number in range(5) for lane in range(4) if number < counts[lane]
    ]
    expected = [sum(1 for _, lane in given_rows[:rows] if lane == number) for number in range(4)]
    assert lane_counts(4, counts, rows).tolist() == expected
    assert lane_counts(4, None, rows).tolist() == [(rows + 3 - lane) // 4 for lane in range(4)]


@pytest.mark.parametrize("rows", range(16, 19))
def test_taken_in_the_last_round(rows: int) -> None:
    counts = np.array([4, 5, 4, 5])
    assert lane_counts(4, counts, rows).tolist() == [4, 4 + (rows > 16), 4, 4 + (rows > 17)]
