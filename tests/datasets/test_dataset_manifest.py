from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.datasets.dataset_manifest import (
    IndexedShard,
    Manifest,
    ShardFacts,
    TaskPart,
    WriteSettings,
)
from streamrec.plan.order.shard_names import ShardNames, Task

SETTINGS = WriteSettings(
    shards=2, shard_bytes=None, tasks=1, compression="none", index=True, labels={"a": 0}, source="v"
)
SHARD = IndexedShard(
    name="x", records=3, bytes=90, begins=[0, 60], first_records=[0, 2], crcs=[7, 8]
)
PART = TaskPart(settings=SETTINGS, features={"id": "int64"}, shards=[SHARD])
MANIFEST = Manifest(
    written_by="streamrec", records=3, bytes=90, features={"id": "int64"}, settings=SETTINGS,
    tasks=[3], shards=[ShardFacts(name="x", records=3, bytes=90)],
)  # fmt: skip


@pytest.mark.parametrize("document", [PART, MANIFEST, SETTINGS, SHARD], ids=repr)
def test_round_trip(document: Any) -> None:
    data = document.encode()
    assert type(document).parse(data) == document
    assert data == document.encode()


@given(data=st.binary(max_size=30), at=st.integers(0, 200))
def test_damaged_bytes_are_none(data: bytes, at: int) -> None:
    assert TaskPart.parse(data) is None
    whole = PART.encode()
    assert TaskPart.parse(whole[: min(at, len(whole) - 2)]) is None


def changed(document: Any, *path: str | int, to: Any) -> bytes:
    """Return a document with another value at a place."""
    data = json.loads(document.encode())
    parent = data
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = to
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), True),
        (("records",), "3"),
        (("records",), 4),
        (("bytes",), 91),
        (("bytes",), 90.0),
        (("tasks",), []),
        (("tasks",), [2, 1]),
        (("tasks",), [4]),
        (("shards",), []),
        (("shards", 0, "records"), -3),
        (("settings", "shards"), 10**12),
        (("settings", "tasks"), 0),
        (("features", "id"), "int32"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_none(path: Any, value: Any) -> None:
    assert Manifest.parse(changed(MANIFEST, *path, to=value)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("records", 1),
        ("records", 9),
        ("bytes", 60),
        ("begins", [0, 80]),
        ("begins", [0, 1 << 64]),
        ("first_records", [0]),
        ("crcs", [7, 1 << 32]),
        ("crcs", [7]),
    ],
)
def test_a_record_of_a_shard_that_no_index_could_tell_is_none(name: str, value: Any) -> None:
    assert TaskPart.parse(changed(PART, "shards", 0, name, to=value)) is None


NAMES = ShardNames.parse("x.tfrecord")
FREE = SETTINGS.model_copy(update={"shards": None})


@pytest.mark.parametrize(
    ("settings", "complete", "names", "is_own"),
    [
        (SETTINGS, True, [NAMES.shard(0, 2), NAMES.shard(1, 2)], True),
        (SETTINGS, True, [NAMES.shard(0, 2)], False),
        (SETTINGS, False, [NAMES.shard(0, 2)], True),
        (SETTINGS, False, [NAMES.shard(0, 2), NAMES.shard(0, 2)], False),
        (SETTINGS, False, [NAMES.shard(0, 3)], False),
        (FREE, True, [NAMES.staged(Task(0, 1), n) for n in (0, 1)], True),
        (FREE, True, [NAMES.staged(Task(0, 1), n) for n in (0, 0)], False),
        (FREE, True, [NAMES.staged(Task(0, 2), 0)], False),
    ],
)
def test_a_task_names_each_of_its_shards_once(
    settings: WriteSettings, complete: bool, names: list[str], is_own: bool
) -> None:
    shards = [SHARD.model_copy(update={"name": name}) for name in names]
    part = TaskPart(settings=settings, complete=complete, shards=shards)
    assert part.has_own_names(NAMES, Task(0, 1)) == is_own


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        (
            {"shards": 3, "index": False},
            "shards is 3 there, and 2 here; index is False there, and ",
        ),
        ({"labels": None}, "it has other labels"),
        ({"source": "w"}, "it has another source"),
    ],
)
def test_differences(changes: dict[str, Any], words: str) -> None:
    found = SETTINGS.difference(SETTINGS.model_copy(update=changes))
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_differences_of_sources() -> None:
    here, there = (
        SETTINGS.model_copy(update={"source": source})
        for source in ({"table": "a", "digest": 1, "key": None}, {"table": "a", "digest": 2})
    )
    assert here.difference(there) == "its source differs in digest"


@pytest.mark.parametrize("sizes", [{}, {"x": 89}, {"y": 90}])
def test_a_shard_that_is_damaged(sizes: dict[str, int]) -> None:
    assert MANIFEST.find_damaged(sizes) == "x"
    assert MANIFEST.find_damaged({"x": 90}) is None


def test_another_version_is_none() -> None:
    assert Manifest.parse(MANIFEST.encode().replace(b'"version": 1', b'"version": 2')) is None
    assert Manifest.parse(None) is None
