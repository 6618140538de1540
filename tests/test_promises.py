"""Runs the promises that ``promises.md`` makes for each setting, and finds their tests."""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import CorruptRecord
from tests.by_day import at_night
from tests.pages import DOCS, is_defined, named_tests
from tests.pipeline.small_datasets import write_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = DOCS / "reference" / "promises.md"
PROMISES = ("ranks", "resume", "once", "checked", "steps")
"""Those that are run here; the sixth, of memory, has a test of its own."""
SHARDS = (13, 9, 17, 7)
EVERYTHING = list(range(sum(SHARDS)))
DAMAGED = 2
APART = ("cache", "dtypes", "fetch_processes", "max_concurrency", "memory_budget")
FOOTER = 4
"""Bytes of a frame behind its payload: the CRC."""
FEATURES = {"id": sr.FixedLenFeature((), "int64")}
_CODE = re.compile(r"`(\w+=.+)`")


def table() -> list[tuple[str, dict[str, str]]]:
    """Return the setting of each row, and its cell for each promise."""
    text = PAGE.read_text().partition("| setting |")[2].partition("\n\n")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[1:]]
    return [
        (cells[0], dict(zip((*PROMISES, "memory"), cells[1:], strict=True))) for cells in lines[1:]
    ]


def case(code: str, promise: str, *, is_kept: bool) -> Any:
    """Return a cell; by day, settings that have no part in the order show one promise alone."""
    by_day = promise == "resume" or not code.startswith(APART)
    make = pytest.param if by_day else at_night
    return make(code, promise, is_kept, id=f"{promise}, {code}")


ROWS = table()
CASES = [
    case(code[1], promise, is_kept=cell.startswith("kept"))
    for setting, cells in ROWS
    for promise, cell in cells.items()
    if (code := _CODE.fullmatch(setting)) and promise in PROMISES
    if cell.startswith("kept") or promise in ("once", "checked")
]


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Write shards of numbered records, and their index."""
    first = 0
    for shard, count in enumerate(SHARDS):
        with sr.TFRecordWriter(str(tmp_path / f"part-{shard}.tfrecord")) as writer:
            writer.write_many({"id": first + i} for i in range(count))
        first += count
    write_index(f"{tmp_path}/part-*.tfrecord", 100)
    return f"{tmp_path}/part-*.tfrecord"


def damage(source: str) -> None:
    """Flip a bit of a record's number, its last byte; the file looks as old as it was."""
    path = Path(source).parent / "part-0.tfrecord"
    data, times = bytearray(path.read_bytes()), path.stat()
    size = len(data) // SHARDS[0]
    data[size * (DAMAGED + 1) - FOOTER - 1] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def opened(source: str, settings: dict[str, Any], **more: Any) -> sr.Stream[Any]:
    base = {"lanes": 4, "batch_size": 4, "rank": 0, "world_size": 1, "engine": "thread"}
    return sr.open(source, FEATURES, **{**base, **settings, **more})


def ids(batch: Any) -> list[int]:
    there = batch["id"] if batch.mask is None else batch["id"][batch.mask]
    return there.tolist()  # type: ignore[no-any-return]


def epoch(source: str, settings: dict[str, Any]) -> Iterator[list[int]]:
    with opened(source, settings) as stream:
        yield from map(ids, stream)


def counted(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what several ranks must set without an index."""
    return {} if {"index", "steps_per_epoch"} & settings.keys() else {"steps_per_epoch": 5}


def ranks(source: str, settings: dict[str, Any]) -> None:
    """Check that global batches are the same for one rank and for four."""

    def first(world_size: int) -> list[list[int]]:
        ends = {**counted(settings), "batch_size": 4 // world_size, "world_size": world_size}
        parts = [
            list(epoch(source, {**settings, **ends, "rank": rank})) for rank in range(world_size)
        ]
        whole = [sorted(chain(*batch)) for batch in zip(*parts, strict=False)]
        return whole[:5]  # an index gives several ranks fewer batches in the end

    assert first(1) == first(4)


def resume(source: str, settings: dict[str, Any]) -> None:
    """Check that a stream that stopped goes on as one that did not."""
    with opened(source, settings) as stream:
        whole = [(ids(batch), batch.next_position) for batch in stream]
    with opened(source, settings) as stream:
        stream.load_state_dict(whole[2][1].to_dict())
        assert [ids(batch) for batch in stream] == [records for records, _ in whole[3:]]


def once(source: str, settings: dict[str, Any]) -> None:
    """Check that an epoch has every record once: of those that a filter keeps."""
    if "on_corrupt" in settings:
        damage(source)
    keep = settings.get("filter", lambda columns: columns["id"] >= 0)
    expected = np.array(EVERYTHING)[keep({"id": np.array(EVERYTHING)})]
    assert Counter(chain(*epoch(source, settings))) == Counter(expected.tolist())


def checked(source: str, settings: dict[str, Any]) -> None:
    """Check that a damaged record is found: it ends the stream, or is left out and counted."""
    damage(source)
    if "on_corrupt" not in settings:
        with pytest.raises(CorruptRecord):
            list(epoch(source, settings))
        return
    with opened(source, settings) as stream:
        assert DAMAGED not in chain(*map(ids, stream))
        assert stream.statistics()["skipped_records"] == 1


def steps(source: str, settings: dict[str, Any]) -> None:
    """Check that two ranks have as many batches."""
    ends = {**counted(settings), "world_size": 2, "batch_size": 2}
    counts = [len(list(epoch(source, {**settings, **ends, "rank": rank}))) for rank in range(2)]
    assert counts[0] == counts[1] > 0


CHECKS: dict[str, Callable[[str, dict[str, Any]], None]] = {
    check.__name__: check for check in (ranks, resume, once, checked, steps)
}


@pytest.mark.parametrize(("code", "promise", "is_kept"), CASES)
def test_a_promise_is_kept_or_lost_as_told(
    source: str, code: str, promise: str, is_kept: bool
) -> None:
    settings = eval(f"dict({code})")
    if is_kept:
        CHECKS[promise](source, settings)
    else:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            CHECKS[promise](source, settings)


def test_a_mix_has_the_same_batches_on_every_number_of_ranks(source: str) -> None:
    """The row of the mix has no code, because a mix is opened in another way."""

    def first(world_size: int) -> list[list[int]]:
        streams = [
            sr.mix(
                {"a": (source, 0.7), "b": (source, 0.3)},
                FEATURES,
                batch_size=4 // world_size,
                lanes=4,
                shuffle=True,
                steps_per_epoch=9,
                rank=rank,
                world_size=world_size,
                engine="thread",
            )
            for rank in range(world_size)
        ]
        parts = [[ids(batch) for batch in stream] for stream in streams]
        return [sorted(chain(*batch)) for batch in zip(*parts, strict=True)]

    assert len(first(1)) == 9
    assert first(1) == first(4)


def test_each_cell_is_kept_or_lost() -> None:
    assert len(CASES) > 60
    for setting, cells in ROWS:
        for promise, cell in cells.items():
            assert re.match(r"(kept|lost)\b", cell), (setting, promise)


def test_what_holds_the_rest_exists() -> None:
    named = named_tests(PAGE.read_text())
    assert len(named) > 20
    for path, names in named:
        assert is_defined(path, names), (path, names)
