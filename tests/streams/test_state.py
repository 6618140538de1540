"""One thread or task takes from a stream at a time; another that tries harms nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import BatchOutOfOrder, Busy, MalformedPosition
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import Beginning
from streamrec.streams.ranks import Rank
from streamrec.streams.state import Cursor, Row, Turn
from streamrec.values.columns import BytesColumn
from tests.feeder.fake_dataset import ROWS, batch, position
from tests.forked_children import in_forked_child
from tests.pipeline.small_datasets import identities, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


ONE = Rank(0, 1)


def single_records(count: int) -> Batch:
    """Rows that travelled together, behind one position."""
    behind = replace(position(10), step=10 + count, skip=count)
    origin = Origin(np.zeros(count, np.int32), np.arange(count))
    rows = BytesColumn.of([b"%d" % i for i in range(count)])
    return Batch({"records": rows}, count, 0, origin, behind)


def state_of(cursor: Cursor) -> dict[str, Any] | None:
    """The state after what was taken last; ``None`` while it is that of several ranks."""
    one, *others = cursor.mark().taken
    return None if others else one.to_dict()


def record_of(cursor: Cursor) -> dict[str, Any]:
    row = cursor.row()
    assert isinstance(row, Row)
    return row.record()


def test_a_column_that_is_called_records_and_holds_none() -> None:
    numbers = np.arange(2)
    cursor = cursor_at(10)
    cursor.receive(replace(single_records(2), columns={"records": numbers}))
    assert [record_of(cursor), record_of(cursor)] == [{"records": 0}, {"records": 1}]


def test_a_new_one_stands_at_the_beginning() -> None:
    cursor = Cursor()
    assert (cursor.epoch, cursor.run_epoch, cursor.step, cursor.rows) == (0, 0, 0, 0)
    assert state_of(cursor) == {"version": 3, "step": 0}
    assert cursor.resume_point(Rank(3, 4)) == Beginning()


def cursor_at(step: int) -> Cursor:
    """Return a cursor that goes on from a state."""
    cursor = Cursor()
    cursor.load(position(step).to_dict())
    return cursor


def test_follows_batches() -> None:
    cursor = cursor_at(4)
    cursor.take(batch(4))
    assert cursor.step == 5
    assert state_of(cursor) == position(5).to_dict()


@pytest.mark.parametrize("step", [0, 2, 3, 5, 6, 90])
def test_only_the_batch_that_is_due_is_taken(step: int) -> None:
    cursor = cursor_at(4)
    with pytest.raises(BatchOutOfOrder, match="step 4: a batch was lost or repeated") as caught:
        cursor.take(batch(step))
    assert (caught.value.step, cursor.step, cursor.batches, cursor.records) == (step, 4, 0, 0)
    cursor.take(batch(4))
    assert (cursor.step, cursor.batches, cursor.records) == (5, 1, ROWS)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_only_the_rows_that_are_due_are_received(count: int) -> None:
    cursor = cursor_at(10)
    with pytest.raises(BatchOutOfOrder):
        cursor.receive(replace(single_records(count), next_position=position(11 + count)))
    assert (cursor.rows, cursor.step) == (0, 10)


@pytest.mark.parametrize("step", [3, 5])
def test_a_run_ends_behind_its_last_batch(step: int) -> None:
    cursor = cursor_at(4)
    with pytest.raises(BatchOutOfOrder):
        cursor.end(position(step))
    cursor.end(replace(position(4), run_epoch=1))
    assert (cursor.step, cursor.run_epoch) == (4, 1)


def test_the_steps_before_a_later_epoch_are_not_known() -> None:
    cursor = Cursor()
    cursor.begin(3)
    cursor.take(batch(60))
    assert cursor.step == 61


def test_going_back_undoes_a_batch() -> None:
    cursor = cursor_at(4)
    mark = cursor.mark()
    cursor.take(batch(4))
    cursor.go_back(mark)
    assert state_of(cursor) == position(4).to_dict()
    assert (cursor.batches, cursor.records) == (0, 0)


@pytest.mark.parametrize("taken", [0, 1])
def test_going_back_undoes_a_row(taken: int) -> None:
    cursor = cursor_at(10)
    cursor.receive(single_records(3))
    cursor.row()
    before, mark = state_of(cursor), cursor.mark()
    for _ in range(taken):
        cursor.row()
    cursor.go_back(mark)
    assert (state_of(cursor), cursor.rows, cursor.records) == (before, 0, 1)


def test_rows_are_taken_one_by_one() -> None:
    cursor = cursor_at(10)
    cursor.receive(single_records(3))
    assert [cursor.row(), cursor.row()] == [b"0", b"1"]
    assert (cursor.rows, cursor.step) == (1, 12)
    assert state_of(cursor) == replace(position(12), skip=2).to_dict()


def test_rows_that_wait_come_again() -> None:
    cursor = cursor_at(10)
    cursor.receive(single_records(3))
    cursor.row()
    before = state_of(cursor)
    cursor.settle()
    assert (cursor.rows, state_of(cursor)) == (0, before)
    assert cursor.resume_point(ONE) == replace(position(11), skip=1)


def test_columns_become_mappings() -> None:
    cursor = Cursor()
    whole = batch(0, size=2)
    cursor.receive(replace(whole, next_position=position(len(whole))))
    row = record_of(cursor)
    assert (row["number"], row["name"], row["values"].tolist()) == (0, b"row 0", [0.0, 0.0])


@pytest.mark.parametrize("how", ["begin", "load"])
def test_moving_forgets_the_rows(how: str) -> None:
    cursor = cursor_at(10)
    cursor.receive(single_records(3))
    if how == "begin":
        cursor.begin(2)
    else:
        cursor.load({"version": 3, "epoch": 2})
    assert (cursor.rows, cursor.epoch) == (0, 2)
    assert state_of(cursor) == {"version": 3, "step": 0, "epoch": 2}


def test_states_of_all_ranks() -> None:
    cursor = Cursor()
    cursor.load([replace(position(5, rank, 2), epoch=2 - rank).to_dict() for rank in range(2)])
    assert (state_of(cursor), cursor.epoch, cursor.step) == (None, 1, 5)
    merged = cursor.resume_point(ONE)
    assert (merged.step, merged.epoch) == (5, 1)
    assert isinstance(merged, Position)
    assert len(merged.lanes) == 4


@pytest.mark.parametrize("rank", [Rank(0, 1), Rank(1, 2)])
def test_the_state_of_another_rank_alone(rank: Rank) -> None:
    cursor = Cursor()
    cursor.load(position(5, 0, 2).to_dict())
    with pytest.raises(MalformedPosition, match="one of every rank"):
        cursor.resume_point(rank)


PATIENCE = 60

# Python 3.12 and later warn of each fork of a process with several threads, as this one is.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", ((40,) * 8, (30,) * 8))


class Gate:
    """A ``transform`` that says that it was called, and waits until it is opened."""

    def __init__(self) -> None:
        self.entered, self._opened = threading.Event(), threading.Event()

    def __call__(self, batch: Any) -> Any:
        self.entered.set()
        assert self._opened.wait(PATIENCE)
        return batch

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def opened(source: str, **values: Any) -> sr.Stream:
    return sr.open(source, batch_size=4, lanes=2, engine="thread", **values)


def whole(source: str) -> Any:
    with opened(source) as stream:
        return identities(list(stream))


def test_a_second_thread_is_refused(source: str, gate: Gate) -> None:
    stream = opened(source, transform=gate)
    with ThreadPoolExecutor(1) as thread, stream:
        first = thread.submit(next, stream)
        assert gate.entered.wait(PATIENCE)
        with pytest.raises(Busy, match="another thread or task"):
            next(stream)
        with pytest.raises(Busy), stream:
            pass
        gate.open()
        assert identities([first.result(PATIENCE), *stream]) == whole(source)


def test_threads_may_take_one_after_the_other(source: str) -> None:
    stream = opened(source)
    with ThreadPoolExecutor(1) as thread, stream:
        batches = [next(stream), thread.submit(next, stream).result(PATIENCE)]
        assert identities([*batches, *stream]) == whole(source)


def test_a_child_that_is_forked_meanwhile_has_its_turn(source: str, gate: Gate) -> None:
    stream = opened(source, transform=gate)
    with ThreadPoolExecutor(1) as thread, stream:
        first = thread.submit(next, stream)
        assert gate.entered.wait(PATIENCE)

        def take() -> Any:
            gate.open()
            return identities(list(stream))

        assert in_forked_child(take) == whole(source)
        gate.open()
        assert len(first.result(PATIENCE)) == 4


@asynchronous
async def test_a_second_task_is_refused(source: str, gate: Gate) -> None:
    async with opened(source, transform=gate) as stream:
        first = asyncio.create_task(anext(stream))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        with pytest.raises(Busy, match="another thread or task"):
            await anext(stream)
        gate.open()
        batches = [await first, *[batch async for batch in stream]]
    assert identities(batches) == await asyncio.to_thread(whole, source)


@asynchronous
async def test_a_task_that_is_cancelled_leaves_its_turn(source: str, gate: Gate) -> None:
    async with opened(source, transform=gate) as stream:
        first = asyncio.create_task(anext(stream))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        first.cancel()
        await asyncio.wait([first])
        gate.open()
        batches = [batch async for batch in stream]
    assert identities(batches) == await asyncio.to_thread(whole, source)


def test_a_record_that_another_thread_took(source: str) -> None:
    class Emptied(deque[Any]):
        """Rows as a thread sees them that looks just before the last one is taken."""

        def __len__(self) -> int:
            return 1

    with sr.open(source, lanes=2, engine="thread") as stream:
        first = next(stream)
        stream._cursor._rows = Emptied()
        with pytest.raises(Busy, match="another thread or task"):
            next(stream)
        stream._cursor._rows = deque()
        assert len([first, *stream]) == 16
        assert stream.statistics()["records"] == 16


def test_the_end_of_a_run_leaves_the_turn(source: str) -> None:
    with opened(source) as stream:
        assert identities(list(stream)) == whole(source)
        assert next(iter(stream)).epoch == 1


def test_nobody_waits_for_a_turn() -> None:
    turn = Turn()
    with turn, pytest.raises(Busy), turn:
        pass
    with turn:
        pass
