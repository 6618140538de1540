from __future__ import annotations

from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernel
from streamrec.datasets.dataset_manifest import (
    IndexedShard,
    Manifest,
    ShardFacts,
    SourcePlace,
    TaskPart,
    WriteSettings,
)
from streamrec.datasets.task_shards import (
    BEHIND,
    UPLOADS,
    CountedShards,
    SequentialShards,
    _ShardWriter,
    begin,
)
from streamrec.datasets.writer import TFRecordWriter
from streamrec.errors import ConfigError, StoreError
from streamrec.formats.examples.feature_types import FeatureTypes
from streamrec.plan.order.shard_names import ShardNames, Task
from streamrec.stores.blocking import Folder
from streamrec.streams.sources import read_records
from streamrec.values.columns import BytesColumn
from streamrec.values.record_rows import RecordRows
from tests.datasets.datasets import names

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.datasets.task_shards import TaskLog


LOG_NAMES = ShardNames.parse("x.tfrecord")
ONE = Task(0, 1)
BY_SIZE = WriteSettings(
    shards=None, shard_bytes=9, tasks=1, compression="none", index=True, labels=None, source="v1"
)
COUNTED = BY_SIZE.model_copy(update={"shards": 3, "shard_bytes": None})
RECORD = ".x.task-00000-of-00001.streamrec-part"


def begun(
    directory: Path, settings: WriteSettings = BY_SIZE, *, overwrite: bool = False
) -> TaskLog:
    folder = Folder(f"{directory}/", {})
    return begin(folder, LOG_NAMES, ONE, settings, FeatureTypes(), overwrite=overwrite)


def log_facts(name: str, size: int = 50) -> IndexedShard:
    return IndexedShard(name=name, records=2, bytes=size, begins=[0], first_records=[0], crcs=[7])


def leave(directory: Path, sizes: list[int], settings: WriteSettings, **more: Any) -> None:
    """Leave what a task that was killed had written: shards of 50 bytes, now of these sizes."""
    name = LOG_NAMES.staged if settings.shards is None else lambda task, n: LOG_NAMES.shard(n, 3)
    shards = [log_facts(name(ONE, number)) for number in range(len(sizes))]
    for shard, size in zip(shards, sizes, strict=True):
        (directory / shard.name).write_bytes(b"." * size)
    part = TaskPart(settings=settings, features={"id": "int64"}, shards=shards, **more)
    (directory / RECORD).write_bytes(part.encode())


def left(directory: Path) -> list[str]:
    """Return the names of what is there besides the record."""
    return [name for name in names(directory) if name != RECORD]


def test_a_first_run_keeps_a_record(tmp_path: Path) -> None:
    log = begun(tmp_path)
    assert (log.records, log.part.shards, log.part.complete) == (0, [], False)
    assert TaskPart.parse((tmp_path / RECORD).read_bytes()) == log.part
    log.types.update({"id": "int64"})
    log.update(shards=[log_facts("a")], complete=True)
    found = TaskPart.parse((tmp_path / RECORD).read_bytes())
    assert found == log.part
    assert found.features == {"id": "int64"}


@given(sizes=st.lists(st.sampled_from([50, 50, 40]), max_size=4))
def test_shards_by_size_are_kept_up_to_the_first_that_is_not_whole(
    sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("d")
    leave(directory, sizes, BY_SIZE)
    log = begun(directory)
    whole = [*sizes, 40].index(40)
    assert left(directory) == [LOG_NAMES.staged(ONE, number) for number in range(whole)]
    assert [shard.name for shard in log.part.shards] == left(directory)
    assert log.records == 2 * whole
    assert log.types.to_dict() == {"id": "int64"}


@pytest.mark.parametrize(
    ("sizes", "is_kept"), [([50, 50], True), ([], True), ([50, 40], False), ([40, 50], False)]
)
def test_the_place_in_the_source_is_that_behind_all_shards(
    sizes: list[int], is_kept: bool, tmp_path: Path
) -> None:
    place = SourcePlace(version="1", pieces=7, amount=70, skipped=1, records=[4])
    leave(tmp_path, sizes, BY_SIZE, place=place)
    assert begun(tmp_path).part.place == (place if is_kept else None)


@pytest.mark.parametrize("sizes", [[50, 50, 50], [50, 40, 50], [50, 50]])
def test_counted_shards_are_kept_together_or_not_at_all(sizes: list[int], tmp_path: Path) -> None:
    leave(tmp_path, sizes, COUNTED, complete=len(sizes) == 3)
    log = begun(tmp_path, COUNTED)
    assert log.part.complete == (sizes == [50, 50, 50])
    assert log.records == (6 if log.part.complete else 0)
    assert len(left(tmp_path)) == (3 if log.part.complete else 0)


def test_of_records_without_an_identity_nothing_is_kept(tmp_path: Path) -> None:
    settings = BY_SIZE.model_copy(update={"source": None})
    leave(tmp_path, [50, 50], settings)
    (tmp_path / "y-00000-of-00001").touch()
    log = begun(tmp_path, settings)
    assert left(tmp_path) == ["y-00000-of-00001"]
    assert (log.records, log.part.settings) == (0, settings)


@pytest.mark.parametrize("change", [{"shard_bytes": 10}, {"source": "v2"}])
def test_unfinished_work_of_other_settings_is_refused_or_replaced(
    change: Any, tmp_path: Path
) -> None:
    settings = BY_SIZE.model_copy(update=change)
    leave(tmp_path, [50, 50], BY_SIZE)
    with pytest.raises(ConfigError, match="an unfinished dataset"):
        begun(tmp_path, settings)
    assert len(left(tmp_path)) == 2
    log = begun(tmp_path, settings, overwrite=True)
    assert left(tmp_path) == []
    assert (log.records, log.part.settings) == (0, settings)


def test_what_is_complete_is_not_written_again(tmp_path: Path) -> None:
    manifest = Manifest(
        written_by="streamrec", records=2, bytes=50, features={"id": "int64"}, settings=BY_SIZE,
        tasks=[2], shards=[ShardFacts(name="x", records=2, bytes=50)],
    )  # fmt: skip
    (tmp_path / LOG_NAMES.manifest()).write_bytes(manifest.encode())
    (tmp_path / "x").write_bytes(b"." * 50)
    leave(tmp_path, [], BY_SIZE)
    log = begun(tmp_path)
    assert (log.part.complete, log.records) == (True, 2)
    assert log.types.to_dict() == {"id": "int64"}
    assert names(tmp_path) == ["x", LOG_NAMES.manifest()], "the last step had left the record"


def test_another_dataset_is_refused_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "x-00000-of-00001.tfrecord").touch()
    with pytest.raises(ConfigError, match=r"x-00000-of-00001\.tfrecord: there is a dataset"):
        begun(tmp_path)
    assert begun(tmp_path, overwrite=True).part.overwrite
    assert left(tmp_path) == ["x-00000-of-00001.tfrecord"], "until the new one is complete"


