"""Datasets of Ray Data; run by test_ray.py, in a process of its own."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import ray
from ray.exceptions import RayTaskError, WorkerCrashedError

import streamrec as sr
from streamrec.adapters.ray import (
    TFRecordDatasink,
    convert_on_ray,
    read_tfrecords,
    run_tasks,
    write_tfrecords,
)
from streamrec.datasets.convert import Conversion, Destination
from streamrec.devstore import DevStore
from streamrec.plan.order.shard_names import Splits, Task
from tests.sources.texts import TEXT, vocabulary_file

if TYPE_CHECKING:
    from collections.abc import Iterator

# Ray warns of itself, and leaves sockets open.
pytestmark = pytest.mark.filterwarnings("default")

ROWS = 100
FEATURES: dict[str, Any] = {
    "id": sr.FixedLenFeature((), "int64"),
    "vector": sr.FixedLenFeature((2, 3), "float32"),
    "name": sr.FixedLenFeature((), bytes),
    "words": sr.RaggedFeature(bytes),
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Not that of another test, which Ray would find on this machine.
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    yield
    ray.shutdown()


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "vector": np.full((2, 3), number, np.float32),
        "name": f"row {number}",
        "words": ["w"] * (number % 3),
    }


def dataset(rows: int = ROWS, blocks: int = 5) -> Any:
    return ray.data.range(rows, override_num_blocks=blocks).map(lambda given: row(given["id"]))


def plain(given: dict[str, Any]) -> dict[str, Any]:
    """Return a row as Python's values."""
    found = {
        name: value.tolist() if hasattr(value, "tolist") else value for name, value in given.items()
    }
    found["name"] = found["name"] if isinstance(found["name"], bytes) else found["name"].encode()
    found["words"] = [w if isinstance(w, bytes) else w.encode() for w in found["words"]]
    return found


EXPECTED = [plain(row(number)) for number in range(ROWS)]


