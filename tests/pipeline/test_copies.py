"""States that go on with a copy of the shards, and are refused where a shard is another one."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec.errors import DataError, ObjectChanged
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import Position
from tests.pipeline.mixes import mix_of
from tests.pipeline.small_datasets import (
    contents,
    position_after,
    receive_all,
    settings_of,
    write,
    write_index,
)

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.batch.batch import Batch

SHARDS = tuple(tuple(20 + 7 * (i * k % 5) for i in range(9)) for k in range(1, 5))
SHUFFLE: dict[str, Any] = {"shuffle": True, "seed": 5, "shuffle_window": 400}
PLACES = 3 if os.environ.get("CI") else 1
"""Every how many places a run is stopped at."""
KINDS: dict[str, dict[str, Any]] = {
    "index": {"index": True},
    "index, windows": SHUFFLE | {"index": True, "shuffle_window": 900},
    "in order": {},
    "windows": SHUFFLE | {"lanes": 4},
    "open shards": SHUFFLE | {"lanes": 1},
    "mix": SHUFFLE,
    "compressed": {},
}


def settings(kind: str, directory: Path) -> DatasetSettings:
    values: dict[str, Any] = {"batch_size": 3, "lanes": 2, "epochs": 2} | KINDS[kind]
    if kind == "mix":
        weights = [(0, {"a": 0.7, "b": 0.3})]
        values["epochs"] = None
        return mix_of(directory, {"a": SHARDS, "b": SHARDS}, weights, **values)
    source = write(directory, SHARDS)
    if kind.startswith("index"):
        write_index(source, 60)
    if kind == "compressed":
        for path in directory.rglob("*.tfrecord"):
            path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return settings_of(source, **values)


def moved(values: DatasetSettings, old: Path, new: Path) -> DatasetSettings:
    """Return settings for the copy of a directory."""
    text = json.dumps(values.source).replace(str(old), str(new))
    return values.model_copy(update={"source": json.loads(text)})


def run(values: DatasetSettings, state: str | None = None, most: int = 30) -> list[Batch]:
    async def batches() -> list[Batch]:
        dataset = await Dataset.open(values)
        try:
            point = None if state is None else Position.from_dict(json.loads(state))
            return await receive_all(dataset, position=point, most=most)
        finally:
            await dataset.aclose()

    return asyncio.run(batches())


def state_of(batch: Batch) -> str:
    return json.dumps(position_after(batch).to_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_gives_the_same_tail_from_every_place(kind: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    values = settings(kind, here)
    whole = run(values)
    shutil.copytree(here, there, copy_function=shutil.copyfile)
    for stop in range(1, len(whole), PLACES):
        left = len(whole) - stop
        rest = run(moved(values, here, there), state_of(whole[stop - 1]), most=left)
        assert contents(rest) == contents(whole[stop:])
        assert [state_of(batch) for batch in rest] == [state_of(batch) for batch in whole[stop:]]


def shard_at(batch: Batch, directory: Path) -> tuple[Path, int]:
    """Return the shard that the first lane inside of one is in the middle of, and the byte."""
    position = position_after(batch)
    lane = int(np.flatnonzero(position.sizes.ravel())[0])
    size, offset = position.sizes.ravel()[lane], position.points.ravel()["offset"][lane]
    paths = sorted(directory.rglob("*.tfrecord"))
    extent = int(position.points.ravel()["extent"][lane])
    path = paths[(extent * 2 + lane) % len(paths)]
    assert path.stat().st_size == size
    return path, int(offset)


@pytest.fixture
def copied(tmp_path: Path) -> tuple[DatasetSettings, Batch, Path, int]:
    """A copy, a batch whose position is in the middle of a shard, and where that is in the copy."""
    here, there = tmp_path / "here", tmp_path / "there"
    values = settings("in order", here)
    batch = run(values)[1]
    shutil.copytree(here, there, copy_function=shutil.copyfile)
    path, offset = shard_at(batch, there)
    assert 0 < offset < path.stat().st_size
    return moved(values, here, there), batch, path, offset


def test_a_flipped_byte_in_the_record_at_the_position_is_refused(
    copied: tuple[DatasetSettings, Batch, Path, int],
) -> None:
    values, batch, path, offset = copied
    data = path.read_bytes()
    for at in range(offset - 4, offset + 40):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(ObjectChanged if at < offset else DataError):
            run(values, state_of(batch))


@pytest.mark.parametrize("change", [b"", frame(b"more")])
def test_another_size_is_refused(
    copied: tuple[DatasetSettings, Batch, Path, int], change: bytes
) -> None:
    values, batch, path, _ = copied
    path.write_bytes(path.read_bytes() + change if change else path.read_bytes()[:-20])
    with pytest.raises(ObjectChanged, match="bytes, but it now has"):
        run(values, state_of(batch))


@pytest.mark.parametrize("kind", ["in order", "windows", "open shards", "mix", "compressed"])
def test_shards_of_other_records_of_the_same_sizes_are_refused(kind: str, tmp_path: Path) -> None:
    values = settings(kind, tmp_path)
    whole = run(values, most=8)
    for path in tmp_path.rglob("*.tfrecord"):
        data = bytearray(path.read_bytes())
        if kind == "compressed":
            data = bytearray(gzip.decompress(data))
        path.write_bytes(as_stored(kind, rewritten(bytes(data))))
    inside = [batch for batch in whole if position_after(batch).sizes.any()]
    assert inside
    for batch in inside:
        with pytest.raises(ObjectChanged):
            run(values, state_of(batch))


def rewritten(data: bytes) -> bytes:
    """Return a shard of other records of the same lengths."""
    records, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        records.append(frame(bytes(byte ^ 1 for byte in data[at + 12 : at + 12 + length])))
        at += 16 + length
    return b"".join(records)


def as_stored(kind: str, data: bytes) -> bytes:
    return gzip.compress(data, mtime=0) if kind == "compressed" else data
