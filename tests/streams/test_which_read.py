"""``streamrec which --read`` says what ``batch.origin`` of the run says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.streams.opening import checked
from streamrec.streams.which_read import read_places
from tests.pipeline.small_datasets import write, write_index
from tests.streams.test_which import ALWAYS, SHARDS, delivered

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

COMMON = {**ALWAYS, "batch_size": 4, "shuffle": True, "lanes": 4}
UNINDEXED = {"index": None, "steps_per_epoch": 5}


@pytest.fixture
def source(tmp_path: Path) -> str:
    source = write(tmp_path, SHARDS)
    write_index(source, 200)
    return source


def is_even(columns: dict[str, Any]) -> npt.NDArray[np.bool_]:
    return np.array([len(record) % 2 == 0 for record in columns["records"].to_list()])


def place(source: str, steps: range, rank: int | None = None, **values: Any) -> list[Any]:
    world_size, state = values.pop("world_size", 1), values.pop("state", None)
    given: dict[str, Any] = {"rank": rank, "world_size": world_size, "state": state}
    found = sr.which(source, steps, read=True, **given, **values)
    assert found == read_places(checked(source, None, values).dataset(), steps, **given)
    return found


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "values",
    [{"filter": is_even, "index": None}, {"index": None}, UNINDEXED, {"length_buckets": 2}, {}],
    ids=["filter", "no index", "counted", "length_buckets", "index"],
)
def test_every_step_from_the_beginning_and_from_a_state(
    source: str, values: dict[str, Any], world: int
) -> None:
    values = {**COMMON, **values}
    if world == 2 and values["index"] is None and "steps_per_epoch" not in values:
        values["steps_per_epoch"] = 3
    rank = world - 1
    rows, middle = delivered(source, rank, world, runs=2, **values)
    last = max(step for step, *_ in rows) + 1
    steps = range(3, last)
    wanted = [row for row in rows if row[0] in steps]
    for state in (None, middle):
        found = place(source, steps, rank, world_size=world, state=state, **values)
        assert [(one.step, one.shard, one.record) for one in found] == wanted
        assert {one.rank for one in found} == {rank}


def test_all_ranks(source: str) -> None:
    found = place(source, range(2), world_size=2, **COMMON)
    assert [(one.rank, one.step, one.row) for one in found] == [
        (rank, step, row) for rank in range(2) for step in range(2) for row in range(4)
    ]


def test_a_mix(tmp_path: Path) -> None:
    sources = {name: write(tmp_path / name, SHARDS[:2]) for name in ("a", "b")}
    values: dict[str, Any] = {
        "batch_size": 4,
        "lanes": 2,
        "weights": {"a": 1, "b": 2},
        "exhausted": "stop",
    }
    rows = []
    with sr.mix(sources, None, engine="thread", **values) as stream:
        for step, batch in enumerate(stream):
            names = [stream.shards[shard] for shard in batch.origin.shards]
            rows += [(step, *one) for one in zip(names, batch.origin.records.tolist(), strict=True)]
    settings = checked(sources, None, {**values, "engine": "thread"}).dataset()
    found = read_places(settings, range(1, 4), rank=0, world_size=1)
    assert [(one.step, one.shard, one.record) for one in found] == [
        r for r in rows if 1 <= r[0] < 4
    ]
    assert all(f"/{one.component}/" in one.shard for one in found)
    pairs = {name: (source, values["weights"][name]) for name, source in sources.items()}
    plain = {name: value for name, value in values.items() if name != "weights"}
    assert sr.which(pairs, range(1, 4), read=True, **plain) == found
    schedule = [(0, values["weights"])]
    assert sr.which(sources, range(1, 4), read=True, **{**plain, "weights": schedule}) == found


TOKENS = {"tokens": sr.RaggedFeature("int64")}
LENGTHS = (3, 1, 6, 0, 2, 9, 4)


def write_tokens(tmp_path: Path) -> str:
    """Write 40 records a shard, whose values are 40 times the shard's number, and theirs."""
    for shard in range(4):
        with sr.TFRecordWriter(f"{tmp_path}/part-{shard}.tfrecord") as writer:
            for number in range(40 * shard, 40 * shard + 40):
                writer.write({"tokens": [number] * LENGTHS[number % len(LENGTHS)]})
    return f"{tmp_path}/part-*.tfrecord"


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "pack",
    [sr.Pack(8, bins=3), sr.Pack(6, split=True), sr.Pack({"tokens": 12}, documents=2, bins=2)],
    ids=["whole", "split", "documents"],
)
@pytest.mark.parametrize("size", [3, None])
def test_every_record_of_a_pack(
    tmp_path: Path, pack: sr.Pack, world: int, size: int | None
) -> None:
    source = write_tokens(tmp_path)
    values: dict[str, Any] = {"batch_size": size, "lanes": 4, "shuffle": True, "pack": pack}
    values |= {"shuffle_window": 1000, "steps_per_epoch": 8, "epochs": 1}
    rank = world - 1
    rows, middle = [], None
    with sr.open(source, TOKENS, rank=rank, world_size=world, engine="thread", **values) as stream:
        for step, batch in enumerate(stream):
            tokens, ids = (batch[name] for name in ("tokens", "tokens_segment_ids"))
            for row, (own, segments) in enumerate(
                zip(*map(np.atleast_2d, (tokens, ids)), strict=True)
            ):
                first = np.flatnonzero(np.diff(segments, prepend=0) & (segments > 0))
                rows += [(step, row, number) for number in own[first].tolist()]
            if step == 3:
                middle = stream.state_dict()
    of: dict[str, Any] = {"rank": rank, "world_size": world, **values}
    found = sr.which(source, range(8), TOKENS, read=True, **of)
    told = [(one.step, one.row, 40 * int(one.shard[-10]) + one.record) for one in found]
    assert told == rows
    assert max(rows.count(one) for one in rows) == 1 < len(rows) / 8
    later = sr.which(source, range(5, 8), TOKENS, read=True, state=middle, **of)
    assert later == [one for one in found if one.step >= 5]


