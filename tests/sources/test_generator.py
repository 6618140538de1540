from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamrec.datasets.convert import Destination, convert
from streamrec.errors import DataError, FunctionFailed, WrongFeatureType
from streamrec.plan.order.shard_names import Splits, Task
from streamrec.sources.generator import PIECE, open_generator
from streamrec.sources.reading import Reader, read_source
from tests.datasets.datasets import manifest, names
from tests.sources.tables import NAMES, ROWS, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from streamrec.datasets.convert import Outcome

HALVES = Splits.parse("train=0.5,test=0.5")


def fail(error: DataError) -> None:
    raise error


def write(function: Callable[[], Iterable[Any]], into: str, *, skips: bool = False) -> Outcome:
    source = open_generator("x:y", function=function, key="a")
    reader = Reader(source, HALVES, skips=skips)
    blocks = read_source(source, reader, Task(0, 1), 1)
    return convert(source, blocks, Destination(into, Task(0, 1), shard_bytes=100), HALVES)


def test_records_are_written(tmp_path: Path) -> None:
    source = open_generator("tables:rows", function=rows, key="seconds")
    assert source.identity is None
    blocks = read_source(source, Reader(source, None, skips=False), Task(0, 1), 4)
    convert(source, blocks, Destination(f"{tmp_path}/x", Task(0, 1), shards=2), None)
    assert manifest(tmp_path).records == len(ROWS)
    assert manifest(tmp_path).features == dict.fromkeys(sorted(NAMES), "float32")


def test_pieces_and_keys() -> None:
    source = open_generator("x:y", function=rows, key="seconds")
    pieces = list(source.pieces())
    assert [len(piece) for piece in pieces] == [PIECE] * (len(ROWS) // PIECE) + [len(ROWS) % PIECE]
    keys = source.read(pieces[0], fail).keys
    assert keys is not None
    assert keys[0] == str(float(ROWS[0][0])).encode()


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (3, "the record is of type int; yield bytes"),
        ({"b": 1}, "the record has no 'a'"),
        (b"x", "the record has no 'a'"),
        ({"a": object()}, "cannot be encoded"),
    ],
)
def test_wrong_records_are_named(record: Any, words: str) -> None:
    source = open_generator("x:y", function=lambda: [{"a": b"1"}, record], key="a")
    (piece,) = source.pieces()
    errors: list[DataError] = []
    block = source.read(piece, errors.append)
    assert (len(block.records), block.keys) == (1, [b"1"])
    assert str(errors[0]).startswith("x:y, record 1")
    assert words in str(errors[0])


@pytest.mark.parametrize("before", [0, 1, PIECE - 1, PIECE, PIECE + 1])
def test_the_record_at_which_the_function_fails(before: int) -> None:
    def failing() -> Iterator[bytes]:
        yield from [b"x"] * before
        raise ValueError("no more")

    with pytest.raises(FunctionFailed) as caught:
        list(open_generator("x:y", function=failing, key=None).pieces())
    assert caught.value.record == before


def test_a_type_that_changes(tmp_path: Path) -> None:
    def changing() -> Iterator[Any]:
        yield from ({"a": number, "b": 1} for number in range(300))
        yield {"a": 300, "b": b"one"}
        yield {"a": 301, "b": 1}

    words = "x:y, record 300, feature b: the value is of type bytes, but the feature is int64 since"
    with pytest.raises(WrongFeatureType, match=words):
        write(changing, f"{tmp_path}/")
    assert names(tmp_path) == []
    outcome = write(changing, f"{tmp_path}/", skips=True)
    assert (outcome.skipped, sum(split.records for split in outcome.splits)) == (1, 301)
    assert str(outcome.refusals[0]).startswith(words)
    for split in HALVES.names:  # equal in all splits
        assert manifest(tmp_path, split).features == {"a": "int64", "b": "int64"}


def test_a_function_that_raises() -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise KeyError("no")

    with pytest.raises(FunctionFailed, match="x:y raised KeyError for record 1: 'no'; mend"):
        list(open_generator("x:y", function=broken).pieces())
