from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from streamrec.devstore import DevStore
from tests.cli.support import assert_one_sentence
from tests.cli.support import streamrec as cli
from tests.datasets.datasets import manifest, names, records
from tests.sources.folders import picture_folder
from tests.sources.tables import ROWS, TABLE
from tests.sources.texts import PAGES, vocabulary_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return picture_folder(tmp_path / "pictures")


def test_pictures(pictures: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out" / "x.tfrecord"
    outcome = cli("write", pictures, destination, "--shards", 2, "--features", "image/encoded")
    assert outcome == (0, f"{destination}: 8 records\n", "")
    assert [len(shard) for shard in records(tmp_path / "out")] == [4, 4]
    assert manifest(tmp_path / "out").features == {"image/encoded": "bytes"}


def test_a_plan(pictures: Path, tmp_path: Path) -> None:
    options = ["--split", "train=0.5,test=0.5", "--dry-run", "--shard-size", "100kB"]
    outcome = cli("write", pictures, f"{tmp_path}/out/", *options)
    assert outcome.code == 0
    *splits, last = outcome.out.splitlines()
    assert [line.partition(":")[0].rpartition("/")[2] for line in splits] == [
        "train.tfrecord",
        "test.tfrecord",
    ]
    assert " records, " in splits[0]
    assert last == "nothing was written"
    found = cli("write", pictures, f"{tmp_path}/out/", *options, "--json").object
    assert sum(split["records"] for split in found["splits"]) == 8
    assert found["dry_run"]
    assert names(tmp_path / "out") == []


def test_a_new_directory(pictures: Path, tmp_path: Path) -> None:
    into = f"{tmp_path}/new/deeper/"
    assert cli("write", pictures, into, "--dry-run").code == 0
    assert not (tmp_path / "new").exists()
    assert cli("write", pictures, into).out == f"{into}data.tfrecord: 8 records\n"
    assert "data-00000-of-00001.tfrecord" in names(tmp_path / "new" / "deeper")


def test_a_directory_without_a_slash_names_no_shards(pictures: Path, tmp_path: Path) -> None:
    into = tmp_path / "out"
    assert_one_sentence(cli("write", pictures, into), 2, f"{into}/", "slash")
    assert_one_sentence(
        cli("write", into, "--kind", "bert", "--metadata-files", "list"), 2, "slash"
    )
    assert names(into) == []


def test_skipped_records_are_listed(pictures: Path, tmp_path: Path) -> None:
    (pictures / "space" / "1.jpg").write_bytes(b"no picture")
    into = tmp_path / "out" / "x.tfrecord"
    assert_one_sentence(cli("write", pictures, into), 1, "space/1.jpg", "--on-error skip")
    outcome = cli("write", pictures, into, "--on-error", "skip", "--task", "0/1")
    first, count, _ = outcome.out.splitlines()
    assert first.startswith(f"skipped: {pictures}/space/1.jpg: ")
    assert count == "1 record was skipped"


def test_a_table(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    into = tmp_path / "out" / "x.tfrecord"
    outcome = cli("write", TABLE, into, "--features", "seconds,threads=float32")
    assert outcome == (0, f"{into}: {len(ROWS)} records\n", "")
    assert manifest(tmp_path / "out").features == {"seconds": "float32", "threads": "float32"}


def test_the_parts_of_tasks(pictures: Path, tmp_path: Path) -> None:
    into = tmp_path / "out" / "x.tfrecord"
    options = ("--split", "a=0.5,b=0.5")
    first, last = (cli("write", pictures, into, "--task", f"{i}/2", *options) for i in range(2))
    assert (first.code, last.code) == (0, 0)
    _, to_run = last.out.split("when all 2 tasks have ended, run: streamrec ")
    completed = cli(*to_run.split())
    assert completed.out == "".join(
        f"{tmp_path}/out/x-{split}.tfrecord: complete\n" for split in "ab"
    )
    assert "run:" not in cli("write", pictures, into, "--task", "0/2", "--dry-run").out


def test_a_dataset_that_is_complete(pictures: Path, tmp_path: Path) -> None:
    into = tmp_path / "out" / "x.tfrecord"
    options = ["--shuffle", "--seed", 3, "--memory", "32MiB"]
    assert cli("write", pictures, into, *options).out == f"{into}: 8 records\n"
    again = cli("write", pictures, into, *options)
    assert again == (0, f"{into}: 8 records; it was complete already\n", "")
    assert cli("write", pictures, into, *options, "--json").object["splits"][0]["was_complete"]
    refused = cli("write", pictures, into, "--shards", 2)
    assert_one_sentence(
        refused, 2, "shards is not set in that one, and 2 in this one", "differs in shuffle"
    )


def test_engines(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into = tmp_path / "out" / "x"
    alone = cli("write", pictures, into, "--tasks", 2)
    assert_one_sentence(alone, 2, "--tasks is for --engine ray")
    both = cli("write", pictures, into, "--task", "1/2", "--engine", "ray")
    assert_one_sentence(both, 2, "leave out --task")
    monkeypatch.setitem(sys.modules, "ray", None)
    refused = cli("write", pictures, into, "--engine", "ray")
    assert_one_sentence(refused, 2, "pip install -e '.[ray]'")
    assert names(tmp_path / "out") == []


def test_from_a_store_to_another(tmp_path: Path) -> None:
    with DevStore() as source, DevStore() as target:
        source.put("tables/x.csv", TABLE.read_bytes())
        target.put("bucket/other", b"")
        into = ["gs://bucket/x.tfrecord", "--features", "seconds"]
        given = [f"--storage-option={name}={it}" for name, it in source.storage_options.items()]
        given += [f"--dest-option={name}={it}" for name, it in target.gcs_options.items()]
        outcome = cli("write", "s3://tables/*.csv", *into, *given)
        assert outcome == (0, f"{into[0]}: {len(ROWS)} records\n", "")
        nothing = cli("write", "s3://tables/no.csv", *into, *given)
        assert_one_sentence(nothing, 1, "s3://tables/no.csv", "no such object")


def test_refusals(pictures: Path, tmp_path: Path) -> None:
    into = tmp_path / "out" / "x"
    assert_one_sentence(cli("write", pictures, into, "--task", "2/2"), 2, "task", "(0, 8)")
    assert_one_sentence(cli("write", pictures, into, "--task", "x"), 2, "task")
    assert_one_sentence(cli("write", pictures, into, "--features", "a=text"), 2, "'a=text'")
    both = cli("write", pictures, into, "--shards", 2, "--shard-size", "1MB")
    assert_one_sentence(both, 2, "--shard-size has no effect beside --shards")
    nothing = cli("write", tmp_path / "no.thing", into)
    assert_one_sentence(nothing, 2, "no.thing", "there is no such file")


BERT = ["--kind", "bert", "--dupe-factor", 1]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page of text, as a file of the name that text has."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "page.txt"
    path.write_bytes(PAGES[0].read_bytes())
    return path


def test_bert_text(page: Path, tmp_path: Path) -> None:
    into = tmp_path / "out" / "x.tfrecord"
    vocabulary = vocabulary_file(tmp_path)
    options = [*BERT, "--vocab-file", vocabulary, "--shards", 2, "--no-do-lower-case"]
    outcome = cli("write", page, into, *options, "--masked-lm-prob", "0.2", "--workers", 1)
    written = records(tmp_path / "out")
    assert outcome == (0, f"{into}: {sum(map(len, written))} records\n", "")
    assert len(written) == 2
    kept = manifest(tmp_path / "out")
    assert kept.features is not None
    assert kept.features["masked_lm_weights"] == "float32"
    source = kept.settings.source
    assert source["text"] == ["page.txt"]
    assert source["masked_lm_prob"] == 0.2
    assert source["do_lower_case"] is False
    assert len(source["vocabulary"]) == 64


def test_splits_of_text_are_those_of_documents(page: Path, tmp_path: Path) -> None:
    options = [*BERT, "--vocab-file", vocabulary_file(tmp_path), "--shards", 2, "--workers", 1]
    outcome = cli("write", page, f"{tmp_path}/out/", *options, "--split", "train=0.7,test=0.3")
    assert outcome.code == 0, outcome
    assert manifest(tmp_path / "out", "test").settings.source["splits"]["test"] == "3/10"
    again = cli("write", page, f"{tmp_path}/out/", *options, "--split", "train=0.7,test=0.3")
    assert again.out.count("it was complete already") == 2
    other = cli("write", page, f"{tmp_path}/out/", *options, "--split", "train=0.8,test=0.2")
    assert_one_sentence(other, 2, "its source differs in splits")


def test_lists_stand_for_a_source(page: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("page.txt\n")
    options = [*BERT, "--vocab-file", vocabulary_file(tmp_path), "--workers", 1, "--dry-run"]
    listed = ["--metadata-files", tmp_path / "list", "--input-files-prefix", tmp_path]
    found = cli("write", f"{tmp_path}/out/x", *options, *listed, "--json")
    assert (
        found.object["splits"]
        == cli("write", page, f"{tmp_path}/out/x", *options, "--json").object["splits"]
    )
    both = cli("write", page, f"{tmp_path}/out/x", *options, *listed)
    assert_one_sentence(both, 2, "give either SOURCE or --metadata-files")


def test_refusals_of_text(page: Path, tmp_path: Path) -> None:
    into = tmp_path / "out" / "x"
    assert_one_sentence(cli("write", page, into, *BERT), 2, "--vocab-file is missing")
    assert_one_sentence(cli("write", page, *BERT), 2, "give DEST after SOURCE")
    other = cli("write", page, into, "--kind", "csv", "--dupe-factor", 3)
    assert_one_sentence(other, 2, "--dupe-factor does not go with", "csv")
    options = [*BERT, "--vocab-file", vocabulary_file(tmp_path)]
    long = cli("write", page, into, *options, "--max-seq-length", 16)
    assert_one_sentence(long, 2, "--max-predictions-per-seq", "13")
    page.write_bytes(b"a\n\xff\n\nb\nc\n")
    assert_one_sentence(cli("write", page, into, *options, "--workers", 1), 1, "page.txt", "line 2")
    skipped = cli("write", page, into, *options, "--on-error", "skip", "--workers", 1)
    assert skipped.code == 0
    assert "1 record was skipped" in skipped.out