def test_the_columns_that_name_records_are_not_seen(tmp_path: Path) -> None:
    """Neither a transform nor the batches of other streams have them."""
    source, pack = write_tokens(tmp_path), sr.Pack(8)
    with sr.open(source, TOKENS, batch_size=2, pack=pack, engine="thread") as stream:
        assert set(next(stream)) == {"tokens", "tokens_segment_ids", "tokens_positions"}
    values: dict[str, Any] = {"batch_size": 2, "pack": pack, "transform": refuse}
    assert sr.which(source, 1, TOKENS, read=True, **values)


def refuse(columns: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError(columns)


def test_single_records(source: str) -> None:
    values = {**COMMON, "batch_size": None, "index": None}
    with sr.open(source, **values) as stream:
        count = sum(1 for _ in stream)
    found = place(source, range(count), **values)
    assert [one.step for one in found] == [*range(count)]
    assert {one.row for one in found} == {0}


@pytest.mark.parametrize("values", [{}, UNINDEXED], ids=["index", "counted"])
def test_excluded_records_are_left_out(source: str, values: dict[str, Any]) -> None:
    """As the masked rows of damaged records are: nobody has got them."""
    values = {**COMMON, "epochs": 1, **values}
    every = place(source, range(5), **values)
    gone = {(one.shard.rpartition("/")[2], one.record) for one in every[:3]}
    found = place(source, range(5), **values, exclude=sorted(gone))
    assert found == [one for one in every if (one.shard.rpartition("/")[2], one.record) not in gone]


def test_refusals(source: str) -> None:
    with pytest.raises(ConfigError, match="end before step 999999, at step 24; give a state"):
        place(source, range(999_999, 1_000_000), **{**COMMON, "epochs": 1, "steps_per_epoch": 12})
    with pytest.raises(ConfigError, match="after step 1; give an earlier one"):
        place(source, range(1, 2), state={"version": 3, "step": 2}, **COMMON)
    with pytest.raises(ConfigError, match="give steps, and leave out find"):
        sr.which(source, read=True, find=("part-00000", 3), **COMMON)
    with pytest.raises(ConfigError, match="each run has another order"):
        place(source, range(1), **{**COMMON, "index": None, "ordered": False})
