from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import streamrec as sr
from streamrec.cli.which import _wanted, which
from streamrec.datasets import found_records
from streamrec.stores.base.protocol import read_range
from tests.cli.support import assert_one_sentence
from tests.cli.support import streamrec as cli
from tests.pipeline.small_datasets import write_index
from tests.support import IN_TORCHS_WORKER

PLAIN = ("--set", "batch_size=4", "--set", "index=true")
SET = (*PLAIN, "--set", "shuffle=true", "--set", "seed=7")


@pytest.fixture
def source(tmp_path: Path) -> str:
    for shard in range(3):
        with sr.TFRecordWriter(tmp_path / f"part-{shard}.tfrecord") as writer:
            writer.write_many({"id": 100 * shard + i, "x": float(i)} for i in range(20))
    source = f"{tmp_path}/part-*.tfrecord"
    write_index(source, 200)
    return source


def test_values_make_a_list_for_exclude(source: str, tmp_path: Path) -> None:
    values, removed = tmp_path / "values.txt", tmp_path / "removed.jsonl"
    values.write_text("3\n\n217\n999\n")
    outcome = cli("which", source, "--key", "id", "--values", values)
    assert outcome.err == "2 records; 1 of 3 values not found\n"
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert [(Path(one["shard"]).name, one["record"], one["value"]) for one in found] == [
        ("part-0.tfrecord", 3, 3),
        ("part-2.tfrecord", 17, 217),
    ]
    removed.write_text(outcome.out)
    features = {"id": sr.FixedLenFeature((), "int64")}
    with sr.open(source, features, batch_size=4, exclude=removed, engine="thread") as stream:
        left = {number for batch in stream for number in batch["id"].tolist()}
    assert left == {100 * shard + i for shard in range(3) for i in range(20)} - {3, 217}


@pytest.mark.parametrize(("content", "words"), [(b"\n", "no value"), (b"\xff", "not UTF-8")])
def test_values_that_cannot_be_read(
    source: str, tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "values.txt"
    path.write_bytes(content)
    assert_one_sentence(cli("which", source, "--key", "id", "--values", path), 2, words)


def test_a_table(source: str) -> None:
    code, out, err = cli("which", source, "--step", 3, *SET)
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == ["step", "rank", "row", "epoch", "lane", "record", "shard"]
    assert [row.split()[:4] for row in rows] == [["3", "0", str(i), "0"] for i in range(4)]


def test_json_lines_are_those_of_the_library(source: str) -> None:
    outcome = cli("which", source, "--steps", "2:4", "--world-size", 2, "--json", *SET)
    found = [json.loads(line) for line in outcome.out.splitlines()]
    values: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 7,
        "index": True,
        "world_size": 2,
    }
    assert found == [place._asdict() for place in sr.which(source, range(2, 4), **values)]


def test_records_and_keys(source: str) -> None:
    places = cli("which", source, "--step", 3, "--json", *SET).out.splitlines()
    ids = [100 * int(p["shard"][-10]) + p["record"] for p in map(json.loads, places)]
    shown = cli("which", source, "--step", 3, "--show", *SET).out.splitlines()
    assert [json.loads(line)["id"] for line in shown] == [[i] for i in ids]
    keys = cli("which", source, "--step", 3, "--key", "id", "--json", *SET).out.splitlines()
    assert [json.loads(line)["value"] for line in keys] == [{"id": [i]} for i in ids]
    assert json.loads(keys[0])["step"] == 3


def test_an_excluded_record_is_not_shown(source: str) -> None:
    places = [
        json.loads(line)
        for line in cli("which", source, "--step", 3, "--json", *SET).out.splitlines()
    ]
    name = places[1]["shard"].rsplit("/", 1)[-1]
    exclude = "--set", f"exclude={json.dumps([[name, places[1]['record']]])}"
    found = cli("which", source, "--step", 3, "--json", *SET, *exclude).out.splitlines()
    assert [json.loads(line)["is_excluded"] for line in found] == [False, True, False, False]
    for option in (("--show",), ("--key", "id")):
        shown = cli("which", source, "--step", 3, *option, *SET, *exclude).out.splitlines()
        assert [line == "null" for line in shown] == [False, True, False, False]