def test_giving_up_leaves_nothing(tmp_path: Path) -> None:
    log = begun(tmp_path)
    (tmp_path / "staged").touch()
    log.give_up("staged")
    assert names(tmp_path) == []
    tmp_path.rmdir()
    log.give_up("staged")


@pytest.mark.parametrize("tasks", [1, 2])
def test_giving_up_removes_directories_that_no_other_task_needs(tasks: int, tmp_path: Path) -> None:
    settings = BY_SIZE.model_copy(update={"tasks": tasks})
    log = begun(tmp_path / "new" / "deeper", settings)
    log.give_up()
    assert (tmp_path / "new" / "deeper").exists() == (tasks == 2)
    assert (tmp_path / "new").exists() == (tasks == 2)


pytestmark = pytest.mark.both_kernels

NAMES = ShardNames.parse("x")
SETTINGS = WriteSettings(
    shards=None, shard_bytes=64, tasks=1, compression="none", index=True, labels=None, source=None
)


def shards_of(directory: Path, task: Task = ONE, **changes: Any) -> Any:
    """Begin a task; by default its shards are of 64 bytes."""
    settings = SETTINGS.model_copy(update={"tasks": task.tasks, **changes})
    folder = Folder(f"{directory}/", {})
    log = begin(folder, NAMES, task, settings, FeatureTypes(), overwrite=False)
    kind = SequentialShards if settings.shards is None else CountedShards
    return kind(NAMES, task, log)


def counted(directory: Path, shards: int, task: Task = ONE, **changes: Any) -> Any:
    return shards_of(directory, task, shards=shards, shard_bytes=None, **changes)


def rows(*records: bytes) -> RecordRows:
    return RecordRows.of(records)


def write(shards: Any, records: list[bytes], is_framed: bool) -> None:
    """Append records, or the frames of them."""
    if not is_framed:
        shards.write(rows(*records))
        return
    frames = [kernel.frame_records(rows(record)).tobytes() for record in records]
    shards.write_frames(BytesColumn.of(frames))


def facts(shards: Any) -> list[IndexedShard]:
    found: list[IndexedShard] = shards._log.part.shards
    return found


def contents(directory: Path, shards: Any) -> list[list[bytes]]:
    """Return each shard's records, after a look at its facts."""
    found = [list(map(bytes, read_records(str(directory / f.name)))) for f in facts(shards)]
    assert [shard.records for shard in facts(shards)] == list(map(len, found))
    sizes = [(directory / shard.name).stat().st_size for shard in facts(shards)]
    assert [shard.bytes for shard in facts(shards)] == sizes
    return found


BLOCKS = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=5)


