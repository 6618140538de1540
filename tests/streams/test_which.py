"""``streamrec.which`` says what ``batch.origin`` of the run says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError, StateError
from streamrec.streams.opening import checked
from streamrec.streams.which import epoch_shards
from tests.pipeline.small_datasets import write, write_index
from tests.pipeline.strategies import orders, shards_of
from tests.support import examples

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.dataset_places import DeliveredRecord
    from tests.pipeline.strategies import Shards

SHARDS = tuple(tuple(range(20 + shard, 40 + 2 * shard)) for shard in range(5))
ALWAYS: dict[str, Any] = {
    "index": True, "memory_budget": "32MiB", "engine": "thread", "shuffle_window": 4000
}  # fmt: skip
Read = list[tuple[int, str, int]]


@pytest.fixture
def source(tmp_path: Path) -> str:
    source = write(tmp_path, SHARDS)
    write_index(source, 200)
    return source


def delivered(
    source: str, rank: int, world: int, state: Any = None, runs: int = 1, **values: Any
) -> tuple[Read, dict[str, Any]]:
    """Read a rank's runs; return the step, shard and record of each row, and a state midway."""
    rows: Read = []
    middle: dict[str, Any] = {"version": 3}
    stream = sr.open(source, rank=rank, world_size=world, **values)
    with stream:
        if state is not None:
            stream.load_state_dict(state)
        for _ in range(runs):
            for batch in stream:
                step = stream.state_dict()["step"] - 1
                named = zip(
                    batch.origin.shards.tolist(), batch.origin.records.tolist(), strict=True
                )
                rows += [(step, stream.shards[s], r) for s, r in named if s >= 0]
                if step == 2:
                    middle = stream.state_dict()
    return rows, middle


def told(places: list[DeliveredRecord]) -> Read:
    return [(place.step, place.shard, place.record) for place in places]