def test_each_chunk_is_read_once(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, whole = [], read_range

    async def counted(store: Any, found: Any, begin: int, end: int, **how: Any) -> Any:
        read.append((found.url, begin, end))
        return await whole(store, found, begin, end, **how)

    monkeypatch.setattr(found_records, "read_range", counted)
    places = cli("which", source, "--steps", "0:9", "--json", *PLAIN).out.splitlines()
    chunks = {(p["shard"], p["chunk_offset"], p["chunk_end"]) for p in map(json.loads, places)}
    shown = cli("which", source, "--steps", "0:9", "--show", *PLAIN).out.splitlines()
    assert [json.loads(line)["id"] for line in shown] == [
        [100 * int(p["shard"][-10]) + p["record"]] for p in map(json.loads, places)
    ]
    assert len(read) == len(chunks) < len(shown)
    assert set(read) == chunks


def test_a_record_that_cannot_be_shown(source: str) -> None:
    path = Path(source).parent / "part-0.tfrecord"
    data = path.read_bytes()
    path.write_bytes(data[:-10] + bytes(10))
    assert cli("which", source, "--step", 0, "--show", *PLAIN).code == 0
    outcome = cli("which", source, "--find", "part-0.tfrecord:19", "--show", *PLAIN)
    assert_one_sentence(outcome, 1, "record 19: the CRC32C")
    path.write_bytes(data[: len(data) // 20 * 19] + bytes(0))
    outcome = cli("which", source, "--find", "part-0.tfrecord:19", "--show", *PLAIN)
    assert outcome.code == 1


def test_a_feature_that_no_record_has(source: str) -> None:
    outcome = cli("which", source, "--step", 3, "--key", "idd", *SET)
    assert_one_sentence(outcome, 1, "no record that was read has this feature", "did you mean 'id'")
    assert outcome.out == ""
    outcome = cli("which", source, "--step", 3, "--key", "label", "--json", *SET)
    assert_one_sentence(outcome, 1, "there are 'id', 'x'")


def test_what_cannot_be_computed_is_read(source: str) -> None:
    order = (*SET, "--set", "index=null", "--set", "lanes=2", "--steps", "1:3")
    outcome = cli("which", source, "--read", *order)
    assert outcome.out.splitlines()[0].split() == ["step", "rank", "row", "record", "shard"]
    printed = cli("which", source, "--read", "--json", *order).out
    found = [json.loads(line) for line in printed.splitlines()]
    features = {"id": sr.FixedLenFeature((), "int64")}
    values: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 7,
        "lanes": 2,
        "engine": "thread",
    }
    with sr.open(source, features, **values) as stream:
        numbers = [number for batch in stream for number in batch["id"].tolist()]
    read = [100 * int(Path(one["shard"]).stem[-1]) + one["record"] for one in found]
    assert read == numbers[4:12]


def test_find(source: str) -> None:
    out = cli("which", source, "--find", "part-1.tfrecord:5", "--epochs", 3, "--json", *SET).out
    found = [json.loads(line) for line in out.splitlines()]
    assert [(one["epoch"], one["record"]) for one in found] == [(0, 5), (1, 5), (2, 5)]


def test_a_state_and_a_configuration(source: str, tmp_path: Path) -> None:
    state, config = tmp_path / "state.json", tmp_path / "feeder.toml"
    state.write_text('{"version": 3, "epoch": 2}')
    config.write_text(
        f"[datasets.d]\nsource = {json.dumps(source)}\nbatch_size = 4\nindex = true\n"
    )
    out = cli("which", "--config", config, "--step", 0, "--state", state, "--json").out
    assert {json.loads(line)["epoch"] for line in out.splitlines()} == {2}


def test_a_run_without_an_index_is_not_taken_for_one_with(source: str, tmp_path: Path) -> None:
    config = tmp_path / "feeder.toml"
    config.write_text(f"[datasets.d]\nsource = {json.dumps(source)}\nbatch_size = 4\n")
    assert_one_sentence(cli("which", "--config", config, "--step", 0), 2, "index=True")
    assert_one_sentence(cli("info", "--shuffle", "--config", config), 2, "index=True")


def test_an_absolute_name_of_a_shard_whose_source_is_relative(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with sr.open("part-*.tfrecord", batch_size=4, engine="thread") as stream:
        shard = stream.shards[1]
    found = cli("which", "part-*.tfrecord", "--find", f"{shard}:5", *SET)
    assert found == cli("which", "part-*.tfrecord", "--find", "part-1.tfrecord:5", *SET)
    assert len(found.out.splitlines()) == 2
    excluded = json.dumps([[shard, 5]])
    named = "which", "part-*.tfrecord", "--find", "part-1.tfrecord:5", "--json", *SET
    assert cli(*named, "--set", f"exclude={excluded}").object["is_excluded"] is True


@IN_TORCHS_WORKER
def test_a_checkpoint_of_torch(source: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 7, "index": True}
    with sr.open(source, engine="thread", rank=0, world_size=1, **values) as stream:
        stream.set_epoch(3)
        next(stream)
        state = stream.state_dict()
    text = json.dumps({**state, "ended": True})
    weights = {"weight": torch.zeros(1000), "names": ["a", {"b": 1}], "note": "{no JSON"}
    expected = cli("which", source, "--step", 2, *SET)
    assert expected.code == 0
    (tmp_path / "state.json").write_text(json.dumps(state))
    expected = cli("which", source, "--step", 2, *SET, "--state", tmp_path / "state.json")
    path = tmp_path / "checkpoint.pt"
    for data in (state, [state], {"rank 0 of 1": text}):
        torch.save({"model": weights, "stream": data, "epoch": 3}, path)
        assert cli("which", source, "--step", 2, *SET, "--state", path) == expected
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert cli("which", source, "--step", 2, *SET, "--state", path) == expected


@IN_TORCHS_WORKER
def test_a_checkpoint_that_holds_objects(source: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "checkpoint.pt"
    arguments = "which", source, "--step", 1, *SET, "--state", path
    torch.save({"stream": {"version": 3}, "path": tmp_path}, path)
    assert_one_sentence(cli(*arguments), 2, "as tensors and plain data", "json.dump(stream.state")
    torch.save({"model": torch.zeros(3)}, path)
    assert_one_sentence(cli(*arguments), 1, "not a state")


def test_a_checkpoint_without_torch(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04")
    arguments = "which", source, "--step", 1, *SET, "--state", tmp_path / "checkpoint.pt"
    assert_one_sentence(cli(*arguments), 2, "PyTorch, which is not installed", "json.dump")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give one of --step, --steps and --find"),
        (("--read", "--find", "a:1", "--set", "batch_size=4"), "--find has no effect with --read"),
        (("--read", "--step", 1), "there is no batch size"),
        (("--values", "v.txt"), "needs --key FEATURE"),
        (("--values", "v.txt", "--key", "id"), "cannot be read"),
        (("--values", "v.txt", "--key", "id", "--step", 1), "no effect with --values"),
        (("--step", 1, "--find", "a:1", *PLAIN), "leave out steps or find"),
        (("--steps", "3"), "not FIRST:END"),
        (("--steps", "5:5"), "END above FIRST"),
        (("--steps", "-3:2"), "not FIRST:END"),
        (("--step", 1, "--set", "seed"), "'seed' is not NAME=VALUE, as in batch_size=64"),
        (("--find", "a"), "not SHARD:RECORD"),
        (("--step", 1, "--epochs", 1), "--epochs has no effect without --find"),
        (("--step", 1, "--show", "--key", "id"), "give one"),
        (("--step", 1), "--set batch_size=N"),
        (("--step", 1, *PLAIN, "--state", "none.json"), "cannot be read"),
        (("--step", 1, "--set", "batch_size=4"), "--set index=true"),
        (("--step", 1, "--dataset", "d"), "--config FILE"),
    ],
)
def test_refusals(source: str, arguments: tuple[object, ...], words: str) -> None:
    assert_one_sentence(cli("which", source, *arguments), 2, words)


def test_no_source() -> None:
    assert_one_sentence(cli("which", "--step", 1), 2, "there is no source")


def test_a_state_that_is_not_json(source: str, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"no JSON")
    arguments = "which", source, "--step", 1, *SET, "--state", tmp_path / "state"
    assert_one_sentence(cli(*arguments), 2, "not JSON")


def test_a_text_in_place_of_a_number(source: str) -> None:
    code, _, err = cli("which", source, "--step", "x")
    assert code == 2
    assert "'x' is not a valid integer;" in err


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("train-0.tfrecord:17", ("train-0.tfrecord", 17)),
        ("s3://b/day=1/a:17", ("s3://b/day=1/a", 17)),
        ("ts=10:30", {"ts": "10:30"}),
        ("user=a", {"user": "a"}),
    ],
)
def test_what_is_to_be_found(text: str, meant: object) -> None:
    """What has a ``=`` and no slash is a value, even if it ends with a colon and a number."""
    assert _wanted(click.Context(which), which, text) == meant  # type: ignore[arg-type]
