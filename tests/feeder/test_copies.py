"""Feeders that read copies of their own, in other directories: one goes on where another ends."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ObjectChanged, StaleIndex
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from tests.by_day import at_night, stops
from tests.feeder.support import ServedFeeder, served
from tests.pipeline.small_datasets import settings_of, write_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.config import DatasetSettings
    from streamrec.streams.stream import Stream

SHARDS, RECORDS = 4, 9
ORDERS: dict[str, dict[str, Any]] = {
    "by shard": {"steps_per_epoch": 6},
    "by shard, shuffled": {"shuffle": True, "shuffle_window": 300, "steps_per_epoch": 6},
    "by record": {"index": True},
    "by record, shuffled": {"index": True, "shuffle": True, "shuffle_window": 300},
}


class Copies:
    """Two feeders, each with a copy of the same shards."""

    def __init__(self, directory: Path, order: dict[str, Any], stack: ExitStack) -> None:
        first, second = directory / "nvme0/stage", directory / "mnt/other/stage"
        source = written(first)
        if "index" in order:
            write_index(source, 60)
        shutil.copytree(first, second)
        self.directories = first, second
        self._stack = stack
        self.values = {"batch_size": 3, "lanes": 4, "seed": 2, "epochs": 2} | order
        self.feeders: list[ServedFeeder] = []
        self.places: list[str] = []

    def serve(self) -> str:
        """Begin to serve both; return their address."""
        for directory in self.directories:
            feeder = self._stack.enter_context(served({}))
            dataset = feeder.call(Dataset.open(self.settings(directory)))
            self._stack.callback(feeder.call, dataset.aclose())
            self._stack.callback(feeder.call, feeder.feeder.aclose())
            feeder.feeder.datasets["data"] = dataset
            self.feeders.append(feeder)
            self.places.append(feeder.listen("tcp://127.0.0.1:0").removeprefix("tcp://"))
        return f"tcp://{','.join(self.places)}/data"

    def settings(self, directory: Path) -> DatasetSettings:
        return settings_of(f"{directory}/*.tfrecord", **self.values)

    def given(self, number: int) -> int:
        """Return the batches that a feeder has sent."""
        return self.feeders[number].feeder.statistics.batches["data"]

    def end(self, number: int) -> None:
        """Cut all connections of a feeder at once, as if it were killed."""
        self.feeders[number].call(self.feeders[number].feeder.aclose())


@pytest.fixture(autouse=True)
def one_batch_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients take one batch after the other, so that most are still to come at any time."""
    monkeypatch.setattr("streamrec.feeder.client.session.CREDIT_BYTES", 1)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def written(directory: Path) -> str:
    directory.mkdir(parents=True)
    for shard in range(SHARDS):
        records = (b"%d/%d" % (shard, i) + bytes(i) for i in range(RECORDS))
        (directory / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return f"{directory}/*.tfrecord"


def take(stream: Stream, count: int | None = None) -> list[list[bytes]]:
    """Return the names of the records of so many batches, or of all that are left of the epoch."""
    batches = stream if count is None else sr.take(stream, count)
    return [[name_of(record) for record in batch.records.to_list()] for batch in batches]


def name_of(record: bytes) -> bytes:
    return record.rstrip(b"\0")


def connected(address: str, rank: int = 0, world_size: int = 1) -> Stream:
    return sr.connect(address, rank=rank, world_size=world_size, engine="thread", retry_for=10)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_ranks_go_on_in_mid_shard_at_the_other_copy(
    order: str, world_size: int, tmp_path: Path, stack: ExitStack
) -> None:
    """Each rank begins at another feeder; that of the first one ends, and comes back elsewhere."""
    copies = Copies(tmp_path, ORDERS[order], stack)
    address = copies.serve()
    whole = []
    for rank in range(world_size):
        with connected(address, rank, world_size) as stream:
            whole.append(take(stream))
    streams = [
        stack.enter_context(connected(address, rank, world_size)) for rank in range(world_size)
    ]
    heads = [take(stream, 1) for stream in streams]
    copies.end(0)
    before = copies.given(1)
    tails = [take(streams[0])]
    assert copies.given(1) > before
    tails += map(take, streams[1:])
    assert [head + tail for head, tail in zip(heads, tails, strict=True)] == whole


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_that_differs_is_refused(order: str, tmp_path: Path, stack: ExitStack) -> None:
    """The other feeder's shards have other records of the same sizes: nothing of them is given."""
    copies = Copies(tmp_path, ORDERS[order], stack)
    for path in copies.directories[1].glob("*.tfrecord"):
        records = (b"%s:%d" % (path.stem.encode(), i) + bytes(i) for i in range(RECORDS))
        path.write_bytes(b"".join(map(frame, records)))
    stream = stack.enter_context(connected(copies.serve()))
    given = take(stream, 1)
    copies.end(0)
    with pytest.raises((ObjectChanged, StaleIndex)):
        for batch in stream:
            given.append([name_of(record) for record in batch.records.to_list()])
    assert all(b"/" in name for batch in given for name in batch)
    assert len(given) < 6


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world_size", [2, at_night(4)])
def test_ranks_resume_on_a_copy(
    order: str, world_size: int, tmp_path: Path, stack: ExitStack
) -> None:
    """A job that stages its data anew at each start goes on exactly, every rank of it."""
    copies = Copies(tmp_path, ORDERS[order], stack)

    def opened(directory: Path, rank: int) -> Stream:
        values = settings_of(f"{directory}/*.tfrecord", **copies.values).model_dump(
            exclude_defaults=True
        )
        values |= {"rank": rank, "world_size": world_size, "engine": "thread"}
        return stack.enter_context(sr.open(**values))

    for rank in range(world_size):
        whole = take(opened(copies.directories[0], rank))
        for k in stops(range(1, len(whole)), 10):
            first = opened(copies.directories[0], rank)
            head, state = take(first, k), json.dumps(first.state_dict())
            first.close()
            second = opened(copies.directories[1], rank)
            second.load_state_dict(json.loads(state))
            assert head + take(second) == whole
            second.close()
