"""``which --audit`` finds in a log what it has, and all that was changed."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.streams.audit_check import AuditReport, RankReport, check_audit, gaps_in
from streamrec.streams.audit_part import Part, RecordList, union
from tests.by_day import at_night, each_once
from tests.cli.support import streamrec as cli
from tests.pipeline.made_folders import LENGTHS, make_folder
from tests.pipeline.small_datasets import write, write_index
from tests.streams.test_audit_log import BY_RECORD, ORDER, follow
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.streams.audit_part import LoggedStep

SHARDS = ((9,) * 23, (9,) * 18, (), (9,) * 31)
RUN: dict[str, Any] = {**BY_RECORD, "epochs": 2, "batch_size": 8}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = write(tmp_path_factory.mktemp("data"), SHARDS)
    write_index(source, 50)
    return source


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def read(
    source: str, log: str, world_size: int, most: int, states: Any = None, **values: Any
) -> list[Any]:
    """Read some steps of each rank, and return the states of all."""
    ends = []
    for rank in range(world_size):
        of: dict[str, Any] = {
            "engine": "thread",
            "rank": rank,
            "world_size": world_size,
            "audit": log,
        }
        own = {**RUN, "batch_size": 8 // world_size, **values}
        with sr.open(source, **own, **of) as stream:
            if states is not None:
                stream.load_state_dict(states)
            follow(stream, most)
            ends.append(stream.state_dict())
    return ends


def change(log: str, step: int, new: Callable[[LoggedStep], LoggedStep]) -> None:
    """Change an entry of a log, and write its object as streamrec would."""
    for path in Path(log).rglob("*.audit"):
        part = Part.parse(path.read_bytes(), str(path))
        for stretch in part.stretches:
            stretch.entries = [new(one) if one.step == step else one for one in stretch.entries]
        path.write_bytes(part.encode())


def fault_of(report: AuditReport) -> str:
    """Return the only fault of a report."""
    assert not report.agrees
    (fault,) = [fault for rank in report.ranks for fault in rank.faults]
    return fault


@pytest.mark.parametrize(("ranks", "stop"), each_once([(1, 2), (4, 1), (2, 4)], [*range(10)]))
def test_a_run_that_goes_on_with_other_ranks(
    source: str, log: str, stop: int, ranks: tuple[int, int]
) -> None:
    states = read(source, log, ranks[0], stop)
    read(source, log, ranks[1], 1000, states)
    report = check_audit(log)
    assert report.agrees
    assert not any(rank.again for rank in report.ranks)
    assert {rank.world_size: rank.computed for rank in report.ranks}[ranks[1]] == 18 - stop


@pytest.mark.parametrize("values", [{}, {"index": None, "steps_per_epoch": 10}])
def test_steps_that_were_delivered_again_are_told(
    source: str, log: str, values: dict[str, Any]
) -> None:
    states = read(source, log, 2, 4, **values)
    read(source, log, 2, 3, states, **values)
    read(source, log, 2, 5, states, **values)
    report = check_audit(log, reads=True)
    assert report.agrees
    assert [(rank.steps, rank.again, rank.objects) for rank in report.ranks] == [(9, 3, 6)] * 2


@pytest.mark.parametrize("by_record", [True, False])
def test_damaged_records(tmp_path: Path, log: str, by_record: bool) -> None:
    source = write(tmp_path / "raw", SHARDS)
    write_index(source, 50)
    shard = Path(source.replace("*", "00001"))
    data = bytearray(shard.read_bytes())
    data[25 * 4 + 14] ^= 1
    shard.write_bytes(data)
    values: dict[str, Any] = {"on_corrupt": "skip", "corrupt_budget": 3}
    values |= {} if by_record else {"index": None, "remainder": "keep", "epochs": 1}
    read(source, log, 1, 1000, **values)
    (rank,) = check_audit(log, reads=True).ranks
    assert (rank.faults, rank.masked) == ([], 2 if by_record else 0)
    assert (rank.computed > 0, rank.read > 0) == (by_record, not by_record)


def test_a_list_of_excluded_records_is_needed_where_they_leave_no_place(
    source: str, log: str
) -> None:
    removed = [("part-00000.tfrecord", 2), ("part-00003.tfrecord", 7)]
    values = {"index": None, "epochs": 1, "remainder": "keep", "exclude": removed}
    read(source, log, 1, 1000, **values)
    with pytest.raises(
        ConfigError, match=r"by exclude, whose list the log does not have; .* --set"
    ):
        check_audit(log, reads=True)
    report = check_audit(log, {"exclude": removed}, reads=True)
    assert report.agrees
    assert report.ranks[0].read
    assert not check_audit(log, {"exclude": removed[:1]}, reads=True).agrees


def test_excluded_records_that_leave_places_need_no_list(source: str, log: str) -> None:
    values = {
        "index": None,
        "epochs": 1,
        "steps_per_epoch": 5,
        "exclude": [("part-00000.tfrecord", 2)],
    }
    read(source, log, 2, 1000, **values)
    report = check_audit(log, reads=True)
    assert report.agrees
    assert all(rank.read for rank in report.ranks)


def even(columns: dict[str, Any]) -> Any:
    return columns["number"] % 2 == 0


def test_the_columns_of_functions_are_in_the_log(tmp_path: Path, log: str) -> None:
    with sr.TFRecordWriter(tmp_path / "t") as writer:
        writer.write_many({"id": i} for i in range(30))
    columns = {
        "features": {"number": sr.FixedLenFeature((), "int64")},
        "rename": {"id": "number"},
        "dtypes": {"number": "int16"},
    }
    own: dict[str, Any] = {"batch_size": 4, "lanes": 1, "engine": "thread", "audit": log, **columns}
    with sr.open(tmp_path / "t", filter=even, **own) as stream:
        follow(stream)
    report = check_audit(log, {"filter": even}, reads=True)
    assert report.agrees
    assert report.ranks[0].read


def test_rows_that_are_dealt_to_ranks(tmp_path: Path, log: str) -> None:
    source = tmp_path / "lengths.tfrecord"
    with sr.TFRecordWriter(source) as writer:
        writer.write_many({"tokens": [i] * (1 + i % 9)} for i in range(60))
    assert cli("index", source, "--lengths", "tokens", "--chunk-size", "128").code == 0
    read(str(source), log, 2, 9, remainder="drop", balance=sr.Balance("tokens", quadratic=1))
    report = check_audit(log)
    assert report.agrees
    assert all(rank.computed for rank in report.ranks)
    others = check_audit(log, {"balance": None})
    assert not others.agrees


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    world_size=st.sampled_from([1, 2, 4]),
    shuffle=st.booleans(),
    window=st.integers(0, 900),
    seed=st.integers(0, 5),
    ends=st.sampled_from(["pad", "drop"]),
    stop=st.integers(0, 12),
    removed=st.sets(st.integers(0, 17)),
)
def test_any_run(
    source: str,
    tmp_path_factory: pytest.TempPathFactory,
    world_size: int,
    shuffle: bool,
    window: int,
    seed: int,
    ends: str,
    stop: int,
    removed: set[int],
) -> None:
    log = str(tmp_path_factory.mktemp("log"))
    values: dict[str, Any] = {"shuffle": shuffle, "shuffle_window": window, "seed": seed}
    values |= {"remainder": ends, "exclude": [("part-00001.tfrecord", one) for one in removed]}
    states = read(source, log, world_size, stop, **values)
    read(source, log, 2, 1000, states, **values)
    report = check_audit(log)
    assert report.agrees
    assert sum(rank.unchecked for rank in report.ranks) == 0


# -- what was changed ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 5])
def test_another_digest(source: str, log: str, step: int) -> None:
    read(source, log, 1, 9)
    change(log, step, lambda entry: entry._replace(digest=bytes(16)))
    fault = fault_of(check_audit(log))
    assert fault.startswith(
        f"step {step} of rank 0 of 1 differs: the log has the digest {'0' * 32}"
    )
    assert "8 records (part-0000" in fault


def test_all_steps_after_the_first_that_differs_are_counted(source: str, log: str) -> None:
    read(source, log, 1, 9)
    for step in (3, 4, 7):
        change(log, step, lambda entry: entry._replace(digest=bytes(16)))
    report = check_audit(log)
    assert fault_of(report).startswith("step 3 of")
    assert fault_of(report).endswith("; later steps that differ, too: 2")
    assert report.ranks[0].computed == 6


def test_other_masked_records(source: str, log: str) -> None:
    read(source, log, 1, 4, exclude=[("part-00001.tfrecord", one) for one in range(18)])
    other = RecordList.of(*_pair(1, 99))
    change(log, 2, lambda entry: entry._replace(masked=other))
    assert "the log lists part-00001.tfrecord:99" in fault_of(check_audit(log))


def _pair(shard: int, record: int) -> tuple[Any, Any]:
    return np.array([shard]), np.array([record])


def test_other_listed_records(source: str, log: str) -> None:
    read(source, log, 1, 6, **{**ORDER, "index": None, "steps_per_epoch": 6})
    other = RecordList.of(*_pair(3, 30))
    change(log, 4, lambda entry: entry._replace(listed=other))
    assert check_audit(log).agrees  # nothing is compared
    fault = fault_of(check_audit(log, reads=True))
    assert fault.startswith("step 4 of rank 0 of 1 differs: the log ")
    assert "does not list part-0000" in fault


@pytest.mark.parametrize("gone", [1, 2])
def test_an_object_that_is_missing(
    source: str, log: str, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.streams.audit_log.MOST_STEPS", 3)
    read(source, log, 2, 11)
    sorted(Path(log, "rank-00001-of-00002").iterdir())[gone].unlink()
    report = check_audit(log)
    assert not report.agrees
    first = 3 * gone - 2
    assert report.gaps == [f"steps {first} to {first + 2} are not in the log of rank 1 of 2"]
    assert check_audit(log, rank=0).agrees


def test_a_rank_that_is_missing(source: str, log: str) -> None:
    read(source, log, 2, 3)
    for path in Path(log, "rank-00000-of-00002").iterdir():
        path.unlink()
    assert check_audit(log).gaps == ["the log has nothing of rank 0 of 2"]


def test_an_object_in_anothers_place(source: str, log: str) -> None:
    read(source, log, 2, 1)
    (one,), (other,) = (list(path.iterdir()) for path in sorted(Path(log).iterdir()))
    one.rename(other.parent / one.name)
    assert "of another rank than its name says" in fault_of(check_audit(log, rank=1))


def test_a_damaged_object(source: str, log: str) -> None:
    read(source, log, 1, 1)
    (path,) = Path(log).rglob("*.audit")
    path.write_bytes(path.read_bytes()[:-3])
    assert f"{path}, offset " in fault_of(check_audit(log))
    assert "this object of an audit log is damaged" in fault_of(check_audit(log))


@pytest.mark.parametrize("changes", [{"seed": 4}, {"batch_size": 4}, {"lanes": 4}])
@pytest.mark.parametrize("values", [{}, {"index": None, "steps_per_epoch": 6}])
def test_another_order(
    source: str, log: str, changes: dict[str, Any], values: dict[str, Any]
) -> None:
    read(source, log, 1, 1, **values)
    report = check_audit(log, changes, reads=True)
    assert "the log belongs to another order" in fault_of(report)


def test_what_has_no_order_is_not_read_again(source: str, log: str) -> None:
    unordered = {"ordered": False, "shuffle": False, "index": None, "steps_per_epoch": 6}
    read(source, log, 1, 3, **unordered)
    report = check_audit(log, reads=True)
    assert (report.agrees, report.ranks[0].unchecked) == (True, 3)


def test_shards_that_are_empty_now(tmp_path: Path, log: str) -> None:
    source = write(tmp_path / "raw", SHARDS)
    read(source, log, 1, 1, index=None, remainder="keep", epochs=1)
    write(tmp_path / "raw", ((),) * len(SHARDS))
    assert "the log lists part-0000" in fault_of(check_audit(log, reads=True))


def test_another_index(source: str, tmp_path: Path, log: str) -> None:
    read(source, log, 1, 4)
    other = write(tmp_path / "raw", SHARDS)
    write_index(other, 50)
    assert check_audit(log, {"source": other}).agrees
    write_index(other, 80)
    assert "order was 'record" in check_audit(log, {"source": other}).ranks[0].faults[0]


def test_a_log_of_two_runs_is_told_once(source: str, log: str) -> None:
    for seed in (7, 8):
        read(source, log, 1, 3, seed=seed)
    fault = fault_of(check_audit(log))
    assert re.search(r"the log is of several runs: seed is [78] here, and [78] in an object", fault)


def test_a_copy_of_an_object_does_not_count(source: str, log: str, tmp_path: Path) -> None:
    read(source, log, 1, 5)
    path = max(Path(log).rglob("*.audit"))
    named = path.with_name(path.name.replace("-000002", "-000003"))
    named.write_bytes(path.read_bytes())
    report = check_audit(log)
    fault = fault_of(report)
    assert f"{named}: this object was written as {path.name}, so it is a copy" in fault
    assert (report.ranks[0].again, report.ranks[0].steps) == (0, 5)
    named.unlink()
    other = Path(log, "old", path.parent.name)
    other.mkdir(parents=True)
    (other / path.name).write_bytes(path.read_bytes())
    report = check_audit(log)
    assert "this is a copy of another object of the log" in fault_of(report)
    assert report.ranks[0].again == 0


def test_an_object_that_is_in_no_place(source: str, log: str) -> None:
    read(source, log, 1, 5)
    path = max(Path(log).rglob("*.audit"))
    stray = Path(log, "notes.audit")
    stray.write_bytes(path.read_bytes())
    report = check_audit(log)
    assert not report.agrees
    assert [rank.world_size for rank in report.ranks] == [1]
    assert report.strays == [
        f"{stray}: this object is not in the directory of a rank, so it proves nothing; put it "
        "back into its place, or take it out of the log's directory"
    ]


@pytest.mark.parametrize("changes", [{"seed": 9}, {"weights": {"a": 2, "b": 1}}, {"lanes": 2}])
def test_a_log_of_two_mixes_is_told(tmp_path: Path, log: str, changes: dict[str, Any]) -> None:
    parts = {name: write(tmp_path / name, SHARDS[:2]) for name in ("a", "b")}
    for own in ({}, changes):
        given = {"weights": {"a": 1, "b": 1}, "seed": 8, "lanes": 1, **own}
        weights = [(0, given.pop("weights"))]
        values = {"batch_size": 2, "steps_per_epoch": 4, "engine": "thread", **given}
        with sr.mix(parts, weights=weights, shuffle=True, audit=log, **values) as stream:
            follow(stream)
    assert "the log is of several runs: " in fault_of(check_audit(log))


def test_a_component_that_joins_is_in_the_log(tmp_path: Path, log: str) -> None:
    """The log is of one run, and tells the source of the component."""
    parts = {name: write(tmp_path / name, SHARDS[:2]) for name in ("a", "b", "c")}
    values: dict[str, Any] = {"batch_size": 2, "lanes": 1, "epochs": None, "shuffle": True}
    two = {name: (parts[name], 0.5) for name in ("a", "b")}
    with sr.mix(two, engine="thread", audit=log, **values) as stream:
        follow(stream, 3)
        weights = {"a": 0.2, "b": 0.2, "c": 0.6}
        stream.set_weights(weights, from_step=4, sources={"c": parts["c"]})
        follow(stream, 9)
    report = check_audit(log, reads=True)
    assert (report.agrees, report.ranks[0].read, report.ranks[0].steps) == (True, 12, 12)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The components of a mix, each with an index."""
    parts = {}
    for name, shards in {"a": SHARDS[:2], "b": SHARDS[2:], "c": SHARDS}.items():
        parts[name] = write(tmp_path_factory.mktemp(name), shards)
        write_index(parts[name], 50)
    return parts


