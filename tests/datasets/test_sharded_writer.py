from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any, cast

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.datasets.verify import check, index_of
from streamrec.errors import ConfigError, StoreError, WrongFeatureType
from streamrec.values.columns import BytesColumn
from tests.datasets.datasets import contents, manifest, names, records

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.both_kernels

ID = {"id": sr.FixedLenFeature((), "int64")}


def numbers(column: list[bytes]) -> list[int]:
    return [int(n) for n in sr.parse_example(column, ID)["id"]]


class TestCounted:
    def test_records_go_round(self, tmp_path: Path) -> None:
        with ShardedWriter(tmp_path / "x.tfrecord", shards=3) as writer:
            writer.write({"id": 0})
            writer.write(sr.encode_example({"id": 1}))
            writer.write_many({"id": np.arange(2, 9)})
            writer.write_many([{"id": 9}])
            writer.write_many(sr.encode_examples({"id": [10]}))
            assert writer.records == 11
            assert "open: 11 records" in repr(writer)
        found = [numbers(shard) for shard in records(tmp_path)]
        assert found == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
        assert names(tmp_path) == [
            *(f"x-0000{n}-of-00003.tfrecord" for n in range(3)),
            "x.streamrec-index",
            "x.streamrec-manifest.json",
        ]

    def test_a_stream_reads_it_by_record(self, tmp_path: Path) -> None:
        with ShardedWriter(tmp_path / "x-*.tfrecord", shards=2) as writer:
            writer.write_many({"id": np.arange(100)})
        source = str(tmp_path / "x-*.tfrecord")
        with sr.open(
            source, ID, batch_size=10, index=True, shuffle=True, engine="thread"
        ) as stream:
            assert len(stream) == 10
            assert sorted(int(n) for batch in stream for n in batch["id"]) == list(range(100))

    def test_no_records(self, tmp_path: Path) -> None:
        ShardedWriter(tmp_path / "x", shards=2).close()
        assert records(tmp_path) == [[], []]

    @given(
        blocks=st.lists(st.lists(st.binary(max_size=9), max_size=9), max_size=5),
        shards=st.integers(1, 4),
        tasks=st.integers(1, 3),
    )
    def test_tasks(
        self,
        blocks: list[list[bytes]],
        shards: int,
        tasks: int,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        directory, shards = tmp_path_factory.mktemp("d"), max(shards, tasks)
        for task in reversed(range(tasks)):
            with ShardedWriter(directory / "x", shards=shards, task=(task, tasks)) as writer:
                for block in blocks:
                    writer.write_many(BytesColumn.of(block) if len(block) % 2 else block)
        if tasks > 1:
            sr.merge_index(directory / "x")
        every = [record for block in blocks for record in block]
        expected = []
        for task in range(tasks):
            own = shards * (task + 1) // tasks - shards * task // tasks
            expected += [every[n::own] for n in range(own)]
        assert records(directory) == expected
        assert manifest(directory).records == tasks * len(every)


class TestBySize:
    def test_shards_in_sequence(self, tmp_path: Path) -> None:
        with ShardedWriter(tmp_path / "x.tfrecord", shard_bytes=100) as writer:
            writer.write(b"a" * 84)
            writer.write_many(BytesColumn.of([b"b" * 34, b"c" * 34, b"d", b"e" * 200, b"f"]))
        shards = [b"".join(shard) for shard in records(tmp_path)]
        assert shards == [b"a" * 84, b"b" * 34 + b"c" * 34, b"d", b"e" * 200, b"f"]
        assert names(tmp_path)[0] == "x-00000-of-00005.tfrecord"

    @given(
        blocks=st.lists(st.lists(st.binary(max_size=40), max_size=6), max_size=5),
        tasks=st.integers(1, 3),
    )
    def test_shards_do_not_depend_on_blocks(
        self,
        blocks: list[list[bytes]],
        tasks: int,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        directory = tmp_path_factory.mktemp("d")
        every = [record for block in blocks for record in block]
        for task in range(tasks):
            with ShardedWriter(directory / "x", shard_bytes=64, task=(task, tasks)) as writer:
                for block in blocks:
                    writer.write_many(BytesColumn.of(block) if len(block) % 2 else block)
            with ShardedWriter(directory / "y", shard_bytes=64, task=(task, tasks)) as writer:
                writer.write_many(BytesColumn.of(every))
        if tasks > 1:
            sr.merge_index(directory / "x")
            sr.merge_index(directory / "y")
        assert [r for shard in records(directory) for r in shard] == every * tasks
        assert records(directory) == records(directory, "y")
        for shard in records(directory):
            assert len(shard) < 2 or sum(map(len, shard)) + 16 * len(shard) <= 64

    def test_no_records_are_one_shard(self, tmp_path: Path) -> None:
        for task in range(2):
            ShardedWriter(tmp_path / "x", shard_bytes="1MB", task=(task, 2)).close()
        sr.merge_index(tmp_path / "x")
        assert records(tmp_path) == [[]]

    def test_in_a_store(self, tmp_path: Path) -> None:
        with ShardedWriter(f"memory://{tmp_path.name}/x.tfrecord", shard_bytes=64) as writer:
            writer.write_many({"id": np.arange(5)})
        directory = f"/{tmp_path.name}/"
        listed = fsspec.filesystem("memory").ls(directory, detail=False)
        assert sorted(name.removeprefix(directory) for name in listed) == [
            *(f"x-0000{n}-of-00003.tfrecord" for n in range(3)),
            "x.streamrec-index",
            "x.streamrec-manifest.json",
        ]
        source = f"memory:/{directory}x-*.tfrecord"
        with sr.open(source, ID, batch_size=5, index=True, engine="thread") as stream:
            assert sorted(next(iter(stream))["id"].tolist()) == list(range(5))


class TestCompressed:
    def test_no_index(self, tmp_path: Path) -> None:
        with ShardedWriter(tmp_path / "x.gz", shards=1, compression="gzip") as writer:
            writer.write(b"x" * 1000)
        assert names(tmp_path) == ["x-00000-of-00001.gz", "x.streamrec-manifest.json"]
        data = (tmp_path / "x-00000-of-00001.gz").read_bytes()
        assert len(gzip.decompress(data)) == 1016
        assert manifest(tmp_path).bytes == len(data)


class TestTypes:
    def test_they_stay_equal(self, tmp_path: Path) -> None:
        with ShardedWriter(tmp_path / "x", shards=2) as writer:
            writer.write({"a": 1, "b": []})
            with pytest.raises(WrongFeatureType, match=r"record 1, feature a: .* is of type bytes"):
                writer.write({"a": "x"})
            with pytest.raises(
                WrongFeatureType, match=r"record 1, feature a: .*int64 since record 0"
            ):
                writer.write_many({"a": np.ones(3)})
            with pytest.raises(
                WrongFeatureType, match=r"record 3, feature b: .* cannot be encoded"
            ):
                writer.write_many({"a": [1, 2, 3], "b": ["x", 1, None]})
            writer.write({"a": 2, "b": 2.5})
            with pytest.raises(WrongFeatureType, match=r"record 3, .*float32 since record 1"):
                writer.write_many({"a": [1, 2], "b": [1.5, "x"]})
        assert manifest(tmp_path).features == {"a": "int64", "b": "float32"}
        assert manifest(tmp_path).records == 2

    def test_declared(self, tmp_path: Path) -> None:
        with ShardedWriter(tmp_path / "x", shards=1, features=ID) as writer:
            writer.write({"id": 1})
            with pytest.raises(WrongFeatureType, match="features does not name it"):
                writer.write({"id": 1, "other": 1})

    def test_tasks_with_other_types_are_not_merged(self, tmp_path: Path) -> None:
        for task, value in enumerate([1, "x"]):
            with ShardedWriter(tmp_path / "x", shards=2, task=(task, 2)) as writer:
                writer.write({"a": value})
        with pytest.raises(
            ConfigError, match="feature a: it is int64 in the shards of task 0, but bytes in those"
        ):
            sr.merge_index(tmp_path / "x")


class TestManifest:
    def test_facts(self, tmp_path: Path) -> None:
        with ShardedWriter(
            tmp_path / "x", shards=2, labels={"cat": 0, "dog": 1}, source={"name": "pets"}
        ) as writer:
            writer.write_many({"id": np.arange(3)})
        found = manifest(tmp_path)
        assert (found.records, found.features, found.tasks) == (3, {"id": "int64"}, [3])
        assert found.settings.labels == {"cat": 0, "dog": 1}
        assert found.settings.source == {"name": "pets"}
        assert [(shard.name, shard.records) for shard in found.shards] == [
            ("x-00000-of-00002", 2),
            ("x-00001-of-00002", 1),
        ]
        assert found.bytes == sum(path.stat().st_size for path in tmp_path.glob("x-?????-of-?????"))


class TestAnotherDataset:
    def test_it_is_refused_or_replaced(self, tmp_path: Path) -> None:
        with ShardedWriter(tmp_path / "x", shards=3) as writer:
            writer.write(b"old")
        with pytest.raises(ConfigError, match="there is a dataset of this name"):
            ShardedWriter(tmp_path / "x", shards=2)
        with ShardedWriter(tmp_path / "x", shards=2, overwrite=True) as writer:
            writer.write(b"new")
            assert records(tmp_path) == [[b"old"], [], []]
        assert records(tmp_path) == [[b"new"], []]
        assert len(names(tmp_path)) == 4
        with ShardedWriter(tmp_path / "x", shards=1, compression="zlib", overwrite=True) as writer:
            writer.write(b"packed")
        assert names(tmp_path) == ["x-00000-of-00001", "x.streamrec-manifest.json"]

    def test_shards_without_a_manifest(self, tmp_path: Path) -> None:
        (tmp_path / "x-00000-of-00003").touch()
        with pytest.raises(ConfigError, match="x-00000-of-00003: there is a dataset"):
            ShardedWriter(tmp_path / "x", shard_bytes=100)

    def test_an_unfinished_one(self, tmp_path: Path) -> None:
        for task in range(2):
            with ShardedWriter(tmp_path / "x", shard_bytes=50, task=(task, 2)) as writer:
                writer.write_many([b"1" * 30, b"2" * 30])
        with pytest.raises(ConfigError, match="there is an unfinished dataset"):
            ShardedWriter(tmp_path / "x", shards=3, task=(0, 3))
        with ShardedWriter(tmp_path / "x", shards=1, overwrite=True) as writer:
            writer.write(b"x")
        assert names(tmp_path) == [
            "x-00000-of-00001", "x-00000-of-00001.streamrec-index", "x.streamrec-manifest.json",
        ]  # fmt: skip

    def test_that_of_the_same_source_is_complete(self, tmp_path: Path) -> None:
        for expected in (0, 3):
            with ShardedWriter(tmp_path / "x", shards=2, source="v1") as writer:
                assert writer._to_skip == expected
                writer.write_many([b"a", b"b", b"c"])
            assert records(tmp_path) == [[b"a", b"c"], [b"b"]]
        with pytest.raises(ConfigError, match="the records end 1 before those of the shards"):
            with ShardedWriter(tmp_path / "x", shards=2, source="v1") as writer:
                writer.write_many([b"a", b"b"])

    @pytest.mark.parametrize("tasks", [1, 2])
    @pytest.mark.parametrize("how", [{"shards": 2}, {"shard_bytes": 40}])
    def test_a_task_that_is_complete_needs_no_records(
        self, tmp_path: Path, how: dict[str, Any], tasks: int
    ) -> None:
        before: dict[str, Any] | None = None
        for _ in range(2):
            with ShardedWriter(tmp_path / "x", source="v1", task=(0, tasks), **how) as writer:
                assert writer.is_complete == (before is not None)
                if not writer.is_complete:
                    writer.write_many([b"a" * 20, b"b" * 20, b"c" * 20])
            assert (writer.is_complete, writer.records) == (True, 3)
            assert before in (None, contents(tmp_path))
            before = contents(tmp_path)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"shards": 3}, r"\(shards is 2 in that one, and 3 in this one\); choose another name"),
            ({"shards": 2, "source": {"name": "n", "version": 2}}, "source differs in version"),
            ({"shards": 2, "source": None}, r"\(it has another source\)"),
        ],
    )
    def test_what_is_different_is_told(
        self, tmp_path: Path, settings: dict[str, Any], words: str
    ) -> None:
        settings = {"source": {"name": "n", "version": 1}, **settings}
        ShardedWriter(tmp_path / "x", shards=2, source={"name": "n", "version": 1}).close()
        with pytest.raises(ConfigError, match=f"there is a dataset of this name .*{words}"):
            ShardedWriter(tmp_path / "x", **settings)
        ShardedWriter(tmp_path / "y", shards=2, task=(0, 2), source={"name": "n"}).close()
        with pytest.raises(
            ConfigError, match=r"unfinished .* \(tasks is 2 in that one, and 1 in this one\)"
        ):
            ShardedWriter(tmp_path / "y", shards=2, source={"name": "n"})

    def test_numbers_of_numpy(self, tmp_path: Path) -> None:
        ShardedWriter(tmp_path / "x", shards=cast("Any", np.int64(2))).close()
        assert len(list(tmp_path.glob("x-*-of-00002"))) == 2

    def test_without_a_source_nothing_tells_that_it_is_the_same(self, tmp_path: Path) -> None:
        ShardedWriter(tmp_path / "x", shards=2).close()
        with pytest.raises(ConfigError, match="of this name, and no source is given that tells"):
            ShardedWriter(tmp_path / "x", shards=2)

    @pytest.mark.parametrize("is_lost", [False, True])
    def test_a_shard_that_was_lost_is_not_complete(self, tmp_path: Path, is_lost: bool) -> None:
        def write(**how: Any) -> None:
            with ShardedWriter(tmp_path / "x", shards=2, source="v1", **how) as writer:
                writer.write_many([b"a", b"b", b"c"])

        write()
        shard = tmp_path / "x-00001-of-00002"
        shard.unlink() if is_lost else shard.write_bytes(b"")
        with pytest.raises(ConfigError, match="whose shard x-00001-of-00002 is missing or has an"):
            write()
        write(overwrite=True)
        assert records(tmp_path) == [[b"a", b"c"], [b"b"]]


