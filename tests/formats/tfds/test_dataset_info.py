from __future__ import annotations

import json
import math
from typing import Any

import pytest

from streamrec.errors import ConfigError, MalformedIndex, UnsupportedFormat
from streamrec.formats.tfds.dataset_info import FolderInfo, FolderShard

URL = "s3://b/mnist/1.0.0/dataset_info.json"


def info(**changes: Any) -> FolderInfo:
    """Parse a document with two splits; protobuf writes 64-bit integers as texts."""
    splits = [
        {"name": "train", "shardLengths": ["4", "0", "6"], "numBytes": "1200"},
        {"name": "test", "shardLengths": ["3"]},
    ]
    table = {"name": "mnist", "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}
    return FolderInfo.parse(json.dumps({**table, **changes}).encode(), URL)


def test_facts() -> None:
    found = info(configName="small")
    assert (found.name, found.config, found.version) == ("mnist", "small", "1.0.0")
    assert {name: split.records for name, split in found.splits.items()} == {"train": 10, "test": 3}
    assert found.splits["train"].stored_bytes == 1200
    assert found.splits["train"].names[2] == "mnist-train.tfrecord-00002-of-00003"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("", "mnist-test.tfrecord-00000-of-00001"),
        ("{SPLIT}/{DATASET}.{SHARD_INDEX}.{FILEFORMAT}", "test/mnist.00000.tfrecord"),
        ("{DATASET}_{SPLIT}-{SHARD_INDEX}-{NUM_SHARDS}", "mnist_test-00000-00001"),
    ],
)
def test_names_of_shards(template: str, name: str) -> None:
    split = {"name": "test", "shardLengths": ["3"], "filepathTemplate": template}
    assert info(splits=[split]).splits["test"].names == (name,)


def test_many_shards_have_longer_numbers() -> None:
    found = info(splits=[{"name": "test", "shardLengths": ["1"] * 100_000}])
    assert found.splits["test"].names[7] == "mnist-test.tfrecord-000007-of-100000"


def test_a_slice_cuts_shards() -> None:
    first, last = "mnist-train.tfrecord-00000-of-00003", "mnist-train.tfrecord-00002-of-00003"
    assert info().shards("train[3:5]+train[50%:]") == [
        FolderShard("train", first, 3, 1, 4),
        FolderShard("train", last, 0, 1, 6),
        FolderShard("train", last, 1, 5, 6),
    ]


def test_all_splits() -> None:
    assert [shard.split for shard in info().shards("all")] == ["train", "train", "test"]


@pytest.mark.parametrize(
    ("split", "why"),
    [
        (
            "trian",
            r"mnist has no split 'trian'; there are train \(10 records\), test \(3 records\); did "
            "you mean 'train'",
        ),
        ("dev", "give one of these"),
        ("train[:11]", "the split 'train' has only 10 records; correct its slice"),
        ("train[:0]", "selects no record of mnist"),
    ],
)
def test_splits_that_do_not_exist(split: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        info().shards(split)


@pytest.mark.parametrize("form", ["array_record", "riegeli", "parquet"])
def test_another_format_of_shards(form: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"in the format '{form}', and 'tfrecord' is read"):
        info(fileFormat=form)


@pytest.mark.parametrize(
    "changes",
    [
        {"splits": None},
        {"splits": [{"name": "train"}]},
        {"splits": [{"name": "train", "shardLengths": ["x"]}]},
        {"splits": [{"name": "train", "shardLengths": [-1]}]},
        {"splits": [{"name": "train", "shardLengths": [math.inf]}]},
        {"splits": [{"name": "train", "shardLengths": [4.5]}]},
        {"splits": [{"name": "train", "shardLengths": [True]}]},
        {"splits": [{"name": "train", "shardLengths": [1 << 62, 1 << 62]}]},
        {"splits": [{"name": "train", "shardLengths": "123"}]},
        {"splits": [{"name": "train", "shardLengths": [4], "numBytes": math.inf}]},
        {"splits": [{"name": 5, "shardLengths": [4], "filepathTemplate": "x"}]},
        {"splits": [{"name": "t", "shardLengths": [4]}, {"name": "t", "shardLengths": [3]}]},
        {"splits": [{"name": "t", "shardLengths": [4, 4], "filepathTemplate": "x"}]},
        {"splits": [{"name": "t", "shardLengths": [4], "filepathTemplate": "../x"}]},
        {"splits": [{"name": "t", "shardLengths": [4], "filepathTemplate": "/etc/x"}]},
        {"splits": [{"name": "t", "shardLengths": [4], "filepathTemplate": "x\0"}]},
        {"splits": [{"name": "t", "shardLengths": [4], "filepathTemplate": "x\ud800"}]},
        {"name": "../../x"},
        {"version": [1]},
        {"configName": {}},
        {"splits": [{"name": "t", "shardLengths": [1], "filepathTemplate": "{WHAT}"}]},
    ],
    ids=str,
)
def test_other_documents_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedIndex, match=r"not a dataset_info\.json with splits"):
        info(**changes)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedIndex, match="not a JSON object"):
        FolderInfo.parse(data, URL)