MIX: dict[str, Any] = {
    "index": True, "lanes": 4, "shuffle": True, "shuffle_window": 100, "seed": 3, "epochs": None
}  # fmt: skip
ENDS: list[Any] = [
    at_night({}),
    {"epochs": 1, "exhausted": "rest"},
    at_night({"steps_per_epoch": 4, "epochs": 2}),
    {"exclude": [("a0/part-00001.tfrecord", one) for one in range(9)]},
]


@pytest.mark.parametrize("values", ENDS)
def test_a_mix_with_indexes_is_computed(
    indexed: dict[str, str], log: str, values: dict[str, Any]
) -> None:
    mix = {name: (indexed[name], 0.5) for name in ("a", "b")}
    with sr.mix(mix, engine="thread", audit=log, **{"batch_size": 4, **MIX, **values}) as stream:
        follow(stream, 3)
        stream.skip(2)
        follow(stream, 30)
        follow(stream, 30)
    (rank,) = check_audit(log).ranks
    assert (rank.faults, rank.computed, rank.skipped) == ([], rank.steps - 2, 2)
    change(log, 7, lambda entry: entry._replace(digest=bytes(16)))
    assert fault_of(check_audit(log)).startswith("step 7 of rank 0 of 1 differs: the log has the")


def test_single_records_of_a_mix(indexed: dict[str, str], log: str) -> None:
    mix = {name: (indexed[name], 0.5) for name in ("a", "b")}
    with sr.mix(mix, engine="thread", audit=log, **MIX) as stream:
        for _ in sr.take(stream, 30):
            pass
    report = check_audit(log)
    assert (report.agrees, report.ranks[0].steps) == (True, 30)


