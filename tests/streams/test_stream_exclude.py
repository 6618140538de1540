"""``exclude``: records that are never delivered, while all others keep their places."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError
from tests.pipeline.small_datasets import contents, identities, write, write_index
from tests.streams.test_stream_state import MODES, Mode
from tests.support import examples

if TYPE_CHECKING:
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.streams.stream import Stream

SHARDS = ((9,) * 13, (9,) * 8, (), (9,) * 11)
RECORDS = [(shard, number) for shard, each in enumerate(SHARDS) for number in range(len(each))]
REMOVED = [(0, 0), (0, 5), (1, 7), (3, 3), (3, 4)]
ORDER: dict[str, Any] = {
    "batch_size": 4,
    "lanes": 8,
    "shuffle": True,
    "shuffle_window": 400,
    "memory_budget": "32MiB",
    "max_concurrency": 8,
}
COUNTED: list[dict[str, Any]] = [
    {"index": True, "remainder": "pad"},
    {"index": True, "shuffle": False, "epochs": 2, "remainder": "drop"},
    {"steps_per_epoch": 4, "epochs": 2},
    {"steps_per_epoch": 4, "shuffle": False},
    {"steps_per_epoch": 4, "length_buckets": 2},
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made(tmp_path_factory.mktemp("data"))


def made(directory: Path) -> str:
    source = write(directory, SHARDS)
    write_index(source, 50)
    return source


def named(records: Any) -> list[tuple[str, int]]:
    return [(f"part-{shard:05}.tfrecord", number) for shard, number in records]


def listed(directory: Path, records: Any) -> str:
    path = directory / "removed.jsonl"
    pairs = named(records)
    path.write_text("".join(json.dumps({"shard": s, "record": n}) + "\n" for s, n in pairs))
    return str(path)


def opened(source: str, **values: Any) -> Stream:
    return sr.open(source, **{"engine": "thread", "rank": 0, "world_size": 1, **ORDER, **values})


def check(batches: list[Batch], undisturbed: list[Batch], removed: Any) -> None:
    """Check that rows are those of a run without exclusions, in place, without the removed ones."""
    assert [batch.next_position for batch in batches] == [b.next_position for b in undisturbed]
    check_rows(batches, undisturbed, removed)


def check_rows(batches: list[Batch], undisturbed: list[Batch], removed: Any) -> None:
    """Check the same, but for the positions."""
    assert identities(batches) == identities(undisturbed)
    before = np.concatenate(
        [np.ones(len(b), bool) if b.mask is None else b.mask for b in undisturbed]
    )
    mask = np.concatenate([batch.mask for batch in batches])
    is_removed = np.array([pair in set(removed) for pair in identities(batches)])
    assert (mask == (before & ~is_removed)).all()
    old, new = contents(undisturbed), contents(batches)
    assert [new[row] for row in np.flatnonzero(mask)] == [old[row] for row in np.flatnonzero(mask)]
    never = {f"{shard}/{number}|".encode() for shard, number in removed}
    assert not any(record.startswith(tuple(never)) for record in new)


@given(
    removed=st.sets(st.sampled_from(RECORDS)),
    values=st.sampled_from(COUNTED),
    stop=st.integers(0, 3),
    world_size=st.sampled_from([1, 2, 4, 8]),
    data=st.data(),
)
@settings(max_examples=examples(60))
def test_all_others_stay_in_place_with_a_new_list_on_resume(
    source: str,
    removed: set[tuple[int, int]],
    values: dict[str, Any],
    stop: int,
    world_size: int,
    data: Any,
) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    ours = {**values, "rank": rank, "world_size": world_size, "batch_size": 8 // world_size}
    with opened(source, **ours) as stream:
        whole = list(stream)
    with opened(source, **ours, exclude=named(removed)) as stream:
        check(list(stream), whole, removed)
    stop = min(stop, len(whole))
    with opened(source, **ours) as stream:
        list(sr.take(stream, stop))
        state = json.loads(json.dumps(stream.state_dict()))
    with opened(source, **ours, exclude=named(removed)) as stream:
        stream.load_state_dict(state)
        if whole[stop:]:
            check(list(stream), whole[stop:], removed)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("values", [COUNTED[0], COUNTED[2]], ids=["by record", "by shard"])
def test_every_engine_and_a_feeder(
    source: str, tmp_path: Path, name: str, values: dict[str, Any]
) -> None:
    with contextlib.ExitStack() as stack:
        mode = Mode(name, stack)
        values = {**ORDER, **values}
        whole = mode.take(mode.open(source, **values))
        stream = mode.open(source, **values, exclude=listed(tmp_path, REMOVED))
        check(mode.take(stream), whole, REMOVED)
        if not mode.asynchronous:  # there the session is over with its loop
            in_place = sum(pair in REMOVED for pair in identities(whole))
            assert stream.statistics()["records_excluded"] >= in_place
        stream.load_state_dict(whole[1].next_position.to_dict())
        check(mode.take(stream), whole[2:], REMOVED)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("stop", [0, 2, 5])
def test_where_nothing_is_counted_they_are_left_out(source: str, shuffle: bool, stop: int) -> None:
    values = {"shuffle": shuffle}
    with opened(source, **values) as stream:
        whole = list(stream)
        assert "records_excluded" not in stream.statistics()
    with opened(source, **values, exclude=named(REMOVED)) as stream:
        if stop:
            stream.load_state_dict(whole[stop - 1].next_position.to_dict())
        tail = list(stream)
        assert all(batch.mask is None for batch in tail)
        counted = stream.statistics()["records_excluded"]
    expected = [pair for pair in identities(whole[stop:]) if pair not in REMOVED]
    # Who has fewer records ends sooner, so the turns of the lanes may differ.
    assert sorted(identities(tail)) == sorted(expected)
    assert stop or counted == len(REMOVED)


def keep_all(columns: Any) -> Any:
    return np.ones(len(columns["records"]), bool)


@pytest.mark.parametrize("values", [{"filter": keep_all}, {"batch_size": None}])
def test_a_filter_and_single_records_never_see_them(source: str, values: dict[str, Any]) -> None:
    with opened(source, **values, exclude=named(REMOVED)) as stream:
        items = list(stream)
    found = contents(items) if "filter" in values else items
    never = tuple(f"{shard}/{number}|".encode() for shard, number in REMOVED)
    assert len(found) == len(RECORDS) - len(REMOVED)
    assert not any(record.startswith(never) for record in found)


def test_damage_and_exclusions_are_counted_apart(tmp_path: Path) -> None:
    source = made(tmp_path)
    path = tmp_path / "part-00001.tfrecord"
    data = bytearray(path.read_bytes())
    data[2 * 25 + 14] ^= 1
    path.write_bytes(data)
    damage = {"on_corrupt": "skip", "corrupt_budget": 3}
    with opened(source, index=True, **damage, exclude=named(REMOVED)) as stream:
        batches = list(stream)
        counts = stream.statistics()
    assert (counts["skipped_records"], counts["records_excluded"]) == (1, len(REMOVED))
    masked = [
        pair
        for batch in batches
        for pair, here in zip(identities([batch]), batch.mask.tolist(), strict=True)
        if not here
    ]
    assert sorted(masked) == sorted([*REMOVED, (1, 2)])


def test_a_lane_without_end_that_excludes_all_it_has(tmp_path: Path) -> None:
    source = write(tmp_path, ((9,) * 3, (9,) * 3))
    everything = [(shard, number) for shard in range(2) for number in range(3)]
    with opened(source, lanes=2, epochs=None, shuffle=False, exclude=named(everything)) as stream:
        with pytest.raises(ConfigError, match="exclude excludes every record of a lane"):
            list(stream)


@pytest.mark.parametrize(
    "record", [3, ("part-0", -1), ("part-0", True), {"shard": "part-0", "record": 3}, ("part-0",)]
)
def test_what_is_no_record_is_named(tmp_path: Path, record: Any) -> None:
    words = f"'exclude' has {record!r}, but each record must be a pair of a shard and a number"
    with pytest.raises(ConfigError, match=re.escape(words)):
        sr.open(f"{tmp_path}/*", exclude=[("part-0", 1), record])


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_what_is_wrong_in_the_list_is_told_at_the_start(
    source: str, tmp_path: Path, engine: str
) -> None:
    path = listed(tmp_path, [(0, 1), (0, 13)])
    with pytest.raises(ConfigError, match=r"removed.jsonl, line 2: there is no record 13 in"):
        opened(source, index=True, exclude=path, engine=engine).__enter__()
    with opened(source, exclude=path, engine=engine) as stream:
        with pytest.raises(ConfigError, match=r"removed.jsonl: there is no record 13 in"):
            list(stream)


def test_a_path_is_that_of_where_the_stream_was_opened(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed(tmp_path, REMOVED)
    stream = opened(source, index=True, exclude=Path("removed.jsonl"))
    monkeypatch.chdir("/")
    assert sum(int((~batch.mask).sum()) for batch in stream) == len(REMOVED)


def test_an_empty_list_excludes_nothing(source: str, tmp_path: Path) -> None:
    with opened(source, index=True, exclude=listed(tmp_path, [])) as stream:
        assert all(batch.mask.all() for batch in stream)
        assert stream.statistics()["records_excluded"] == 0


def test_numbers_of_an_origin_are_taken(source: str) -> None:
    with opened(source, index=True) as stream:
        first = next(iter(stream))
        pair = stream.shards[first.origin.shards[0]], first.origin.records[0]
    with opened(source, index=True, exclude=[pair]) as stream:
        assert not next(iter(stream)).mask[0]
