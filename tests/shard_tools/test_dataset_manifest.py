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
SHARD = IndexedShard(name="x", records=3, bytes=90, begins=[0, 60], first_records=[0, 2])
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


def test_another_version_is_none() -> None:
    assert Manifest.parse(MANIFEST.encode().replace(b'"version": 1', b'"version": 2')) is None
    assert Manifest.parse(None) is None