@pytest.mark.parametrize(("ranks", "stop"), each_once([(1, 2), (4, 1), (2, 4)], [0, 3, 8]))
def test_a_mix_whose_weights_change_is_computed(
    indexed: dict[str, str], log: str, ranks: tuple[int, int], stop: int
) -> None:
    """Also on other ranks, with a component that joins."""
    two = {name: (indexed[name], 0.5) for name in ("a", "b")}
    joined = {**two, "c": (indexed["c"], 0.0)}
    weights = {"a": 0.2, "b": 0.2, "c": 0.6}
    states: list[dict[str, Any]] = []
    for world_size, mix, most in ((ranks[0], two, stop), (ranks[1], joined, 9)):
        before, states = states, []
        for rank in range(world_size):
            of: dict[str, Any] = {"rank": rank, "world_size": world_size, "engine": "thread"}
            with sr.mix(mix, batch_size=4 // world_size, audit=log, **of, **MIX) as stream:
                if before:
                    stream.load_state_dict(before)
                    stream.set_weights(weights, from_step=stop + 2)
                follow(stream, most)
                states.append(stream.state_dict())
    report = check_audit(log)
    assert report.agrees
    computed = {rank.world_size: (rank.computed, rank.unchecked) for rank in report.ranks}
    assert computed[ranks[1]] == (9, 0)


@pytest.mark.parametrize("changes", [{"seed": 4}, {"weights": [(0, {"a": 0.9, "b": 0.1})]}])
def test_another_order_of_a_mix(indexed: dict[str, str], log: str, changes: dict[str, Any]) -> None:
    mix = {name: (indexed[name], 0.5) for name in ("a", "b")}
    with sr.mix(mix, engine="thread", batch_size=4, audit=log, **MIX) as stream:
        follow(stream, 1)
    assert "the log belongs to another order" in fault_of(check_audit(log, changes))


@pytest.mark.parametrize("index", [True, None])
def test_the_split_of_a_folder_is_in_the_log(tmp_path: Path, log: str, index: bool | None) -> None:
    folder = make_folder(tmp_path)
    if index:
        for split in LENGTHS:
            write_index(f"{folder}/made-{split}.tfrecord*", 120)
    values: dict[str, Any] = {"split": "train[3:]+test", "batch_size": 2, "engine": "thread"}
    with sr.open(folder, index=index, audit=log, **values) as stream:
        steps = len(follow(stream, 5))
    report = check_audit(log, reads=not index)
    assert (report.agrees, report.ranks[0].steps, report.ranks[0].unchecked) == (True, steps, 0)


def test_a_log_must_be_there(tmp_path: Path, source: str, log: str) -> None:
    with pytest.raises(ObjectNotFound, match="there is no audit log; give the directory that"):
        check_audit(str(tmp_path))
    read(source, log, 1, 1)
    with pytest.raises(ObjectNotFound, match="no audit log of rank 3; give the directory that"):
        check_audit(log, rank=3)
    with pytest.raises(ConfigError, match="seed"):
        check_audit(log, {"seed": "x"})


# -- gaps ------------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda s: (s[0], sum(s))))


@given(SPANS)
def test_a_union_has_all_steps(spans: list[tuple[int, int]]) -> None:
    joined = union(spans)
    assert {n for a, b in joined for n in range(a, b)} == {n for a, b in spans for n in range(a, b)}
    assert all(a < b for a, b in joined)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(joined))


@given(st.lists(SPANS, min_size=2, max_size=2), SPANS)
def test_gaps_are_the_steps_that_no_world_size_has(
    of_two: list[list[tuple[int, int]]], of_one: list[tuple[int, int]]
) -> None:
    ranks = [RankReport(number, 2, spans=spans) for number, spans in enumerate(of_two)]
    ranks.append(RankReport(0, 1, spans=of_one))
    one, other, alone = ({n for a, b in rank.spans for n in range(a, b)} for rank in ranks)
    there = (one & other) | alone
    missing = set(range(min(there, default=0), max(there, default=0))) - there
    told = " ".join(gaps_in(ranks))
    for step in missing:
        if step - 1 not in missing:
            assert f"{step} " in told
    assert bool(told) == bool(missing)


def test_a_name_may_claim_any_rank() -> None:
    ranks = [RankReport(999_999_998, 999_999_999), RankReport(7, 3)]
    assert list(gaps_in(ranks)) == [
        "the log has nothing of rank 0 of 3",
        "the log has nothing of rank 0 of 999999999",
    ]
