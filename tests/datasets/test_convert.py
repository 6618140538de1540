from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.datasets.convert import Conversion, Destination, Shuffle, _finish, convert
from streamrec.datasets.external_shuffle import LEAST_MEMORY
from streamrec.datasets.reshard import Resharding, reshard
from streamrec.datasets.shard_source import ShardSource
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, DataError
from streamrec.measure.shuffling import mixing_of
from streamrec.plan.order.shard_names import Splits, Task
from streamrec.sources.generator import open_generator
from streamrec.sources.picture_folder import PictureFolder, open_pictures
from streamrec.sources.reading import Reader, read_source
from tests.by_day import at_night
from tests.datasets.datasets import contents, manifest, names, records
from tests.sources.folders import CLASSES, picture_folder
from tests.sources.tables import NAMES, ROWS, TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.datasets.convert import Outcome
    from streamrec.sources.reading import ReadBlock


def conversion(into: Path, task: Task = Task(0, 1)) -> Conversion:
    return Conversion(
        str(TABLE),
        Destination(f"{into}/", task, shards=4),
        options={"key": "seconds"},
        splits=Splits.parse("train=0.5,test=0.5"),
        shuffle=Shuffle(1),
        workers=1,
    )


def test_it_is_run(tmp_path: Path) -> None:
    described = conversion(tmp_path)
    source = described.open()
    assert described.run(source, dry_run=True).splits[0].bytes
    assert names(tmp_path) == []
    outcome = described.run(source)
    assert sum(split.records for split in outcome.splits) == len(ROWS)
    assert len(records(tmp_path, "train")) == 2


def test_tasks_in_other_processes(tmp_path: Path) -> None:
    """A description that was pickled gives the same bytes as the task's own."""
    for name in "ab":
        (tmp_path / name).mkdir()
    for number in range(2):
        task = conversion(tmp_path / "a", Task(number, 2))
        expected = task.run(task.open())
        sent = pickle.loads(pickle.dumps(conversion(tmp_path / "b")))
        found = pickle.loads(pickle.dumps(sent.run_task(number, 2)))
        assert [s.records for s in found.splits] == [s.records for s in expected.splits]
    for name in "ab":
        for split in ("train", "test"):
            sr.merge_index(tmp_path / name / f"{split}.tfrecord")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_tasks_that_read_files_of_their_own_keep_the_order(tmp_path: Path) -> None:
    source = tmp_path / "tables"
    source.mkdir()
    for number, row in enumerate(ROWS[:7]):
        (source / f"{number}.csv").write_text(f"{','.join(NAMES)}\n{','.join(row)}\n")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for into, tasks in ((whole, 1), (parts, 3)):
        into.mkdir()
        where = Destination(f"{into}/data.tfrecord", Task(0, 1), shard_bytes=1000)
        for number in range(tasks):
            Conversion(str(source), where, workers=1).run_task(number, tasks)
        if tasks > 1:
            sr.merge_index(into / "data.tfrecord")
    found, expected = (list(chain(*records(place, "data"))) for place in (parts, whole))
    assert found == expected


def test_no_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, here = Destination("out/", Task(0, 1), shards=1), f"{tmp_path}/"
    for source, expected in [
        ("x-{00..11}.csv", f"{here}x-{{00..11}}.csv"),
        ("s3://bucket/x.csv", "s3://bucket/x.csv"),
        ("zip://x.csv::a.zip", f"zip://x.csv::{here}a.zip"),
        ("zip://x.csv::s3://bucket/a.zip", "zip://x.csv::s3://bucket/a.zip"),
        ("package.module:rows", "package.module:rows"),
    ]:
        found = Conversion(source, place).anywhere()
        assert (found.source, found.destination.template) == (expected, f"{here}out/")
    options = {"metadata_files": ("list",), "vocab_file": "v", "dupe_factor": 1}
    assert Conversion("", place, "bert", options).anywhere().options == {
        "metadata_files": [f"{here}list"],
        "input_files_prefix": here,
        "vocab_file": f"{here}v",
        "dupe_factor": 1,
    }
    with pytest.raises(ConfigError, match="there is no such file or directory"):
        Conversion("none", place).anywhere()


def test_a_source_in_a_store(tmp_path: Path) -> None:
    with DevStore() as store:
        store.put("tables/x.csv", TABLE.read_bytes())
        place = Destination(f"{tmp_path}/", Task(0, 1), shards=1)
        described = Conversion("s3://tables/x.csv", place, storage_options=store.storage_options)
        sent = pickle.loads(pickle.dumps(described.anywhere()))
        assert sent.run_task(0, 1).splits[0].records == len(ROWS)
    assert "secret" not in repr(described)


def test_a_task_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task is"):
        conversion(tmp_path).run_task(2, 2)


