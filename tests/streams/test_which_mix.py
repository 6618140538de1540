"""``streamrec.which`` computes the records of a mix, as a run says them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError, StateError
from streamrec.streams.opening import checked_mix
from streamrec.streams.which import epoch_shards
from tests.by_day import each_once, stops
from tests.pipeline.made_folders import make_folder
from tests.pipeline.small_datasets import write, write_index
from tests.support import examples

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.dataset_places import DeliveredRecord

ALWAYS: dict[str, Any] = {
    "index": True, "memory_budget": "32MiB", "lanes": 8, "batch_size": 4, "shuffle": True,
    "shuffle_window": 4000, "epochs": None,
}  # fmt: skip
# Records of very different sizes, so that windows by their true sizes would differ.
SIZES = {
    "code": tuple(tuple(range(10, 28)) for _ in range(4)),
    "web": tuple(tuple(5 + 40 * (i % 3) for i in range(30 + shard)) for shard in range(3)),
    "books": ((300, 2, 2) * 5, (1,) * 20),
}
WEIGHTS = {"code": 0.5, "web": 0.4, "books": 0.1}
Row = tuple[int, int, str, int, str]


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    found = {name: write(tmp_path / name, shards) for name, shards in SIZES.items()}
    for source in found.values():
        write_index(source, 200)
    return found


def weighted(sources: dict[str, str]) -> dict[str, Any]:
    return {name: (source, WEIGHTS[name]) for name, source in sources.items()}


def delivered(
    parts: dict[str, Any],
    rank: int,
    world: int,
    most: int,
    *,
    state: Any = None,
    calls: tuple[Any, ...] = (),
    **values: Any,
) -> tuple[list[Row], list[Any]]:
    """Read a rank's runs; return step, row, shard, record and component of each row, and states."""
    rows: list[Row] = []
    states: list[Any] = []
    with sr.mix(parts, engine="thread", rank=rank, world_size=world, **values) as stream:
        if state is not None:
            stream.load_state_dict(state)
        for step, weights in calls:
            stream.set_weights(weights, from_step=step)
        while len(states) < most:
            before = len(states)
            for batch in sr.take(stream, most - len(states)):
                states.append(stream.state_dict())
                number = states[-1]["step"] - 1
                places = zip(
                    *(a.tolist() for a in batch.origin), batch.source.tolist(), strict=True
                )
                rows += [
                    (number, row, stream.shards[shard], record, name)
                    for row, (shard, record, name) in enumerate(places)
                    if shard >= 0
                ]
            if len(states) == before:
                break
    return rows, states


def told(places: list[DeliveredRecord]) -> list[Row]:
    return [(p.step, p.row, p.shard, p.record, p.component or "") for p in places]


WINDOWS: dict[str, Any] = {}
PLAIN = {"shuffle": False}
CHUNKS = {"shuffle_window": 0}
STEPS = {"epochs": 2, "steps_per_epoch": 6}
EXCLUDES = {"exclude": [("code/part-00001.tfrecord", 3)]}


@pytest.mark.parametrize(
    ("world", "values"),
    each_once([8, 2, 1, 4], [WINDOWS, PLAIN, CHUNKS, STEPS, EXCLUDES]),
)
def test_every_step_of_every_rank(
    sources: dict[str, str], world: int, values: dict[str, Any]
) -> None:
    values, parts = {**ALWAYS, **values}, weighted(sources)
    steps = 40 // world + 3
    for rank in {0, world - 1}:
        rows, states = delivered(parts, rank, world, steps, **values)
        of = {"rank": rank, "world_size": world, **values}
        assert told(sr.which(parts, range(steps), **of)) == rows
        assert {row[4] for row in rows} == {*sources}
        for at in stops(range(1, steps - 1, 5)):
            later = sr.which(parts, range(at + 1, steps), state=states[at], **of)
            assert told(later) == [row for row in rows if row[0] > at]


