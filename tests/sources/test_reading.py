from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import pytest

from streamrec.errors import DataError, StreamrecError
from streamrec.plan.order.shard_names import Splits, Task
from streamrec.sources.reading import AHEAD, Reader, read_source
from streamrec.sources.source import COPIES, Block, Divisible, Memory
from streamrec.values.columns import BytesColumn
from tests.by_day import at_night

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.sources.source import Refuse

LINES = Path(__file__).parents[2].joinpath("LICENSE").read_bytes().splitlines()
"""The lines of a real text: one piece each."""


@dataclass
class Lines:
    """A source of lines; reads_in is set by the tests."""

    reads_in: Any = "itself"
    unit: ClassVar[str] = "lines"
    features: Any = None
    labels: Any = None
    identity: Any = "lines"
    total: int | None = len(LINES)
    taken: int = 0
    ends: bool = False

    def pieces(self) -> Iterator[int]:
        for number in range(len(LINES)):
            self.taken += 1
            yield number

    def read(self, piece: int, refuse: Refuse) -> Block:
        if self.ends:
            os.kill(os.getpid(), signal.SIGKILL)
        if LINES[piece]:
            return Block(BytesColumn.of([LINES[piece]]), 1)
        refuse(DataError("the line is empty; remove it", record=piece))
        return Block(BytesColumn.of([]), 1)


def lines_of(source: Any, workers: int, task: Task = Task(0, 1)) -> list[list[bytes]]:
    reader = Reader(source, None, skips=True)
    return [
        [bytes(record) for record in cast("Any", read.block.records)]
        for read in read_source(source, reader, task, workers)
    ]


@pytest.mark.parametrize("reads_in", ["itself", "threads", "processes"])
def test_the_order_does_not_depend_on_workers(reads_in: Any) -> None:
    expected = [[line] if line else [] for line in LINES]
    assert lines_of(Lines(reads_in), 3) == expected
    assert lines_of(Lines(reads_in), 1) == expected


def test_tasks_take_turns() -> None:
    parts = [lines_of(Lines(), 1, Task(n, 3)) for n in range(3)]
    assert parts[1] == [[line] if line else [] for line in LINES[1::3]]
    assert sum(map(len, parts)) == len(LINES)


@dataclass(frozen=True)
class Files(Divisible):
    """A source of files of one line each."""

    files: Any = tuple(range(len(LINES)))
    reads_in: ClassVar[str] = "itself"

    def pieces(self) -> Iterator[int]:
        yield from self.files

    def read(self, piece: int, refuse: Refuse) -> Block:
        return Lines().read(piece, refuse)


def test_tasks_have_files_of_their_own_where_there_are_enough() -> None:
    parts = [lines_of(Files(), 1, Task(n, 3)) for n in range(3)]
    assert list(chain.from_iterable(parts)) == lines_of(Lines(), 1)
    reader = Reader(cast("Any", Files()), None, skips=True)
    reader.first = 2
    source: Any = Files()
    (second, *_) = read_source(source, reader, Task(1, 3), 1)
    assert list(map(bytes, cast("Any", second.block.records))) == parts[1][2]
    many = len(LINES) + 1
    assert lines_of(Files(), 1, Task(1, many)) == lines_of(Lines(), 1, Task(1, many))


@dataclass
class Large(Lines):
    """A source of lines whose pieces tell that they are large."""

    reads_in: Any = "threads"
    read_on: list[int] = field(default_factory=list)

    def pieces(self) -> Iterator[Any]:
        yield from map(_Piece, super().pieces())

    def read(self, piece: Any, refuse: Refuse) -> Block:
        self.read_on.append(piece.number)
        return super().read(piece.number, refuse)


class _Piece(NamedTuple):
    number: int
    nbytes: int = 1000


@pytest.mark.parametrize(("record", "at_once"), [(999, 1), (2000, 2), (1 << 20, AHEAD * 3)])
def test_pieces_that_are_read_at_once_are_bounded(record: int, at_once: int) -> None:
    source = Large()
    reader = Reader(cast("Any", source), None, skips=True)
    reading = read_source(
        cast("Any", source), reader, Task(0, 1), 3, memory=Memory(COPIES * record)
    )
    for given in range(1, 10):
        next(reading)
        assert len(source.read_on) <= given + at_once - 1
    assert source.taken <= 9 + at_once  # the next one is known already
    assert len(list(reading)) == len(LINES) - 9


def test_mixed_parts_take_turns_at_files_too() -> None:
    source: Any = Files()
    reader = Reader(source, None, skips=True)
    mixed = read_source(source, reader, Task(1, 3), 1, is_mixed=True)
    found = [list(map(bytes, cast("Any", read.block.records))) for read in mixed]
    assert found == lines_of(Lines(), 1, Task(1, 3))


class Turning(Lines):
    """A source whose pieces can be read only until the next one is asked for."""

    def read(self, piece: int, refuse: Refuse) -> Block:
        assert self.taken == piece + 1
        return super().read(piece, refuse)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_read_by_itself_is_read_in_turn_with_its_pieces(workers: int) -> None:
    assert len(lines_of(Turning(), workers)) == len(LINES)
    assert len(lines_of(Turning(), workers, Task(1, 2))) == len(LINES) // 2


class OneLine(Lines):
    """A source of one piece, which tells the process that reads it."""

    def pieces(self) -> Iterator[int]:
        yield 0

    def read(self, piece: int, refuse: Refuse) -> Block:
        return Block(BytesColumn.of([b"%d" % os.getpid()]), 1)


def test_one_piece_starts_no_process() -> None:
    assert lines_of(OneLine("processes"), 2) == [[b"%d" % os.getpid()]]


def test_few_pieces_are_read_ahead() -> None:
    source: Any = Lines("threads")
    reading = read_source(source, Reader(source, None, skips=True), Task(0, 1), 2)
    next(reading)
    assert source.taken <= AHEAD * 2
    reading.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("reads_in", ["itself", "threads", at_night("processes")])
def test_errors_are_raised_or_listed(reads_in: Any) -> None:
    source: Any = Lines(reads_in)
    empty = [n for n, line in enumerate(LINES) if not line]
    with pytest.raises(DataError, match=f"record {empty[0]}: the line is empty"):
        list(read_source(source, Reader(source, None, skips=False), Task(0, 1), 2))
    reading = read_source(source, Reader(source, None, skips=True), Task(0, 1), 2)
    assert [error.record for read in reading for error in read.skipped] == empty


def test_a_worker_that_is_killed_is_an_error() -> None:
    source: Any = Lines("processes", ends=True)
    with pytest.raises(StreamrecError, match="was ended by the system"):
        list(read_source(source, Reader(source, None, skips=True), Task(0, 1), 2))


def test_records_are_their_own_keys() -> None:
    splits, source = Splits.parse("a=1/2,b=1/2"), Lines()
    reader = Reader(cast("Any", source), splits, skips=True)
    for number in (0, 5, 9):
        found = reader(number).splits
        assert found is not None
        assert found.tolist() == splits.of([LINES[number]] if LINES[number] else []).tolist()
