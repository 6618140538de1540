"""Records that are excluded, and found, by values of a feature."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import streamrec as sr
from streamrec.cli.program import program
from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError, MalformedIndex, ObjectNotFound, StaleIndex
from tests.feeder.support import serving
from tests.pipeline.made_folders import LENGTHS, make_folder

if TYPE_CHECKING:
    from pathlib import Path

PEOPLE = ("ann", "bob", "zoë", "dan", "eve", "fay", "gus")
SHARDS, RECORDS = 4, 25
FEATURES = {"id": sr.FixedLenFeature((), "int64")}
RUN: dict[str, Any] = {
    "batch_size": 5, "lanes": 4, "index": True, "shuffle": True, "shuffle_window": 900, "seed": 3
}  # fmt: skip
THREAD = {**RUN, "engine": "thread"}


def write(place: Path, name: str = "train", user: str = "user") -> str:
    """Write records with the user of their number, in the feature of this name, and two tags."""
    for shard in range(SHARDS):
        with sr.TFRecordWriter(place / f"{name}-{shard}.tfrecord") as writer:
            for number in range(RECORDS * shard, RECORDS * (shard + 1)):
                who = PEOPLE[number * number % 11 % 7]
                writer.write({"id": number, user: who, "tags": [number % 13, 50]})
    return str(place / f"{name}-*.tfrecord")


def has(number: int, people: set[str]) -> bool:
    return PEOPLE[number * number % 11 % 7] in people


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(program, arguments)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def source(tmp_path: Path) -> str:
    source = write(tmp_path)
    run("index", source, "--key", "user", "--key", "tags", "--chunk-size", "300")
    return source


def ids(stream: Any) -> list[int]:
    return [n for batch in stream for n in kept(batch).tolist()]


def kept(batch: Any) -> Any:
    return batch["id"] if batch.mask is None else batch["id"][batch.mask]


def pairs(people: set[str]) -> list[tuple[str, int]]:
    return [
        (f"train-{n // RECORDS}.tfrecord", n % RECORDS)
        for n in range(SHARDS * RECORDS)
        if has(n, people)
    ]


def test_what_is_written(tmp_path: Path) -> None:
    source = write(tmp_path)
    facts = json.loads(run("index", source, "--key", "user", "--json"))
    (key,) = facts["keys"]
    assert (key["feature"], key["values"]) == ("user", 100)
    assert key["url"].endswith("/train.user.streamrec-keys")
    assert "100 values" in run("index", source, "--key", "user")
    assert len(sr.shards(str(tmp_path / "*"))) == SHARDS
    result = CliRunner().invoke(program, ["index", source, "--key", "name"])
    assert "no values of 'name'; they have id, tags, user" in str(result.exception)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_same_as_the_list_of_the_records(source: str, world: int) -> None:
    people = {"zoë", "gus"}
    for rank in range(world):
        of = {"rank": rank, "world_size": world, **THREAD}
        with sr.open(source, FEATURES, exclude=pairs(people), **of) as stream:
            expected = ids(stream)
        with sr.open(source, FEATURES, exclude={"user": [*people, "nobody"]}, **of) as stream:
            assert ids(stream) == expected
        assert not any(has(number, people) for number in expected)
        assert len(expected) > 30 / world


def test_by_numbers_and_by_files(source: str, tmp_path: Path) -> None:
    with sr.open(
        source, FEATURES, exclude={"tags": [3, "07"], "user": ["bob"]}, **THREAD
    ) as stream:
        seen = ids(stream)
    assert sorted(seen) == [n for n in range(100) if n % 13 not in (3, 7) and not has(n, {"bob"})]
    (tmp_path / "users.txt").write_text("bob\n\n")
    (tmp_path / "tags.txt").write_text("3\n7\n")
    files: dict[str, Any] = {"tags": tmp_path / "tags.txt", "user": str(tmp_path / "users.txt")}
    with sr.open(source, FEATURES, exclude=files, **RUN) as stream:
        assert ids(stream) == seen


def test_on_resume_and_through_a_feeder(source: str) -> None:
    exclude = {"user": ["ann"]}
    with sr.open(source, FEATURES, **THREAD) as stream:
        first = next(stream)
        state = stream.state_dict()
        plain = ids(stream)
    with sr.open(source, FEATURES, exclude=exclude, **THREAD) as stream:
        stream.load_state_dict(state)
        rest = ids(stream)
    assert rest == [number for number in plain if not has(number, {"ann"})]
    features = {"id": {"shape": [], "dtype": "int64"}}
    given = {"source": source, "features": features, "exclude": exclude, **RUN}
    with (
        serving(validate(DatasetSettings, given)) as place,
        sr.connect(f"{place}/data") as stream,
    ):
        stream.load_state_dict(first.next_position.to_dict())
        assert ids(stream) == rest


def test_in_a_mix(source: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other", "code")
    parts = {"web": (source, 0.5), "code": (other, 0.5)}
    values = {**THREAD, "epochs": 1, "steps_per_epoch": 30, "exclude": {"user": ["eve"]}}
    run("index", other)
    with pytest.raises(ObjectNotFound, match="index URL --key user"):
        next(sr.mix(parts, FEATURES, **values))
    run("index", other, "--key", "user")
    with sr.mix(parts, FEATURES, **values) as stream:
        seen = ids(stream)
    assert seen
    assert not any(has(number, {"eve"}) for number in seen)
    assert len({*seen}) < len(seen)


def test_in_a_mix_whose_records_name_it_differently(source: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other", "code", "member")
    run("index", other, "--key", "member")
    parts = {"web": (source, 0.5), "code": (other, 0.5)}
    values = {**THREAD, "epochs": 1, "steps_per_epoch": 30, "exclude": {"user": ["eve"]}}
    with sr.mix(parts, FEATURES, rename={"code": {"member": "user"}}, **values) as stream:
        seen = ids(stream)
    assert seen
    assert not any(has(number, {"eve"}) for number in seen)
    rename = {"member": "user"}
    for name in ("user", "member"):
        values["exclude"] = {name: ["eve"]}
        with sr.open(other, FEATURES, rename=rename, **values) as stream:
            assert not any(has(number, {"eve"}) for number in ids(stream))


@pytest.mark.parametrize("split", ["train[50%:]", "test+train[1:9]+train[5:]"])
def test_in_a_tfds_folder(tmp_path: Path, split: str) -> None:
    folder = make_folder(tmp_path, size=40)
    given = {"split": split, **THREAD, "lanes": 3}
    exclude = {"label": [1], "id": [4, 1000, 2000]}
    for name in LENGTHS:
        run("index", str(folder), "--split", name, "--key", "label", "--key", "id")
    with sr.open(folder, **given) as stream:
        whole = ids(stream)
    with sr.open(folder, **given, exclude=exclude) as stream:
        seen = ids(stream)
    assert seen == [number for number in whole if number % 2 == 0 and number not in (4, 1000)]
    found = sr.which(folder, find={"label": 1}, **given)
    every = [place for place in sr.which(folder, range(9), **given) if place.epoch == 0]
    values = tmp_path / "values.txt"
    values.write_text("1\n")
    lines = run(
        "which", str(folder), "--set", f"split={split}", "--key", "label", "--values", str(values)
    )
    listed = {(line["shard"], line["record"]) for line in map(json.loads, lines.splitlines()[:-1])}
    assert found == [place for place in every if (place.shard, place.record) in listed]
    assert len(found) == sum(number % 2 for number in whole)


def test_the_steps_of_a_value(source: str) -> None:
    given = [text for name, value in RUN.items() for text in ("--set", f"{name}={value}".lower())]
    wanted = {"world_size": 2, "find_epochs": 2, **RUN}
    found = sr.which(source, find={"user": "dan"}, **wanted)
    assert [(place.step, place.rank, place.row) for place in found] == sorted(
        (place.step, place.rank, place.row) for place in found
    )
    every = sr.which(source, range(20), world_size=2, **RUN)
    names = {(shard.rsplit("/", 1)[-1], record) for shard, record in pairs({"dan"})}
    assert found == sorted(
        p for p in every if (p.shard.rsplit("/", 1)[-1], p.record) in names and p.epoch < 2
    )
    lines = run("which", source, "--find", "user=dan", "--epochs", "2", "--world-size", "2",
                "--json", *given).splitlines()  # fmt: skip
    assert [json.loads(line) for line in lines] == [place._asdict() for place in found]
    with pytest.raises(ConfigError, match="no record has the value 'nobody'"):
        sr.which(source, find={"user": "nobody"}, **wanted)
    with pytest.raises(ConfigError, match="or a value by its feature"):
        sr.which(source, find={"user": "dan", "tags": 3}, **wanted)
    assert "FEATURE=VALUE" in run("which", source, "--find", "user", *given, code=2)


def test_stale_and_damaged(source: str, tmp_path: Path) -> None:
    exclude = {"user": ["ann"]}
    command = re.escape(f"`streamrec index '{source}' --key user`")
    place = tmp_path / "train-0.tfrecord"
    data = place.read_bytes()
    run("index", source, "--chunk-size", "100")
    with pytest.raises(StaleIndex, match=f"write both again with {command}"):
        next(sr.open(source, FEATURES, exclude=exclude, **THREAD))
    run("index", source, "--key", "user")
    (keys,) = tmp_path.glob("*user.streamrec-keys")
    keys.write_bytes(keys.read_bytes()[:-1])
    with pytest.raises(MalformedIndex, match="index --key FEATURE"):
        next(sr.open(source, FEATURES, exclude=exclude, **THREAD))
    keys.unlink()
    with pytest.raises(ObjectNotFound, match=f"write it with {command}"):
        next(sr.open(source, FEATURES, exclude=exclude, **THREAD))
    assert place.read_bytes() == data


def test_an_index_of_another_key(source: str, tmp_path: Path) -> None:
    (keys,) = tmp_path.glob("*user.streamrec-keys")
    keys.rename(tmp_path / "train.id.streamrec-keys")
    with pytest.raises(StaleIndex, match="has the values of 'user', not those of 'id'"):
        next(sr.open(source, FEATURES, exclude={"id": [3]}, **THREAD))


def test_a_file_of_values_with_other_line_ends(tmp_path: Path) -> None:
    odd = "x\u2028y"
    with sr.TFRecordWriter(tmp_path / "t-0.tfrecord") as writer:
        writer.write_many({"id": number, "user": (odd, "z")[number % 2]} for number in range(4))
    source, values = str(tmp_path / "t-*.tfrecord"), tmp_path / "values.txt"
    run("index", source, "--key", "user")
    values.write_text(f"\ufeff{odd}\r\n", encoding="utf-8", newline="")
    with sr.open(source, FEATURES, exclude={"user": str(values)}, **THREAD) as stream:
        assert sorted(ids(stream)) == [1, 3]
    listed = run("which", source, "--key", "user", "--values", str(values))
    assert [json.loads(line)["record"] for line in listed.split("\n")[:2]] == [0, 2]


def test_refusals(source: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"exclude": {"user": ["ann"]}, "index": None}, "found by indexes alone"),
        ({"exclude": {"tags": ["ann"]}}, "'ann' is not an integer, but 'tags' has integers"),
        ({"exclude": {"user": str(empty)}}, "has no value"),
        ({"exclude": {"user": str(binary)}}, "is not UTF-8"),
        ({"exclude": {"user": ["\udcff"]}}, "is not UTF-8"),
        ({"exclude": {"\udcff": ["ann"]}}, "cannot be the name of a feature"),
        ({"exclude": {"": ["ann"]}}, "cannot be the name of a feature"),
        ({"exclude": {"user": 3}}, "takes a list of numbers or texts"),
        ({"exclude": {"user": [True]}}, "takes a list of numbers or texts"),
    ]
    for values, words in wrong:
        with pytest.raises(ConfigError, match=words):
            next(sr.open(source, FEATURES, **{**THREAD, **values}))