@pytest.mark.parametrize(
    ("exhausted", "remainder", "world"),
    [
        ("stop", None, 1),
        ("stop", "drop", 1),
        ("rest", None, 1),
        ("rest", "drop", 1),
        ("rest", None, 4),
    ],
)
def test_runs_that_end(
    sources: dict[str, str], exhausted: str, remainder: str | None, world: int
) -> None:
    values = {**ALWAYS, "exhausted": exhausted, "epochs": 1, "remainder": remainder}
    parts = weighted(sources)
    if exhausted == "stop":
        parts["books"] = (parts["code"][0], 0.1)
    rows, states = delivered(parts, 0, world, 110, **values)
    steps, of = range(len(states)), {"rank": 0, "world_size": world, **values}
    assert told(sr.which(parts, steps, **of)) == rows
    half = len(states) // 2
    later = sr.which(parts, range(half, len(states)), state=states[half - 1], **of)
    assert told(later) == [row for row in rows if row[0] >= half]


def test_weights_that_change(sources: dict[str, str]) -> None:
    """By record in the settings, and by step while it runs; the state has the latter."""
    schedule = [(0, WEIGHTS), (100, {"code": 0, "web": 1, "books": 0})]
    values = {**ALWAYS, "weights": schedule}
    rows, _ = delivered(sources, 1, 2, 30, **values)
    assert told(sr.which(sources, range(30), rank=1, world_size=2, **values)) == rows
    calls = ((5, {"code": 1, "web": 0, "books": 0}), (17, {"code": 0, "web": 1, "books": 1}))
    parts, of = weighted(sources), {"rank": 1, "world_size": 2, **ALWAYS}
    rows, states = delivered(parts, 1, 2, 30, calls=calls, **ALWAYS)
    assert {row[4] for row in rows if row[0] in range(12, 17)} == {"code"}
    for at in (2, 9, 25):
        later = sr.which(parts, range(at + 1, 30), state=states[at], **of)
        assert told(later) == [row for row in rows if row[0] > at]


def test_slices_of_tfds_folders(tmp_path: Path) -> None:
    parts = {}
    for name in ("one", "two"):
        parts[name] = (str(make_folder(tmp_path, name=name)), 0.5)
        write_index(f"{parts[name][0]}/{name}-train.tfrecord*", 120)
    values = {**ALWAYS, "lanes": 2, "batch_size": 2, "shuffle_window": 300}
    values["split"] = {"one": "train[3:13]", "two": "train[9:]+train[8:12]"}
    rows, _ = delivered(parts, 0, 1, 40, **values)
    assert told(sr.which(parts, range(40), **values)) == rows


def test_single_records(sources: dict[str, str]) -> None:
    parts, values = weighted(sources), {**ALWAYS, "batch_size": None}
    with sr.mix(parts, engine="thread", **values) as stream:
        records = list(sr.take(stream, 150))
        state = stream.state_dict()
        records += list(sr.take(stream, 50))
    places = sr.which(parts, range(200), **values)
    content = {shard: list(sr.read_records(shard)) for shard in {p.shard for p in places}}
    assert [content[p.shard][p.record] for p in places] == records
    assert [(p.step, p.row) for p in places] == [(step, 0) for step in range(200)]
    assert sr.which(parts, range(150, 200), state=state, **values) == places[150:]


def test_a_component_that_joined(sources: dict[str, str]) -> None:
    two = {name: (sources[name], 0.5) for name in ("code", "web")}
    with sr.mix(two, engine="thread", **ALWAYS) as stream:
        list(sr.take(stream, 3))
        stream.set_weights(WEIGHTS, from_step=3, sources={"books": sources["books"]})
        list(sr.take(stream, 3))
        state = stream.state_dict()
    parts = {**two, "books": (sources["books"], 0)}
    rows, _ = delivered(parts, 0, 1, 30, state=state, **ALWAYS)
    assert told(sr.which(parts, range(6, 36), state=state, **ALWAYS)) == rows
    assert {row[4] for row in rows} == {*sources}


def test_another_world_size(sources: dict[str, str]) -> None:
    parts = weighted(sources)
    states = [delivered(parts, rank, 2, 9, **ALWAYS)[1][-1] for rank in range(2)]
    values = {**ALWAYS, "batch_size": 2}
    for rank in range(4):
        rows, _ = delivered(parts, rank, 4, 7, state=states, **values)
        of = {"rank": rank, "world_size": 4, "state": states, **values}
        assert told(sr.which(parts, range(9, 16), **of)) == rows


@settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.integers(1, 40), min_size=8, max_size=60),
    st.integers(1, 900),
    st.sampled_from([0, 100, 700, 5000]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 5),
    st.integers(0, 99),
    st.integers(0, 60),
)
def test_any_mix(
    tmp_path: Path,
    lengths: list[int],
    chunk: int,
    window: int,
    world: int,
    size: int,
    seed: int,
    change: int,
) -> None:
    place = tmp_path / str(hash((*lengths, chunk, window, world, size, seed)))
    parts = {}
    for name, own in {"a": lengths, "b": [9 * n for n in lengths[::2]]}.items():
        half = len(own) // 2
        parts[name] = write(place / name, (tuple(own[:half]), tuple(own[half:])))
        write_index(parts[name], chunk)
    weights = [(0, {"a": 0.7, "b": 0.3}), (change + 1, {"a": 0.1, "b": 0.9})]
    values = {**ALWAYS, "lanes": 4, "weights": weights, "seed": seed, "batch_size": size}
    values |= {"shuffle_window": window}
    rows, states = delivered(parts, world - 1, world, 25, **values)
    of = {"rank": world - 1, "world_size": world, **values}
    assert told(sr.which(parts, range(25), **of)) == rows
    later = sr.which(parts, range(11, 25), state=states[10], **of)
    assert told(later) == [row for row in rows if row[0] > 10]


def test_the_chunk_leads_to_the_record(sources: dict[str, str]) -> None:
    for place in sr.which(weighted(sources), range(3), **ALWAYS):
        records = list(sr.read_records(place.shard, place.chunk_offset))
        assert records[place.chunk_record] == list(sr.read_records(place.shard))[place.record]


def test_excluded_records_are_marked(sources: dict[str, str]) -> None:
    parts, exclude = weighted(sources), [("code/part-00001.tfrecord", 3)]
    found = [p for p in sr.which(parts, range(60), exclude=exclude, **ALWAYS) if p.is_excluded]
    assert {(p.shard.rsplit("/", 2)[1], p.record, p.component) for p in found} == {
        ("code", 3, "code")
    }


@pytest.mark.parametrize("values", [WINDOWS, {"exhausted": "rest", "epochs": 1}])
def test_the_steps_of_a_record(sources: dict[str, str], values: dict[str, Any]) -> None:
    """They are the rows of the steps that have it: of a small component, several times."""
    values, parts = {**ALWAYS, **values}, weighted(sources)
    every = sr.which(parts, range(60), **values)
    for name, record in (("books/part-00000.tfrecord", 3), ("web/part-00001.tfrecord", 30)):
        found = sr.which(parts, range(60), find=(name, record), **values)
        assert found == [p for p in every if p.shard.endswith(name) and p.record == record]
        assert len({place.epoch for place in found}) == len(found) > 0
    with pytest.raises(ConfigError, match=r"no record 99 of .*, which has 15 of it"):
        sr.which(parts, range(9), find=("books/part-00000.tfrecord", 99), **values)


def test_refusals(sources: dict[str, str]) -> None:
    parts = weighted(sources)
    wrong: dict[str, dict[str, Any]] = {
        "without an index": {"index": None},
        "with filter": {"filter": bool},
        "with length_buckets": {"length_buckets": 2},
        "with the steps to search": {"steps": None, "find": ("code/part-00000.tfrecord", 0)},
        "before the run": {"state": {"version": 3, "step": 0, "epoch": 1}, "exhausted": "rest"},
    }
    for words, changes in list(wrong.items())[:-1]:
        with pytest.raises(ConfigError, match=words):
            sr.which(parts, **{"steps": 0, **ALWAYS, **changes})
    _, states = delivered(parts, 0, 1, 4, **ALWAYS)
    with pytest.raises(ConfigError, match="before the run"):
        sr.which(parts, 2, state=states[-1], **ALWAYS)
    with pytest.raises(StateError):
        sr.which(parts, 9, state=states[-1], **{**ALWAYS, "seed": 4})
    with pytest.raises(ConfigError, match="name one source"):
        epoch_shards(checked_mix(parts, None, dict(ALWAYS)).dataset())