@given(blocks=BLOCKS, shards=st.integers(1, 4), is_framed=st.booleans())
def test_counted_shards_get_records_in_turn(
    blocks: list[list[bytes]],
    shards: int,
    is_framed: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("d")
    writing = counted(directory, shards)
    for block in blocks:
        write(writing, block, is_framed)
    writing.close()
    every = [record for block in blocks for record in block]
    assert contents(directory, writing) == [every[number::shards] for number in range(shards)]


@given(blocks=BLOCKS, is_framed=st.booleans())
def test_shards_by_size_hold_as_many_as_fit(
    blocks: list[list[bytes]], is_framed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("d")
    writing = shards_of(directory)
    for block in blocks:
        write(writing, block, is_framed)
    writing.close()
    found = contents(directory, writing)
    every = [record for block in blocks for record in block]
    assert [record for shard in found for record in shard] == every
    sizes = [sum(len(record) + 16 for record in shard) for shard in found]
    assert all(size <= 64 for size in sizes)
    for size, (first, *_) in zip(sizes, found[1:], strict=False):
        assert size + len(first) + 16 > 64, "the next record did not fit"


def test_a_longer_record_has_a_shard_of_its_own(tmp_path: Path) -> None:
    writing = shards_of(tmp_path)
    writing.write(rows(b"a", b"b" * 100, b"c"))
    writing.close()
    assert contents(tmp_path, writing) == [[b"a"], [b"b" * 100], [b"c"]]


def test_the_chunks_of_an_index(tmp_path: Path) -> None:
    writing = counted(tmp_path, 2)
    big = b"x" * (1 << 20)
    writing.write(rows(*[big] * 6))
    writing.close()
    for shard in facts(writing):
        assert shard.begins[0] == 0
        assert np.array(shard.begins).tolist() == [n * (len(big) + 16) for n in shard.first_records]


def test_counted_shards_appear_together(tmp_path: Path) -> None:
    writing = counted(tmp_path, 4, Task(1, 2))
    writing.write(rows(b"a", b"b"))
    assert not list(tmp_path.glob("x-*"))
    writing.close()
    assert [path.name for path in sorted(tmp_path.glob("x-*"))] == [
        "x-00002-of-00004", "x-00003-of-00004",
    ]  # fmt: skip


@pytest.mark.parametrize("source", [None, "v1"])
def test_discarded_shards_by_size_are_kept_for_the_next_run(
    source: str | None, tmp_path: Path
) -> None:
    blocks = [b"%040d" % number for number in range(BEHIND + 3)]
    writing = shards_of(tmp_path, source=source)
    writing.write(rows(*blocks))
    writing.discard()
    again = shards_of(tmp_path, source=source)
    # All but the last one, which no other followed.
    assert len(facts(again)) == (0 if source is None else BEHIND + 2), "what the log tells"
    again.write(rows(*blocks[len(facts(again)) :]))
    again.close()
    assert contents(tmp_path, again) == [[block] for block in blocks]


def test_discarded_counted_shards_leave_nothing(tmp_path: Path) -> None:
    writing = counted(tmp_path, 3, source="v1")
    writing.write(rows(b"a", b"b"))
    writing.discard()
    assert names(tmp_path) == []


def test_what_is_complete_is_not_opened_again(tmp_path: Path) -> None:
    writing = counted(tmp_path, 2, source="v1")
    writing.write(rows(b"a", b"b"))
    writing.close()
    writing._log.write()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("x-*")}
    again = counted(tmp_path, 2, source="v1")
    again.close()
    again.discard()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("x-*")} == before


def test_shards_that_cannot_be_opened_leave_none(tmp_path: Path) -> None:
    (tmp_path / NAMES.shard(1, 2)).mkdir()
    with pytest.raises(StoreError):
        counted(tmp_path, 2).close()


def test_many_shards_of_a_store_wait_in_files(tmp_path: Path) -> None:
    for count in (UPLOADS, UPLOADS + 1):
        writing = counted(tmp_path, count)
        assert {shard.writer._spooled for shard in writing._open} == {count > UPLOADS}
        writing.discard()


def test_shards_by_size_appear_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, close = Barrier(BEHIND), TFRecordWriter.close

    def wait_and_close(self: TFRecordWriter) -> None:
        together.wait(60)
        close(self)

    monkeypatch.setattr(TFRecordWriter, "close", wait_and_close)
    writing = shards_of(tmp_path)
    blocks = [b"%040d" % number for number in range(2 * BEHIND)]
    writing.write(rows(*blocks))
    writing.close()
    assert contents(tmp_path, writing) == [[block] for block in blocks]


@pytest.mark.parametrize("source", [None, "v1"])
def test_a_shard_that_cannot_appear_before_others_that_do(
    source: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, third_is_there = _ShardWriter.close, Event()

    def fail_second(self: _ShardWriter) -> None:
        if "-00001." in self._place:
            third_is_there.wait(60)
            self.discard()
            raise StoreError("the disk is gone", url=self.url)
        close(self)
        if "-00002." in self._place:
            third_is_there.set()

    blocks = [b"%040d" % number for number in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(_ShardWriter, "close", fail_second)
        writing = shards_of(tmp_path, source=source)
        writing.write(rows(*blocks))
        with pytest.raises(StoreError, match="the disk is gone"):
            writing.close()
        writing.discard()
    assert len(facts(writing)) == (0 if source is None else 1), "what the log tells"
    assert source or names(tmp_path) == []
    again = shards_of(tmp_path, source=source)
    again.write(rows(*blocks[len(facts(again)) :]))
    again.close()
    assert contents(tmp_path, again) == [[block] for block in blocks]
