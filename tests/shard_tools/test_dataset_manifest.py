from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.shard_tools.dataset_manifest import (
    IndexedShard,
    Manifest,
    ShardFacts,
    TaskPart,
    WriteSettings,
)

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
    assert MANIFEST.damaged(sizes) == "x"
    assert MANIFEST.damaged({"x": 90}) is None


def test_another_version_is_none() -> None:
    assert Manifest.parse(MANIFEST.encode().replace(b'"version": 1', b'"version": 2')) is None
    assert Manifest.parse(None) is None
