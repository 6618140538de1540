from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest

from streamrec.datasets.sharded_writer import ShardedWriter
from tests.cli.support import DATA, assert_one_sentence
from tests.cli.support import streamrec as cli
from tests.datasets.datasets import manifest, names, records

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.devstore import DevStore

SOURCE = f"{DATA}/numbers-*-of-00003.tfrecord"


def test_text(tmp_path: Path) -> None:
    dest = tmp_path / "x.tfrecord"
    assert cli("reshard", SOURCE, dest) == (0, f"{dest}: 60 records\n", "")
    assert "x-00000-of-00001.tfrecord" in names(tmp_path)
    assert manifest(tmp_path).settings.shard_bytes == 128_000_000


def test_json_and_splits(tmp_path: Path) -> None:
    outcome = cli(
        "reshard", SOURCE, f"{tmp_path}/", "--split", "a=0.5,b=0.5", "--json", "--shards", 2
    )
    a, b = outcome.object["datasets"]
    assert a["template"] == str(tmp_path / "a.tfrecord")
    assert a["records"] + b["records"] == 60


def test_from_a_store_that_needs_options(
    tmp_path: Path, store: DevStore, credentials: list[str]
) -> None:
    source = "s3://data/numbers-*-of-00003.tfrecord"
    assert cli("reshard", source, tmp_path / "x", "--shard-size", "2kB", *credentials).code == 0
    assert sum(map(len, records(tmp_path))) == 60
    for pair in credentials:
        store.put("other/keep", b"")
        assert pair.startswith("--storage-option=")
    options = [pair.replace("--storage-option", "--dest-option") for pair in credentials]
    outcome = cli("reshard", f"{tmp_path}/x-*-of-*", "s3://other/y.gz", *options)
    assert outcome == (0, "s3://other/y.gz: 60 records\n", "")


def test_shuffle_with_tasks(tmp_path: Path) -> None:
    for task in range(2):
        how = ("--shuffle", "--seed", 5, "--memory", "16MiB", "--task", f"{task}/2", "--shards", 2)
        outcome = cli("reshard", SOURCE, tmp_path / "x", *how)
        assert outcome.code == 0
        assert outcome.out.endswith(f"have ended, run: streamrec merge-index {tmp_path}/x\n")
    assert sum(map(len, records(tmp_path))) == 60


def test_overwrite(tmp_path: Path) -> None:
    with ShardedWriter(tmp_path / "x", shards=1) as writer:
        writer.write(b"old")
    assert_one_sentence(cli("reshard", SOURCE, tmp_path / "x"), 2, "there is a dataset")
    assert cli("reshard", SOURCE, tmp_path / "x", "--overwrite").code == 0
    assert len(list(chain(*records(tmp_path)))) == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shards", "2", "--shard-size", "1MB"], "--shard-size has no effect beside --shards"),
        (["--split-by", "id"], "give --split, too"),
        (["--split", "a=0.9"], "the fractions add up to 0.9"),
        (["--task", "1"], "'1' is not I/N, as in 0/8"),
        (["--task", "2/2"], "give a pair (i, n) with 0 <= i < n"),
        (["--task", "0/9"], "3 shards cannot be divided over 9 tasks"),
        (["--shuffle", "--memory", "1MB"], "give at least 16,777,216"),
    ],
)
def test_wrong_options(tmp_path: Path, options: list[str], words: str) -> None:
    assert_one_sentence(cli("reshard", SOURCE, tmp_path / "x", *options), 2, words)
    assert names(tmp_path) == []


def test_a_directory_without_a_slash_names_no_shards(tmp_path: Path) -> None:
    assert_one_sentence(cli("reshard", SOURCE, tmp_path), 2, f"{tmp_path}/", "slash")


def test_split_needs_the_splits(tmp_path: Path) -> None:
    assert_one_sentence(cli("split", SOURCE, tmp_path / "x"), 2, "--split", "train=0.9")
    assert names(tmp_path) == []


def test_excluded_records_are_gone_and_verify_proves_it(tmp_path: Path) -> None:
    (tmp_path / "removed.jsonl").write_text(
        '{"shard": "numbers-00000-of-00003.tfrecord", "record": 3}\n'
        '{"shard": "numbers-00002-of-00003.tfrecord", "record": 19}\n'
    )
    exclude = "--exclude", tmp_path / "removed.jsonl"
    dest = tmp_path / "x.tfrecord"
    expected = f"{dest}: 58 records\n2 records are left out\n"
    assert cli("reshard", SOURCE, dest, *exclude) == (0, expected, "")
    again = cli("reshard", SOURCE, dest, *exclude, "--json").object
    assert again["excluded"] == 2
    assert again["datasets"][0]["was_complete"]
    new = f"{tmp_path}/x-*.tfrecord", "--against", SOURCE
    for order in ((), ("--any-order",)):
        outcome = cli("verify", *new, *exclude, *order)
        assert outcome == (0, "58 records against 58: equal\n", "")
        assert cli("verify", *new, *order).code == 1
    # A record that should be gone, and one too few, are both found.
    (tmp_path / "removed.jsonl").write_text(
        '{"shard": "numbers-00000-of-00003.tfrecord", "record": 3}\n'
        '{"shard": "numbers-00001-of-00003.tfrecord", "record": 0}\n'
    )
    outcome = cli("verify", *new, *exclude, "--any-order")
    assert outcome.code == 1
    assert outcome.out.splitlines()[0] == "1 record is missing"
    assert outcome.out.splitlines()[2] == "1 record is extra"