class TestAgain:
    """A task that did not end is run again."""

    @pytest.mark.parametrize("source", [None, "v1"])
    @pytest.mark.parametrize("how", [{"shards": 2}, {"shard_bytes": 60}])
    def test_the_same_bytes(self, tmp_path: Path, how: dict[str, Any], source: str | None) -> None:
        every = [b"%030d" % n for n in range(9)]
        for place in "ab":
            (tmp_path / place).mkdir()
        with ShardedWriter(tmp_path / "a" / "x", **how, source=source) as writer:
            writer.write_many(every)
        with pytest.raises(RuntimeError):
            with ShardedWriter(tmp_path / "b" / "x", **how, source=source) as writer:
                writer.write_many(BytesColumn.of(every[:6]))
                raise RuntimeError
        assert not list((tmp_path / "b").glob("x-*"))
        with ShardedWriter(tmp_path / "b" / "x", **how, source=source) as writer:
            skipped = writer.skip_written()
            assert (skipped > 0) == (source is not None and "shard_bytes" in how)
            writer.write_many(every[skipped:])
            assert writer.records == 9
        assert contents(tmp_path / "a") == contents(tmp_path / "b")

    def test_columns_from_the_first_record_on(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"shard_bytes": 100, "source": "v1"}
        with pytest.raises(RuntimeError):
            with ShardedWriter(tmp_path / "x", **settings) as writer:
                writer.write_many({"id": np.arange(30)})
                raise RuntimeError
        with ShardedWriter(tmp_path / "x", **settings) as writer:
            writer.write_many({"id": np.arange(7)})
            writer.write_many({"id": np.arange(7, 40)})
            assert writer.records == 40
        assert [n for shard in records(tmp_path) for n in numbers(shard)] == list(range(40))

    def test_with_other_settings_nothing_is_left(self, tmp_path: Path) -> None:
        writer = ShardedWriter(tmp_path / "x", shard_bytes=60, source="v1")
        writer.write_many(BytesColumn.of([b"%030d" % n for n in range(9)]))
        writer.discard()
        before = contents(tmp_path)
        for other in ({"shards": 1, "source": "v1"}, {"shard_bytes": 60, "source": "v2"}):
            settings: dict[str, Any] = other
            with pytest.raises(
                ConfigError, match=r"unfinished dataset of this name \(\w+ .*in this one|so"
            ):
                ShardedWriter(tmp_path / "x", **settings)
            assert contents(tmp_path) == before
        with ShardedWriter(tmp_path / "x", shards=1, source="v1", overwrite=True) as writer:
            writer.write(b"x")
        assert names(tmp_path) == [
            "x-00000-of-00001", "x-00000-of-00001.streamrec-index", "x.streamrec-manifest.json",
        ]  # fmt: skip

    def test_a_task_that_is_complete(self, tmp_path: Path) -> None:
        for _ in range(2):
            with ShardedWriter(tmp_path / "x", shards=2, task=(0, 2), source="v1") as writer:
                writer.write_many([b"a", b"b"])
        with ShardedWriter(tmp_path / "x", shards=2, task=(1, 2), source="v1") as writer:
            writer.write(b"c")
        sr.merge_index(tmp_path / "x")
        sr.merge_index(tmp_path / "x")
        assert records(tmp_path) == [[b"a", b"b"], [b"c"]]