def rows_of(data: Any) -> list[dict[str, Any]]:
    return sorted((plain(found) for found in data.take_all()), key=lambda found: found["id"])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written")
    write_tfrecords(dataset(), directory / "x.tfrecord", shards=4, labels={"a": 0}, source="v1")
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class TestWrite:
    def test_shards_index_and_manifest(self, written: Path) -> None:
        assert names(written) == [
            *(f"x-0000{shard}-of-00004.tfrecord" for shard in range(4)),
            "x.streamrec-index",
            "x.streamrec-manifest.json",
        ]
        manifest = json.loads((written / "x.streamrec-manifest.json").read_text())
        assert (manifest["records"], manifest["tasks"]) == (ROWS, [ROWS // 4] * 4)
        assert manifest["settings"]["labels"] == {"a": 0}
        assert manifest["features"] == {
            "id": "int64", "name": "bytes", "vector": "float32", "words": "bytes",
        }  # fmt: skip

    def test_a_stream_reads_it(self, written: Path) -> None:
        with sr.open(
            written / "x-*", FEATURES, batch_size=10, index=True, engine="thread"
        ) as stream:
            found = [int(number) for batch in stream for number in batch["id"]]
        assert sorted(found) == list(range(ROWS))

    def test_by_size(self, tmp_path: Path) -> None:
        write_tfrecords(dataset(), tmp_path / "x", shard_bytes=2000)
        shards = sr.shards(tmp_path / "x-*")
        assert len(shards) > 2
        assert max(Path(shard).stat().st_size for shard in shards) <= 2000
        assert rows_of(read_tfrecords(tmp_path / "x-*", FEATURES)) == EXPECTED

    @pytest.mark.parametrize("size", [{"shards": 3}, {"shards": 1}, {"shard_bytes": 1000}])
    @pytest.mark.parametrize("rows", [0, 2])
    def test_fewer_rows_than_tasks(self, size: dict[str, Any], rows: int, tmp_path: Path) -> None:
        write_tfrecords(ray.data.range(rows), tmp_path / "x", tasks=size.get("shards", 3), **size)
        manifest = json.loads((tmp_path / "x.streamrec-manifest.json").read_text())
        assert manifest["records"] == rows
        assert [name for name in names(tmp_path) if "part" in name] == []

    def test_pandas(self, tmp_path: Path) -> None:
        pandas = pytest.importorskip("pandas")
        data = ray.data.from_pandas(pandas.DataFrame({"id": [1, 2], "name": ["a", None]}))
        write_tfrecords(data, tmp_path / "x", shards=1)
        features = {"name": sr.FixedLenFeature((), bytes, default_value=b"-")}
        found = read_tfrecords(tmp_path / "x-*", features)
        assert sorted(given["name"] for given in found.take_all()) == [b"-", b"a"]

    def test_serialized(self, written: Path, tmp_path: Path) -> None:
        raw = read_tfrecords(written / "x-*", None)
        write_tfrecords(raw, tmp_path / "y", shards=2, serialized="records", compression="gzip")
        assert rows_of(read_tfrecords(tmp_path / "y-*", FEATURES, compression="gzip")) == EXPECTED
        with pytest.raises(RayTaskError, match="no column 'record' of serialized"):
            write_tfrecords(raw, tmp_path / "z", shards=2, serialized="record")

    def test_a_dataset_that_is_there(self, written: Path) -> None:
        def never(_: Any) -> Any:
            raise AssertionError

        data = ray.data.range(9).map(never)
        with pytest.raises(sr.ConfigError, match="there is a dataset of this name"):
            write_tfrecords(data, written / "x.tfrecord", shards=4, source="v1")

    def test_a_dataset_that_appears_before_the_write_begins(self, tmp_path: Path) -> None:
        sink = TFRecordDatasink(tmp_path / "x", 1, shards=1)
        sink.check()
        with sr.ShardedWriter(tmp_path / "x", shards=1) as other:
            other.write({"id": 1})
        with pytest.raises(sr.ConfigError, match="there is a dataset of this name"):
            sink.on_write_start()

    def test_overwrite(self, tmp_path: Path) -> None:
        write_tfrecords(dataset(), tmp_path / "x", shards=4, source="v1")
        write_tfrecords(ray.data.range(7), tmp_path / "x", shards=2, source="v1", overwrite=True)
        assert len(sr.shards(tmp_path / "x-*")) == 2
        assert read_tfrecords(tmp_path / "x-*").count() == 7

    @pytest.mark.parametrize("source", [None, "v1"])
    def test_begun_again(self, source: str | None, tmp_path: Path) -> None:
        for task in (0, 2):  # as if the driver had died when these were done
            with sr.ShardedWriter(tmp_path / "x", shards=4, task=(task, 4), source=source) as left:
                left.write({"id": -1})
        if source is not None:
            with pytest.raises(sr.ConfigError, match="an unfinished dataset of this name"):
                write_tfrecords(dataset(), tmp_path / "x", shards=4, source=source)
        overwrite = source is not None
        write_tfrecords(dataset(), tmp_path / "x", shards=4, source=source, overwrite=overwrite)
        assert rows_of(read_tfrecords(tmp_path / "x-*", FEATURES)) == EXPECTED

    def test_a_row_that_cannot_be_written(self, tmp_path: Path) -> None:
        data = ray.data.range(9).map(lambda given: {"when": np.datetime64(given["id"], "s")})
        with pytest.raises(RayTaskError, match="feature when: the column is of Arrow's type"):
            write_tfrecords(data, tmp_path / "x", shards=2)
        assert names(tmp_path) == []

    def test_more_blocks_than_tasks(self, tmp_path: Path) -> None:
        with pytest.raises(RayTaskError, match="more blocks than the 2 tasks of the sink"):
            dataset().write_datasink(TFRecordDatasink(tmp_path / "x", 2, shards=2))


class TestRead:
    @pytest.mark.parametrize("blocks", [None, 1, 3, 9])
    @pytest.mark.parametrize("index", [False, True])
    def test_each_record_once(self, written: Path, index: bool, blocks: int | None) -> None:
        data = read_tfrecords(
            written / "x-*", FEATURES, index=index, override_num_blocks=blocks, batch_size=7
        )
        assert rows_of(data) == EXPECTED

    def test_the_index_divides_shards(self, written: Path) -> None:
        one = sr.shards(written / "x-*")
        data = read_tfrecords(one, FEATURES, index=str(written / "x.streamrec-index"))
        assert data.materialize().num_blocks() > len(one)

    def test_types(self, written: Path) -> None:
        batch = read_tfrecords(written / "x-*").take_batch(ROWS)
        assert (batch["vector"].shape, batch["vector"].dtype) == ((ROWS, 6), np.float32)
        assert batch["id"].dtype == np.int64

    def test_pictures_of_different_sizes(self, tmp_path: Path) -> None:
        pytest.importorskip("PIL")
        pictures = [np.full((size, 2, 3), size, np.uint8) for size in (1, 4)]
        with sr.TFRecordWriter(tmp_path / "x") as writer:
            writer.write_many({"image": sr.encode_png(picture)} for picture in pictures)
        found = read_tfrecords(tmp_path / "x", {"image": sr.Image(channels=3)}).take_all()
        assert [given["image"].shape for given in found] == [(1, 2, 3), (4, 2, 3)]

    @pytest.mark.parametrize("index", [False, True])
    def test_a_map_and_a_dtype(self, written: Path, index: bool) -> None:
        def double(columns: Any) -> Any:
            return {"twice": columns["id"] * 2}

        data = read_tfrecords(
            written / "x-*", FEATURES, index=index, map=double, dtypes={"id": "int32"}
        )
        twice = data.take_batch(ROWS)["twice"]
        assert (twice.dtype, sorted(twice)) == (np.int32, list(range(0, 2 * ROWS, 2)))

    def test_settings_are_checked_at_once(self, written: Path) -> None:
        with pytest.raises(
            sr.ConfigError, match="rank, shuffle cannot be set for a dataset of Ray"
        ):
            read_tfrecords(written / "x-*", shuffle=True, rank=1)
        with pytest.raises(sr.ConfigError, match="balance cannot be set for a dataset of Ray"):
            read_tfrecords(written / "x-*", index=True, balance="id")
        with pytest.raises(sr.ConfigError, match="memory_budgt"):
            read_tfrecords(written / "x-*", memory_budgt="1GB")

    def test_damage_is_an_error(self, written: Path, tmp_path: Path) -> None:
        data = bytearray((written / "x-00000-of-00004.tfrecord").read_bytes())
        data[100] ^= 1
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(RayTaskError, match="CorruptRecord"):
            read_tfrecords(tmp_path / "x", FEATURES).take_all()


class TestTasks:
    def test_results_in_order(self) -> None:
        done: list[int] = []
        found = run_tasks(lambda task, tasks: (task, tasks), 5, on_done=done.append)
        assert found == [(task, 5) for task in range(5)]
        assert sorted(done) == list(range(5))

    def test_the_error_of_a_task(self) -> None:
        def fail(task: int, tasks: int) -> None:
            if task == 1:
                raise sr.ConfigError("no such thing; choose another")

        with pytest.raises(sr.ConfigError, match="no such thing; choose another"):
            run_tasks(fail, 3)

    def test_a_task_that_always_dies(self) -> None:
        with pytest.raises(WorkerCrashedError):
            run_tasks(lambda task, tasks: os._exit(1), 1, max_retries=1)

    def test_a_task_that_dies_is_run_again(self, tmp_path: Path) -> None:
        template, died = tmp_path / "x.tfrecord", tmp_path / "died"

        def write(task: int, tasks: int) -> int:
            with sr.ShardedWriter(template, shards=tasks, task=(task, tasks)) as writer:
                for number in range(task, ROWS, tasks):
                    writer.write({"id": number})
                    if number == ROWS - 1 and not died.exists():
                        died.touch()
                        os._exit(1)
                return writer.records

        assert run_tasks(write, 3) == [34, 33, 33]
        sr.merge_index(template)
        features = {"id": sr.FixedLenFeature((), "int64")}
        found = read_tfrecords(tmp_path / "x-*", features).take_all()
        assert sorted(given["id"] for given in found) == list(range(ROWS))


class TestConversion:
    """``streamrec write --engine ray``; ray_command.py has the command itself."""

    @pytest.mark.parametrize(("shards", "tasks"), [(3, 2), (1, 1)])
    def test_as_many_tasks_as_cpus(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, tasks: int
    ) -> None:
        monkeypatch.chdir(tmp_path)  # the tasks run elsewhere
        Path("x.csv").write_text("a,b\n" + "1,x\n" * 100)
        described = Conversion("x.csv", Destination("x.tfrecord", Task(0, 1), shards=shards))
        told: list[Any] = []
        outcome = convert_on_ray(described, None, lambda *done: told.append(done))
        assert [split.records for split in outcome.splits] == [100]
        assert told[-1] == ("writing", tasks, tasks)
        manifest = json.loads(Path("x.streamrec-manifest.json").read_text())
        assert manifest["settings"]["tasks"] == tasks

    def test_a_source_in_a_store(self, tmp_path: Path) -> None:
        with DevStore() as store:
            store.put("tables/x.csv", b"a,b\n" + b"1,x\n" * 100)
            place = Destination(f"{tmp_path}/x", Task(0, 1), shards=2)
            described = Conversion(
                "s3://tables/*.csv", place, storage_options=store.storage_options
            )
            assert convert_on_ray(described, 2).splits[0].records == 100

    def test_text(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("tokenizers", reason="tokenizers is not installed")
        monkeypatch.chdir(tmp_path)
        Path("text.txt").write_text(TEXT)
        Path("list").write_text("text.txt\n")
        splits = Splits.parse("train=0.5,test=0.5")
        options = {"vocab_file": os.path.relpath(vocabulary_file(tmp_path))}
        for name, source, more in (("a", "text.txt", {}), ("b", "", {"metadata_files": ["list"]})):
            Path(name).mkdir()
            place = Destination(f"{name}/", Task(0, 1), shards=2)
            described = Conversion(source, place, "bert", options | more, splits)
            convert_on_ray(described, 2)
        for shard in Path("a").glob("*.tfrecord"):
            assert shard.read_bytes() == Path("b", shard.name).read_bytes()
        assert len(sr.shards("a/*.tfrecord")) == 4

    def test_what_is_wrong_in_a_source(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("a,b\n" + "1,x\n" * 100 + "1\n")
        place = Destination(f"{tmp_path}/x", Task(0, 1), shards=2)
        described = Conversion(str(tmp_path / "x.csv"), place)
        with pytest.raises(sr.DataError, match=r"x\.csv: line 102: the row has 1 values"):
            convert_on_ray(described, None)
        outcome = convert_on_ray(replace(described, skips=True), 2)
        assert (outcome.skipped, outcome.splits[0].records) == (1, 100)
        assert len(outcome.refusals) == 1

    def test_a_task_that_always_dies(self, tmp_path: Path) -> None:
        described = Conversion("os:abort", Destination(f"{tmp_path}/x", Task(0, 1), shards=1))
        with pytest.raises(sr.StreamrecError, match="a task on Ray did not end"):
            convert_on_ray(described, 1, max_retries=0)
