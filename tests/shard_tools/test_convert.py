from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError, DataError
from streamrec.plan.shard_names import Task
from streamrec.plan.splits import Splits
from streamrec.shard_tools.convert import Destination, convert
from streamrec.shard_tools.sources.picture_folder import open_pictures
from streamrec.shard_tools.sources.reading import Reader, read_source
from tests.shard_tools.datasets import contents, manifest, names, records
from tests.shard_tools.sources.folders import CLASSES, picture_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.shard_tools.convert import Outcome
    from streamrec.shard_tools.sources.reading import ReadBlock

pytestmark = pytest.mark.both_kernels

SPLITS = Splits.parse("train=0.5,test=0.5")
FILENAME = {"image/filename": sr.FixedLenFeature((), "bytes")}


def run(root: Path, into: str, splits: Splits | None = None, **options: Any) -> Outcome:
    """Convert a folder of pictures, in pieces of one picture."""
    source = open_pictures(str(root))
    workers, dry_run = options.pop("workers", 1), options.pop("dry_run", False)
    skips = options.pop("skips", False)
    settings: dict[str, Any] = {"task": Task(0, 1), "shards": 2} | options
    where = Destination(into, **settings)
    reader = Reader(source, splits, skips=skips)
    blocks = read_source(source, reader, where.task, workers)
    return convert(source, blocks, where, splits, dry_run=dry_run)


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("streamrec.shard_tools.sources.picture_folder.MOST_FILES", 1)
    (tmp_path / "out").mkdir()
    return picture_folder(tmp_path / "pictures")


def test_the_same_bytes_by_any_number_of_workers(pictures: Path, tmp_path: Path) -> None:
    for workers in (1, 4):
        (tmp_path / str(workers)).mkdir()
        run(pictures, f"{tmp_path}/{workers}/", SPLITS, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "4")


def test_splits(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = run(pictures, f"{out}/x.tfrecord", SPLITS)
    found = [records(out, f"x-{name}") for name in SPLITS.names]
    assert [sum(map(len, shards)) for shards in found] == [s.records for s in outcome.splits]
    assert sum(split.records for split in outcome.splits) == 8
    for number, shards in enumerate(found):
        keys = sr.parse_example([r for shard in shards for r in shard], FILENAME)["image/filename"]
        assert set(SPLITS.of(keys.to_list()).tolist()) <= {number}
    assert manifest(out, "x-train").settings.labels == {name: n for n, name in enumerate(CLASSES)}
    assert manifest(out, "x-test").features["image/encoded"] == "bytes"


def test_a_dry_run_counts_and_writes_nothing(pictures: Path, tmp_path: Path) -> None:
    dry = run(pictures, f"{tmp_path}/out/x.tfrecord", dry_run=True)
    assert names(tmp_path / "out") == []
    run(pictures, f"{tmp_path}/out/x.tfrecord")
    written = manifest(tmp_path / "out")
    assert (dry.splits[0].records, dry.splits[0].bytes) == (written.records, written.bytes)


def test_a_run_that_fails_leaves_nothing(pictures: Path, tmp_path: Path) -> None:
    (pictures / "surface" / "8.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"surface/8\.jpg"):
        run(pictures, f"{tmp_path}/out/", SPLITS)
    assert names(tmp_path / "out") == []
    outcome = run(pictures, f"{tmp_path}/out/", SPLITS, skips=True)
    assert (outcome.skipped, len(outcome.refusals)) == (1, 1)
    assert sum(split.records for split in outcome.splits) == 8


def test_a_run_that_was_cut_off_goes_on(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"shards": None, "shard_bytes": 200_000}
    source = open_pictures(str(pictures))
    where = Destination(f"{out}/x.tfrecord", Task(0, 1), **options)
    reading = read_source(source, Reader(source, None, skips=False), where.task, 1)

    def cut_off() -> Iterator[ReadBlock]:
        yield from islice(reading, 6)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, cut_off(), where, None)
    kept = {path.name: path.stat().st_mtime_ns for path in out.iterdir() if path.stat().st_size}
    assert any("task-" in name for name in kept)
    assert run(pictures, where.template, **options).splits[0].records == 8
    (tmp_path / "whole").mkdir()
    run(pictures, f"{tmp_path}/whole/x.tfrecord", **options)
    assert contents(out) == contents(tmp_path / "whole")


def test_tasks_complete_one_dataset(pictures: Path, tmp_path: Path) -> None:
    for number in range(2):
        run(pictures, f"{tmp_path}/out/x.tfrecord", task=Task(number, 2))
    sr.merge_index(f"{tmp_path}/out/x.tfrecord")
    assert [len(shard) for shard in records(tmp_path / "out")] == [4, 4]


def test_a_dataset_that_exists_is_refused(pictures: Path, tmp_path: Path) -> None:
    run(pictures, f"{tmp_path}/out/test.tfrecord")
    with pytest.raises(ConfigError, match="there is a dataset of this name"):
        run(pictures, f"{tmp_path}/out/", SPLITS)
    assert len(names(tmp_path / "out")) == 4
    run(pictures, f"{tmp_path}/out/", SPLITS, overwrite=True)
