"""What costs more than its name tells is told of, with the setting that would do."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config import StreamSettings
from streamrec.streams import first_batch
from streamrec.streams.first_batch import MIB, enough

if TYPE_CHECKING:
    from pathlib import Path

RECORD = 100_000
BALANCE = sr.Balance("x")
REST: dict[str, Any] = {
    "source": {"a": "x", "b": "y"},
    "weights": [(0, {"a": 1.0, "b": 1.0})],
    "exhausted": "rest",
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    for shard in range(4):
        with sr.TFRecordWriter(str(tmp_path / f"x-{shard}.tfrecord")) as writer:
            writer.write_many(bytes(RECORD) for _ in range(40))
    return str(tmp_path / "x-*.tfrecord")


def warnings_of(source: str, caplog: pytest.LogCaptureFixture, **settings: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "streamrec"):
        with sr.open(source, rank=0, world_size=1, engine="thread", **settings) as stream:
            assert sum(len(batch) for batch in stream) == 160
    return [one.getMessage() for one in caplog.records if "memory_budget" in one.getMessage()]


def test_it_is_told_once_and_what_it_names_is_enough(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    (said,) = warnings_of(source, caplog, batch_size=64, memory_budget="8MiB")
    assert said.startswith("memory_budget is 8 MiB")
    found = re.search(r"take (\d+) MiB", said)
    assert found is not None
    assert int(found[1]) * MIB >= 3 * 64 * RECORD + 4 * MIB
    assert warnings_of(source, caplog, batch_size=64, memory_budget=f"{found[1]}MiB") == []


def test_a_budget_that_holds_them_is_not_told_of(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(source, caplog, batch_size=8, memory_budget="8MiB") == []
    assert warnings_of(source, caplog, batch_size=64) == []


def test_windows_count() -> None:
    assert enough(batch=10, lanes=2, windows=5) == 5 + 30 + 2 * MIB


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "leaves out 100 of 1000 records, since 48 lanes and batches of 100 rows"),
        ({"lanes": 2}, None),
        ({"remainder": "drop"}, None),
        ({"remainder": "pad"}, None),
        ({"batch_size": 10}, "leaves out 40 of 1000"),
        ({"batch_size": 10, "lanes": 4}, None),
        ({"steps_per_epoch": 3}, None),
    ],
)
def test_records_that_are_left_out(
    settings: dict[str, Any], told: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = said_of_records_left_out(tmp_path, caplog, settings)
    assert len(said) == (told is not None)
    assert told is None or told in said[0]


def said_of_records_left_out(
    directory: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> list[str]:
    first_batch._told.clear()
    with sr.ShardedWriter(str(directory / "x.tfrecord"), shards=4) as writer:
        writer.write_many(b"%d" % record for record in range(1000))
    given: dict[str, Any] = {"batch_size": 50, "index": True, **settings}
    for rank in (0, 1, 0):
        with sr.open(
            directory / "x-*.tfrecord", rank=rank, world_size=2, engine="thread", **given
        ) as stream:
            next(stream)
            next(stream)
    return [one.getMessage() for one in caplog.records if "leaves out" in one.getMessage()]


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, r'set remainder="pad", .*; or in a new run, set lanes=2, which leaves out fewest'),
        ({"lanes": 2, "batch_size": 60}, r'set remainder="pad", .* fill the last batches'),
        (REST, "in a new run, set lanes=2, which leaves out fewest"),
        ({"balance": BALANCE}, "in a new run, set lanes=2, which leaves out fewest"),
        ({"balance": BALANCE, "lanes": 2, "batch_size": 60}, ".* set a smaller batch_size"),
    ],
)
def test_the_advice_can_be_followed(settings: dict[str, Any], advice: str) -> None:
    fitting = StreamSettings(**{"source": "x", "batch_size": 50, "index": True, **settings})
    ways = first_batch._ways_to_keep_records(fitting, settings.get("lanes", 48), world_size=2)
    assert re.fullmatch(advice, ways)
