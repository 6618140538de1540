"""Feeders as actors of Ray, on two simulated nodes; run by test_ray.py."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
from ray.cluster_utils import Cluster

import streamrec as sr
from streamrec.adapters.ray import Feeders, feed
from streamrec.config.daemon import load_daemon
from streamrec.errors import ConfigError, FeederLost

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = 2000
PAYLOAD = bytes(100_000)
"""Large enough that a rank's batches do not all wait at the client when its feeder is killed."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shards")
    with sr.ShardedWriter(directory / "train.tfrecord", shards=4) as writer:
        writer.write_many({"id": number, "payload": PAYLOAD} for number in range(RECORDS))
    path = directory / "feeder.toml"
    path.write_text(
        "[server]\ninsecure = true\ngrace = 2\n"
        f'[datasets.train]\nsource = "{directory}/train-*.tfrecord"\n'
        "index = true\nbatch_size = 10\nlanes = 2\n"
        'features.id = { dtype = "int64" }\nfeatures.payload = { dtype = "bytes" }\n'
    )
    return path


def free_port() -> int:
    """Return a port that is free, and so are likely the next ones."""
    with closing(socket.create_server(("", 0))) as taken:
        return int(taken.getsockname()[1])


def read(feeders: Feeders, rank: int) -> list[int]:
    with sr.connect(feeders.address(), rank=rank, world_size=2) as stream:
        return [int(number) for batch in stream for number in batch["id"]]


def expected(configuration: Path, rank: int) -> list[int]:
    """Return the records of a rank, read without a feeder."""
    dataset = load_daemon(configuration).datasets["train"]
    shards = sr.open(
        str(dataset.source),
        {"id": sr.FixedLenFeature((), "int64"), "payload": sr.FixedLenFeature((), bytes)},
        index=True,
        lanes=2,
        batch_size=10,
        rank=rank,
        world_size=2,
        engine="thread",
    )
    with shards as stream:
        return [int(number) for batch in stream for number in batch["id"]]


def serving() -> list[int]:
    """Return the processes of ``streamrec serve`` that actors run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"serve" in words and b"--until-eof" in words:
                found.append(int(process.name))
    return found


def test_workers_read_each_record_once_and_a_feeder_that_dies_is_started_again(
    cluster: Cluster, configuration: Path
) -> None:
    with feed(configuration, feeders=2, port=free_port(), num_cpus=0.5) as feeders:
        assert feeders.address("train") == feeders.address()
        tasks = [ray.remote(read).remote(feeders, rank) for rank in range(2)]
        assert ray.get(tasks) == [expected(configuration, rank) for rank in range(2)]

        before = feeders.address()
        with sr.connect(before, rank=0, world_size=2, engine="thread") as stream:
            ids = [int(number) for number in next(stream)["id"]]
            for process in serving():
                os.kill(process, signal.SIGKILL)
            # Both are killed: the stream goes on when one of them is there again, at its address.
            ids += [int(number) for batch in stream for number in batch["id"]]
            assert stream.statistics()["reconnections"]
        assert ids == expected(configuration, 0)
        while True:  # until Ray has started both again
            with suppress(FeederLost):
                if feeders.address() == before:
                    break


def test_one_on_each_node(cluster: Cluster, configuration: Path) -> None:
    with feed(configuration, "node", port=free_port(), num_cpus=0.5) as feeders:
        asked = [actor.__ray_call__.remote(node_of) for actor in feeders.actors]
        nodes = {*ray.get(asked)}
        assert len(feeders.actors) == len(nodes) == 2
        with pytest.raises(ConfigError, match="the feeders serve train, and no dataset 'test'"):
            feeders.address("test")
    with pytest.raises(FeederLost, match="no feeder of this cluster answers"):
        feeders.address()


def node_of(_: Any) -> str:
    """Return the node on which an actor runs."""
    return str(ray.get_runtime_context().get_node_id())


def test_what_is_wrong_is_told_at_once(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "feeder.toml"
    path.write_text("[server]\n")
    with pytest.raises(ConfigError, match="datasets"):
        feed(path)
    path.write_text('[datasets.train]\nsource = "/nowhere.tfrecord"\n')
    with pytest.raises(ConfigError, match="feeders must be a number from 1 on"):
        feed(path, feeders=0)


def test_a_fleet_grows_and_shrinks_and_no_batch_is_lost(
    cluster: Cluster, configuration: Path
) -> None:
    with feed(configuration, feeders=1, port=free_port(), num_cpus=0.5) as feeders:
        alone = feeders.address()
        with sr.connect(alone, rank=0, world_size=2, engine="thread") as early:
            first = [int(number) for number in next(early)["id"]]
            feeders.resize(3)
            grown = places(ray.get(ray.remote(Feeders.address).remote(feeders)))
            assert len(grown) == 3
            with sr.connect(feeders.address(), rank=1, world_size=2, engine="thread") as late:
                second = [int(number) for number in next(late)["id"]]
                feeders.resize(1)
                assert feeders.address() == alone
                second += [int(number) for batch in late for number in batch["id"]]
                # Rank 1 of 3 feeders began at one that has gone.
                assert late.statistics()["reconnections"]
            first += [int(number) for batch in early for number in batch["id"]]
            assert not early.statistics()["reconnections"]
        assert [first, second] == [expected(configuration, rank) for rank in range(2)]
        with pytest.raises(ray.exceptions.RayTaskError, match="by the process that called feed"):
            ray.get(ray.remote(Feeders.resize).remote(feeders, 2))


def places(address: str) -> set[str]:
    """Return the feeders that an address names."""
    return {*address.partition("://")[2].rpartition("/")[0].replace(";", ",").split(",")}