@pytest.mark.parametrize(
    ("world", "values"),
    [
        (1, {"batch_size": 7}),
        (1, {"batch_size": 7, "exclude": [("part-00001.tfrecord", 3)]}),
        (1, {"batch_size": 7, "epochs": 2, "shuffle": True, "shuffle_window": 3000}),
        (2, {"batch_size": 6, "epochs": 2, "shuffle": True, "shuffle_window": 0}),
        (4, {"batch_size": 3, "epochs": 3, "shuffle": True, "remainder": "pad"}),
        (8, {"batch_size": 2, "epochs": 2, "shuffle": True, "shuffle_window": 5000}),
        (2, {"batch_size": 4, "epochs": 1, "steps_per_epoch": 9, "shuffle": True}),
    ],
)
def test_every_step_of_every_rank(source: str, world: int, values: dict[str, Any]) -> None:
    values = {**ALWAYS, "lanes": 8, **values}
    for rank in range(world):
        rows, _ = delivered(source, rank, world, runs=2, **values)
        steps = range(rows[-1][0] + 1)
        of = {"rank": rank, "world_size": world, **values}
        assert told(sr.which(source, steps, **of)) == rows
        assert told(sr.which(source, 5, **of)) == [row for row in rows if row[0] == 5]


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    shards_of(6, 12, 300),
    st.integers(1, 900),
    orders(6000, 3),
    st.sampled_from([1, 2, 3, 4, 6]),
    st.sampled_from(["drop", "pad"]),
    st.integers(1, 5),
)
def test_any_dataset(
    tmp_path: Path,
    shards: Shards,
    chunk: int,
    order: dict[str, Any],
    world: int,
    ends: str,
    size: int,
) -> None:
    source = write(tmp_path / str(hash((shards, chunk, world, ends, size))), shards)
    write_index(source, chunk)
    if sum(map(len, shards)) < 12:
        return
    values = {**ALWAYS, **order, "lanes": 12, "remainder": ends, "batch_size": size}
    rows, _ = delivered(source, world - 1, world, **values)
    of = {"rank": world - 1, "world_size": world, **values}
    assert told(sr.which(source, range(rows[-1][0] + 1 if rows else 0), **of)) == rows


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 7},
        {"batch_size": 7, "epochs": 1, "shuffle": True},
        {"batch_size": 34, "epochs": 1, "shuffle": True, "remainder": "pad"},
        {"batch_size": 34, "epochs": 1, "shuffle": True, "remainder": "keep"},
        {"batch_size": 120, "epochs": 1},
    ],
)
@pytest.mark.parametrize("at_once", [1, 20, 1000])
def test_the_shards_of_an_epoch(
    source: str, at_once: int, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.streams.which.RECORDS_AT_ONCE", at_once)
    values = {**ALWAYS, "lanes": 8, **values}
    epoch = epoch_shards(checked(source, None, values).dataset())
    assert epoch.population.tolist() == [20, 21, 22, 23, 24]
    found = [int(shard) for part in epoch.parts for shard in part]
    assert epoch.steps == len(found) // values["batch_size"] >= 110 // values["batch_size"] - 1
    places = sr.which(source, range(epoch.steps), **values)
    assert found == [int(place.shard[-14:-9]) for place in places]


def test_a_shard_that_is_named_twice_is_one(source: str) -> None:
    names = [source.replace("*", f"0000{i}") for i in (0, 1, 0)]
    epoch = epoch_shards(checked(names, None, {**ALWAYS, "batch_size": 7}).dataset())
    assert epoch.population.tolist() == [40, 21]
    assert set(np.concatenate(list(epoch.parts)).tolist()) == {0, 1}


def test_a_run_of_less_than_a_batch_has_no_step(source: str) -> None:
    values = {**ALWAYS, "lanes": 8, "batch_size": 109, "epochs": 1, "remainder": "drop"}
    assert delivered(source, 0, 1, **values)[0] == []
    assert sr.which(source, range(3), **values) == []


def test_no_step_has_no_records(source: str) -> None:
    assert sr.which(source, range(3, 3), batch_size=5, **ALWAYS) == []


def test_a_resumed_run(source: str) -> None:
    values = {**ALWAYS, "lanes": 8, "batch_size": 5, "epochs": 2, "shuffle": True, "seed": 3}
    _, state = delivered(source, 0, 2, state={"version": 3, "epoch": 4}, **values)
    rows, _ = delivered(source, 1, 2, state=state, **values)
    steps = range(rows[0][0], rows[-1][0] + 1)
    assert told(sr.which(source, steps, rank=1, world_size=2, state=state, **values)) == rows
    with pytest.raises(StateError):
        sr.which(source, 3, state=state, **{**values, "seed": 4})


@pytest.mark.parametrize(
    "ends",
    [
        {"remainder": "pad"},
        {"remainder": "drop"},
        {"steps_per_epoch": 5},
        {"epochs": None},
        {"epochs": 2, "remainder": "pad"},
        {},
    ],
    ids=str,
)
def test_a_state_tells_where_runs_end(source: str, ends: dict[str, Any]) -> None:
    """Also in its text, that of a batch, and that of a run which is resumed with other ends."""
    values = {**ALWAYS, "lanes": 8, "batch_size": 6, "shuffle": True}
    rows: Read = []
    state: dict[str, Any] = {}
    with sr.open(source, rank=1, world_size=2, **values, **ends) as stream:
        for _ in range(3):
            for batch in sr.take(stream, 20):
                named = zip(batch.origin.shards, batch.origin.records, strict=True)
                rows += [
                    (batch.next_position.step - 1, stream.shards[s], r) for s, r in named if s >= 0
                ]
                if batch.next_position.step == 3:
                    state = json.loads(json.dumps(batch.next_position.to_dict()))
    last = rows[-1][0]
    assert last > 13
    expected = [row for row in rows if row[0] >= 3]
    assert told(sr.which(source, range(3, last + 1), rank=1, state=state, **values)) == expected
    with sr.open(source, rank=1, world_size=2, **values, steps_per_epoch=4) as stream:
        stream.load_state_dict(state)
        assert json.loads(next(stream).next_position.ends) == {"steps_per_epoch": 4}
    given = sr.which(source, 3, rank=1, state=state, **{**values, **ends, "remainder": "drop"})
    assert len(given) == 6


def test_the_number_of_ranks_is_that_of_the_state(source: str) -> None:
    values = {**ALWAYS, "lanes": 8, "batch_size": 5, "epochs": 2, "shuffle": True}
    _, state = delivered(source, 1, 2, **values)
    expected = sr.which(source, 4, state=state, world_size=2, **values)
    assert sr.which(source, 4, state=state, **values) == expected
    assert {place.rank for place in expected} == {0, 1}
    assert sr.which(source, 4, state=state, read=True, **values) == [
        (p.step, p.rank, p.row, p.shard, p.record, None) for p in expected
    ]
    assert {place.rank for place in sr.which(source, 4, state={"version": 3}, **values)} == {0}


@pytest.mark.parametrize("more", [{}, {"read": True}])
def test_what_it_returns_can_be_excluded(source: str, more: dict[str, Any]) -> None:
    values: dict[str, Any] = {**ALWAYS, "batch_size": 7}
    places = sr.which(source, 3, **values, **more)[2:4]
    with sr.open(source, exclude=places, rank=0, world_size=1, **values) as stream:
        masks = [batch.mask.tolist() for batch in stream]
    assert [row for row, is_there in enumerate(masks[3]) if not is_there] == [2, 3]
    assert sum(map(sum, masks)) == sum(map(len, SHARDS)) - 2


def test_single_records(source: str) -> None:
    values = {**ALWAYS, "shuffle": True}
    with sr.open(source, **values) as stream:
        records = list(stream)
    places = sr.which(source, range(len(records)), **values)
    assert [place.row for place in places] == [0] * len(records)
    names = [int(place.shard[-14:-9]) for place in places]
    starts = [f"{shard}/{place.record}|" for shard, place in zip(names, places, strict=True)]
    assert all(
        record.startswith(start.encode()) for record, start in zip(records, starts, strict=True)
    )


def test_find_is_the_inverse(source: str) -> None:
    values = {**ALWAYS, "lanes": 8, "batch_size": 3, "world_size": 4, "shuffle": True}
    values |= {"epochs": 2, "remainder": "pad"}
    every = [place for place in sr.which(source, range(20), **values) if place.epoch < 2]
    for place in every[::9]:
        name = place.shard.rsplit("/", 1)[-1]
        found = sr.which(source, find=(name, place.record), find_epochs=2, **values)
        assert place in found
        assert sorted(one.epoch for one in found) == [0, 1]
    (later,) = [
        one
        for one in sr.which(source, find=(every[0].shard, 0), find_epochs=4, **values)
        if one.epoch == 3
    ]
    assert later in sr.which(source, later.step, **values)


def test_the_chunk_leads_to_the_record(source: str) -> None:
    for place in sr.which(source, range(3), batch_size=9, shuffle=True, **ALWAYS):
        records = list(sr.read_records(place.shard, place.chunk_offset))
        whole = list(sr.read_records(place.shard))
        assert records[place.chunk_record] == whole[place.record]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"index": None}, "if the run had index=True"),
        ({"filter": bool}, "with filter"),
        ({"length_buckets": 2}, "with length_buckets"),
        ({"steps": range(0, 9, 2)}, "successive"),
        ({"steps": [1, 2]}, "successive"),
        ({"steps": range(5, 2)}, "ends before it begins"),
        ({"steps": range(100_001)}, "at most 100000"),
        ({"world_size": 0}, "from 1 up"),
        ({"steps": None, "find": ("part-00000.tfrecord", 0), "find_epochs": 0}, "from 1 up"),
        ({"steps": None, "find": "part-00000.tfrecord"}, "give a pair"),
        ({"steps": -1}, "from 0 up"),
        ({"steps": None}, "give steps, or find"),
        ({"steps": None, "find": ("part-00000.tfrecord", 99)}, "no record 99"),
        ({"steps": None, "find": ("other", 0)}, "the source has no shard 'other'"),
        ({"steps": None, "find": (0, 3)}, "give a pair"),
        ({"steps": None, "find": ("part-00000.tfrecord", "3")}, "give a pair"),
    ],
)
def test_refusals(source: str, values: dict[str, Any], words: str) -> None:
    values = {"steps": 0, "batch_size": 4, "shuffle": True, **ALWAYS, **values}
    with pytest.raises(ConfigError, match=words):
        sr.which(source, **values)


def test_a_state_that_is_none(source: str) -> None:
    values: dict[str, Any] = {"batch_size": 4, **ALWAYS}
    states: list[Any] = [[], "text", 3]
    for state in states:
        with pytest.raises(StateError, match="not a state"):
            sr.which(source, 0, state=state, **values)
    with pytest.raises(ConfigError, match="before the run"):
        sr.which(source, 0, state={"version": 3, "step": 900}, **values)


def test_no_memory_is_needed_to_read(source: str) -> None:
    values = {**ALWAYS, "batch_size": 4, "shuffle": True, "shuffle_window": "1GiB"}
    assert len(sr.which(source, 0, **values)) == 4


def test_rows_are_numbered_in_their_batch(source: str) -> None:
    places = sr.which(source, range(2), batch_size=4, **ALWAYS)
    assert [place.row for place in places] == [0, 1, 2, 3] * 2
    assert np.unique([place.rank for place in places]).tolist() == [0]
