from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streamrec.cursor import Cursor
from streamrec.errors import MalformedPosition
from streamrec.plan.place import Beginning
from streamrec.plan.position import Position
from streamrec.ranks import Rank
from streamrec.types import Batch, BytesColumn, Origin
from tests.feeder.double import batch, position

ONE = Rank(0, 1)


def single_records(count: int) -> Batch:
    """Rows that travelled together, behind one position."""
    behind = replace(position(10), step=10 + count, skip=count)
    origin = Origin(np.zeros(count, np.int32), np.arange(count))
    rows = BytesColumn.of([b"%d" % i for i in range(count)])
    return Batch({"records": rows}, count, 0, origin, behind)


def test_a_new_one_stands_at_the_beginning() -> None:
    cursor = Cursor()
    assert (cursor.epoch, cursor.run_epoch, cursor.step, cursor.rows) == (0, 0, 0, 0)
    assert cursor.state == {"version": 2}
    assert cursor.place(Rank(3, 4)) == Beginning()


def test_follows_batches() -> None:
    cursor = Cursor()
    cursor.arrive(batch(4).next_position)
    assert cursor.step == 5
    assert cursor.state == position(5).to_dict()


def test_rows_are_taken_one_by_one() -> None:
    cursor = Cursor()
    cursor.receive(single_records(3))
    assert [cursor.row(), cursor.row()] == [b"0", b"1"]
    assert (cursor.rows, cursor.step) == (1, 12)
    assert cursor.state == replace(position(12), skip=2).to_dict()


def test_rows_that_wait_come_again() -> None:
    cursor = Cursor()
    cursor.receive(single_records(3))
    cursor.row()
    before = cursor.state
    cursor.settle()
    assert (cursor.rows, cursor.state) == (0, before)
    assert cursor.place(ONE) == replace(position(11), skip=1)


def test_columns_become_mappings() -> None:
    cursor = Cursor()
    cursor.receive(batch(0, size=2))
    row = cursor.row()
    assert (row["number"], row["name"], row["values"].tolist()) == (0, b"row 0", [0.0, 0.0])


@pytest.mark.parametrize("how", ["begin", "load"])
def test_moving_forgets_the_rows(how: str) -> None:
    cursor = Cursor()
    cursor.receive(single_records(3))
    if how == "begin":
        cursor.begin(2)
    else:
        cursor.load({"version": 2, "epoch": 2})
    assert (cursor.rows, cursor.epoch, cursor.state) == (0, 2, {"version": 2, "epoch": 2})


def test_states_of_all_ranks() -> None:
    cursor = Cursor()
    cursor.load([replace(position(5, rank, 2), epoch=2 - rank).to_dict() for rank in range(2)])
    assert (cursor.state, cursor.epoch, cursor.step) == (None, 1, 5)
    merged = cursor.place(ONE)
    assert (merged.step, merged.epoch) == (5, 1)
    assert isinstance(merged, Position)
    assert merged.lanes.shape[1] == 4


@pytest.mark.parametrize("rank", [Rank(0, 1), Rank(1, 2)])
def test_the_state_of_another_rank_alone(rank: Rank) -> None:
    cursor = Cursor()
    cursor.load(position(5, 0, 2).to_dict())
    with pytest.raises(MalformedPosition, match="one of every rank"):
        cursor.place(rank)