def test_a_small_table_is_read_by_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.datasets.convert.usable_cores", lambda: 4)
    table = tmp_path / "x.csv"
    table.write_text("a\n1\n")
    described = Conversion(str(table), Destination(f"{tmp_path}/", Task(0, 1)))
    source = described.open()
    assert described.workers_for(source) == 1
    assert replace(described, workers=3).workers_for(source) == 3
    monkeypatch.setattr("streamrec.datasets.convert.SMALL", source.total)
    assert described.workers_for(source) == 4
    half = replace(described, destination=Destination(f"{tmp_path}/", Task(0, 2)))
    assert half.workers_for(source) == 1
    assert replace(described, kind="bert").workers_for(source) == 4


pytestmark = pytest.mark.both_kernels

SPLITS = Splits.parse("train=0.5,test=0.5")
FILENAME = {"image/filename": sr.FixedLenFeature((), "bytes")}


def run(root: Path, into: str, splits: Splits | None = None, **options: Any) -> Outcome:
    """Convert a folder of pictures, in pieces of one picture."""
    source = open_pictures(str(root))
    workers, dry_run = options.pop("workers", 1), options.pop("dry_run", False)
    skips, shuffle = options.pop("skips", False), options.pop("shuffle", None)
    settings: dict[str, Any] = {"task": Task(0, 1), "shards": 2} | options
    where = Destination(into, **settings)
    reader = Reader(source, splits, skips=skips)
    blocks = read_source(source, reader, where.task, workers)
    return convert(source, blocks, where, splits, shuffle=shuffle, dry_run=dry_run)


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("streamrec.sources.picture_folder.MOST_FILES", 1)
    (tmp_path / "out").mkdir()
    return picture_folder(tmp_path / "pictures")


@pytest.mark.parametrize(
    ("amount", "told"),
    [(None, [(10, 40), (30, 40), (40, 40)]), (1000, [(250, 1000), (750, 1000), (1000, 1000)])],
)
def test_what_was_shuffled_is_told_in_parts_of_the_source(
    amount: int | None, told: list[tuple[int, int]]
) -> None:
    class Target:
        def __init__(self, *parts: int) -> None:
            self.nbytes = sum(parts)
            self.finish = parts.__iter__

    heard: list[Any] = []
    targets: Any = [Target(10, 20), Target(), Target(10)]
    _finish(targets, amount, lambda *said: heard.append(said))
    assert heard == [("writing", *each) for each in told]


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


def test_a_dry_run_counts_a_split_without_records(pictures: Path, tmp_path: Path) -> None:
    splits = Splits.parse("train=0.999,test=0.001")
    train, test = run(pictures, f"{tmp_path}/out/x.tfrecord", splits, dry_run=True).splits
    assert train.bytes
    assert (test.records, test.bytes) == (0, 0)


