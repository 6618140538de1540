from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.datasets.dataset_manifest import (
    IndexedShard,
    Manifest,
    ShardFacts,
    SourcePlace,
    TaskPart,
    WriteSettings,
)
from streamrec.datasets.task_log import begin
from streamrec.errors import ConfigError
from streamrec.formats.examples.feature_types import FeatureTypes
from streamrec.plan.order.shard_names import ShardNames, Task
from streamrec.stores.folder import Folder
from tests.datasets.datasets import names

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.datasets.task_log import TaskLog

NAMES = ShardNames.parse("x.tfrecord")
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
    return begin(folder, NAMES, ONE, settings, FeatureTypes(), overwrite=overwrite)


def facts(name: str, size: int = 50) -> IndexedShard:
    return IndexedShard(name=name, records=2, bytes=size, begins=[0], first_records=[0], crcs=[7])


def leave(directory: Path, sizes: list[int], settings: WriteSettings, **more: Any) -> None:
    """Leave what a task that was killed had written: shards of 50 bytes, now of these sizes."""
    name = NAMES.staged if settings.shards is None else lambda task, n: NAMES.shard(n, 3)
    shards = [facts(name(ONE, number)) for number in range(len(sizes))]
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
    log.update(shards=[facts("a")], complete=True)
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
    assert left(directory) == [NAMES.staged(ONE, number) for number in range(whole)]
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
    (tmp_path / NAMES.manifest()).write_bytes(manifest.encode())
    (tmp_path / "x").write_bytes(b"." * 50)
    leave(tmp_path, [], BY_SIZE)
    log = begun(tmp_path)
    assert (log.part.complete, log.records) == (True, 2)
    assert log.types.to_dict() == {"id": "int64"}
    assert names(tmp_path) == ["x", NAMES.manifest()], "the last step had left the record"


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
