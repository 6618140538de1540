from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.formats.shards.index import Index
from streamrec.formats.shards.length_index import LengthIndex
from tests.cli.support import DATA, assert_one_sentence
from tests.cli.support import streamrec as cli

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.devstore import DevStore


SOURCE = f"{DATA}/numbers-*"


def test_tasks_become_one_dataset(tmp_path: Path) -> None:
    templates = [tmp_path / "x-train.tfrecord", tmp_path / "x-test.tfrecord"]
    options = ["--split", "train=0.5,test=0.5", "--shards", 4]
    for task in range(2):
        cli("reshard", SOURCE, tmp_path / "x.tfrecord", *options, "--task", f"{task}/2")
    done = (0, "".join(f"{template}: complete\n" for template in templates), "")
    assert cli("merge-index", *templates) == done
    assert cli("merge-index", *templates) == done
    everything = [f"{tmp_path}/x-train-*", "--against", SOURCE, "--any-order"]
    assert cli("verify", *everything).code == 1
    assert cli("verify", f"{tmp_path}/x-*", *everything[1:]).code == 0


def test_a_missing_task_is_named(store: DevStore, credentials: list[str]) -> None:
    into = "s3://data/new/x.tfrecord"
    cli("reshard", "s3://data/numbers-*", into, "--shards", 2, "--task", "1/2", *credentials)
    refused = cli("merge-index", into, *credentials)
    assert_one_sentence(
        refused, 2, "x-?????-of-?????.tfrecord", "1 of 2 tasks are not complete (0)"
    )


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for path in DATA.glob("numbers-*"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_it_is_written_beside_the_shards_and_hidden_from_patterns(shards: Path) -> None:
    outcome = cli("index", f"{shards}/*", "--chunk-size", "500")
    path = shards / "numbers.streamrec-index"
    assert outcome == (
        0,
        f"{path}: 3 shards, 60 records, 12 chunks; 453 bytes for 6.6 kB\n",
        "",
    )
    index = Index.parse(path.read_bytes(), url="u")
    assert [entry.records for entry in index.entries] == [20, 20, 20]
    assert cli("index", f"{shards}/*", "--json").object["shards"] == 3


def test_json_and_another_place(shards: Path, tmp_path: Path) -> None:
    output = tmp_path / "elsewhere"
    found = cli("index", "--json", f"{shards}/numbers-*", "--output", output).object
    assert found["url"] == str(output)
    assert found["bytes"] == output.stat().st_size
    assert (found["records"], found["chunks"]) == (60, 3)
    assert found["digest"] == Index.parse(output.read_bytes(), url="u").digest()


def test_into_an_object_store(store: DevStore, credentials: list[str]) -> None:
    outcome = cli("index", "s3://data/numbers-*", *credentials)
    assert outcome.out.startswith("s3://data/numbers.streamrec-index: 3 shards, 60 records")
    assert cli("verify", "s3://data/numbers*", *credentials).out.startswith("3 shards, 60 records")


def test_of_damaged_or_compressed_shards_none_is_written(shards: Path) -> None:
    path = shards / "numbers-00001-of-00003.tfrecord"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    assert_one_sentence(cli("index", f"{shards}/numbers-*"), 1, str(path), "offset 0", "CRC32C")
    assert not (shards / "numbers.streamrec-index").exists()


def test_refusals(shards: Path) -> None:
    refused = cli("index", f"{shards}/*", "--chunk-size", "many")
    assert_one_sentence(refused, 2, "--chunk-size", "'many'", "4MiB")
    assert_one_sentence(cli("index", f"{shards}/*", "--chunk-size", "0"), 2, "--chunk-size")
    missing = cli("index", f"{shards}/*", "--output", shards / "no" / "where")
    assert_one_sentence(missing, 1, "no such directory")


@pytest.mark.parametrize(
    ("feature", "lengths"), [("tokens", [3, 0, 1]), ("text", [5, 0, 2]), ("scores", [2, 1, 0])]
)
def test_lengths_are_written_beside_it(tmp_path: Path, feature: str, lengths: list[int]) -> None:
    """Numbers count as one each, and bytes as their bytes."""
    rows: list[dict[str, Any]] = [
        {"tokens": [1, 2, 3], "text": ["ab", "cde"], "scores": [0.5, 1.0]},
        {"scores": [0.5]},
        {"tokens": 7, "text": "fg"},
    ]
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_many(rows)
    outcome = cli("index", tmp_path / "a.tfrecord", "--lengths", feature)
    path = tmp_path / f"a.tfrecord.{feature}.streamrec-lengths"
    facts = f"{sum(lengths)} in all, {max(lengths)} at most; {path.stat().st_size} bytes"
    assert outcome.out.splitlines()[1] == f"{path}: {facts}"
    index = LengthIndex.parse(path.read_bytes(), url="u")
    assert index.records.lengths.tolist() == lengths
    assert index.records.sizes.sum() == (tmp_path / "a.tfrecord").stat().st_size


def test_lengths_of_no_feature_are_refused(shards: Path) -> None:
    outcome = cli("index", f"{shards}/*", "--lengths", "no")
    assert_one_sentence(outcome, 2, "the first records have no values of 'no'", "as no:int64")


@pytest.mark.parametrize("option", ["--lengths", "--key"])
def test_a_feature_that_comes_late_has_its_type_from_the_command(
    tmp_path: Path, option: str
) -> None:
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_many([{"id": n} for n in range(2000)])
        writer.write({"id": 2000, "tokens": [4, 5, 6]})
    shard = tmp_path / "a.tfrecord"
    assert_one_sentence(cli("index", shard, option, "tokens"), 2, "as tokens:int64")
    outcome = cli("index", shard, option, "tokens:int64")
    written = outcome.out.splitlines()[1]
    assert "a.tfrecord.tokens.streamrec-" in written
    assert "3 values" in written or "3 in all, 3 at most" in written
    wrong = cli("index", shard, option, "tokens:bytes")
    assert_one_sentence(wrong, 1, "record 2000", "tokens", "int64")