class TestClosing:
    def test_a_closed_writer_takes_no_more(self, tmp_path: Path) -> None:
        writer = ShardedWriter(tmp_path / "x", shards=1)
        writer.close()
        writer.close()
        with pytest.raises(ValueError, match="takes no more records"):
            writer.write(b"late")

    def test_forgetting_to_close_warns(self, tmp_path: Path) -> None:
        writer = ShardedWriter(tmp_path / "x", shards=1)
        with pytest.warns(ResourceWarning, match="never closed"):
            writer.__del__()
        assert names(tmp_path) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "give either shards"),
            ({"shards": 1, "shard_bytes": 1}, "give either shards"),
            ({"shards": 0}, "give a number from 1"),
            ({"shards": "many"}, "give a number from 1"),
            ({"shard_bytes": "big"}, "shard_bytes is 'big'"),
            ({"shards": 1, "task": (0, 2)}, "cannot be divided over 2 tasks"),
            ({"shards": 1, "task": 2}, "task is 2"),
            ({"shards": 1, "compression": "bzip2"}, "no compression 'bzip2'"),
            ({"shards": 1, "source": {1, 2}}, "source cannot be written as JSON"),
        ],
    )
    def test_arguments(self, tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            ShardedWriter(tmp_path / "x", **arguments)
        assert names(tmp_path) == []

    def test_a_directory_that_is_missing_is_made(self, tmp_path: Path) -> None:
        with ShardedWriter(tmp_path / "new" / "deeper" / "x", shards=1) as writer:
            writer.write({"id": 1})
        assert "x-00000-of-00001" in names(tmp_path / "new" / "deeper")

    def test_a_directory_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match="a file stands where a directory is needed; choose"):
            ShardedWriter(tmp_path / "file" / "new" / "x", shards=1)


@pytest.mark.parametrize("how", [{"shards": 3}, {"shard_bytes": 300}], ids=["counted", "by size"])
def test_two_runs_write_the_same_index_as_one_that_reads_them(
    how: dict[str, Any], tmp_path: Path
) -> None:
    """An index says nothing about where the shards are, nor when they were written."""
    found = []
    for name in ("a", "b"):
        directory = tmp_path / name
        directory.mkdir()
        with ShardedWriter(directory / "x.tfrecord", **how) as writer:
            writer.write_many({"id": number} for number in range(40))
        (path,) = directory.glob("*.streamrec-index")
        reports = asyncio.run(check([f"{directory}/x-*.tfrecord"]))
        found += [path.read_bytes(), index_of(reports).encode()]
    assert len(set(found)) == 1