def test_a_run_that_fails_leaves_nothing(pictures: Path, tmp_path: Path) -> None:
    (pictures / "surface" / "8.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"surface/8\.jpg"):
        run(pictures, f"{tmp_path}/new/deeper/", SPLITS)
    assert not (tmp_path / "new").exists()
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


@pytest.mark.parametrize("splits", [None, SPLITS])
@pytest.mark.parametrize("stop", range(2, 9, 3))
def test_whole_shards_are_not_read_again(
    pictures: Path, tmp_path: Path, splits: Splits | None, stop: int
) -> None:
    (pictures / "animals" / "0.jpg").write_bytes(b"no picture")
    place = Destination(f"{tmp_path}/out/x", Task(0, 1), shard_bytes=50_000)
    described = Conversion(str(pictures), place, splits=splits, skips=True, workers=1)
    read: list[int] = []

    def progress(_: str, done: int, __: int | None) -> None:
        read.append(done)
        if len(read) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        described.run(described.open(), progress=progress)
    first = len(read)
    outcome = described.run(described.open(), progress=progress)
    assert read[-1] == described.open().total
    if splits is None:  # a shard is known as complete when the next one is
        assert len(read) - first <= 8 - first + 2
    assert (outcome.skipped, sum(split.records for split in outcome.splits)) == (1, 7)
    (tmp_path / "whole").mkdir()
    whole = replace(described, destination=replace(place, template=f"{tmp_path}/whole/x"))
    whole.run(whole.open())
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_the_total_is_summed_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[PictureFolder] = []

    def total(source: PictureFolder) -> int:
        asked.append(source)
        return 8

    monkeypatch.setattr(PictureFolder, "total", property(total))
    run(pictures, f"{tmp_path}/out/x")
    assert len(asked) == 1


@pytest.mark.parametrize("splits", [None, SPLITS])
@pytest.mark.parametrize("how", [{"shards": 2}, {"shards": None, "shard_bytes": 200_000}])
def test_what_is_complete_is_not_read(
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
    splits: Splits | None,
) -> None:
    run(pictures, f"{tmp_path}/out/x", splits, **how)
    before = contents(tmp_path / "out")
    monkeypatch.setattr("streamrec.sources.picture_folder.PictureFolder.read", None)
    outcome = run(pictures, f"{tmp_path}/out/x", splits, **how)
    assert all(split.was_complete for split in outcome.splits)
    assert sum(split.records for split in outcome.splits) == 8
    assert contents(tmp_path / "out") == before
    (pictures / "space" / "1.jpg").touch()
    with pytest.raises(ConfigError, match=r"\(its source differs in digest\); choose another"):
        run(pictures, f"{tmp_path}/out/x", splits, **how)


@pytest.mark.parametrize("other", ["train=0.6,test=0.4", None])
def test_other_splits_or_orders_are_another_dataset(
    pictures: Path, tmp_path: Path, other: str | None
) -> None:
    how: dict[str, Any] = {"shards": None, "shard_bytes": 200_000}
    run(pictures, f"{tmp_path}/out/", SPLITS, **how)
    splits = SPLITS if other is None else Splits.parse(other)
    shuffle = Shuffle() if other is None else None
    words = "splits" if other else "shuffle"
    with pytest.raises(ConfigError, match=rf"\(its source differs in {words}\)"):
        run(pictures, f"{tmp_path}/out/", splits, shuffle=shuffle, **how)


def test_other_splits_than_of_what_is_unfinished(pictures: Path, tmp_path: Path) -> None:
    splits, others = map(Splits.parse, ["train=0.9,test=0.1", "train=0.8,test=0.2"])
    place = Destination(f"{tmp_path}/out/", Task(0, 1), shard_bytes=50_000)
    described = Conversion(str(pictures), place, splits=splits, workers=1)

    def stop(_: str, done: int, total: int | None) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        described.run(described.open(), progress=stop)
    assert any("part" in name for name in names(tmp_path / "out"))
    other = replace(described, splits=others)
    with pytest.raises(ConfigError, match=r"an unfinished .*\(its source differs in splits\)"):
        other.run(other.open())


def numbered() -> Iterator[bytes]:
    yield from (b"%05d" % number for number in range(5000))


def written_numbers(into: Path, **options: Any) -> list[list[bytes]]:
    """Write the numbers, and return those of each shard."""
    into.mkdir(exist_ok=True)
    source = open_generator("x:numbered", function=numbered, source_version="1")
    splits, shuffle = options.pop("splits", None), options.pop("shuffle", Shuffle())
    where = Destination(f"{into}/x", **{"task": Task(0, 1), "shard_bytes": 21_000, **options})
    blocks = read_source(source, Reader(source, splits, skips=False), where.task, 1)
    convert(source, blocks, where, splits, shuffle=shuffle)
    return records(into)


@pytest.mark.parametrize("splits", [None, SPLITS])
def test_a_shuffle_is_that_of_reshard(tmp_path: Path, splits: Splits | None) -> None:
    written_numbers(tmp_path / "a", shuffle=None, splits=splits)
    written_numbers(tmp_path / "b", shuffle=Shuffle(7, 2 * LEAST_MEMORY), splits=splits)
    (tmp_path / "c").mkdir()
    for name in ["x"] if splits is None else ["x-train", "x-test"]:
        plan = Resharding(f"{tmp_path}/c/{name}", shard_bytes=21_000, shuffle=7)
        reshard(ShardSource.find(f"{tmp_path}/a/{name}-*"), plan)
        assert records(tmp_path / "b", name) == records(tmp_path / "c", name)


def test_a_shuffle_is_the_same_for_any_number_of_workers(pictures: Path, tmp_path: Path) -> None:
    for workers in (1, 4):
        (tmp_path / str(workers)).mkdir()
        run(pictures, f"{tmp_path}/{workers}/", SPLITS, workers=workers, shuffle=Shuffle(3))
    assert contents(tmp_path / "1") == contents(tmp_path / "4")


@pytest.mark.parametrize("tasks", [at_night(1), 4])
def test_sorted_records_come_mixed(
    tmp_path: Path, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks shuffle their own parts, which have some of each class, since they take turns."""
    monkeypatch.setattr("streamrec.sources.generator.PIECE", 16)
    for number in range(tasks):
        written_numbers(tmp_path / "x", task=Task(number, tasks))
    if tasks > 1:
        sr.merge_index(tmp_path / "x" / "x")
    order = np.array([int(record) for shard in records(tmp_path / "x") for record in shard])
    assert sorted(order) == list(range(5000))
    assert mixing_of(order // 900, 250).chi_square == pytest.approx(1, abs=0.2)


def test_a_shuffle_with_too_little_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give at least 33,554,432, which is 16 MiB for each"):
        written_numbers(tmp_path / "x", splits=SPLITS, shuffle=Shuffle(memory=LEAST_MEMORY))
    assert names(tmp_path / "x") == []


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
