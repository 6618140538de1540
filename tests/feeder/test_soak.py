"""Clients that come and go leave nothing in a feeder; ``python -m bench.soak`` is the long form."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest

from streamrec.feeder.client.client import ENGINE_DATASET, BlockingFeed
from streamrec.flow.pool import Pool
from streamrec.pipeline.dataset import Dataset
from tests.by_day import is_day
from tests.feeder.shards import write_shards
from tests.feeder.support import served, until
from tests.pipeline.small_datasets import settings_of
from tests.support import open_fds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.feeder.support import ServedFeeder

HOST = "127.0.0.1"
CONNECTS = 8 if is_day() else 30
THREADS = ("streamrec-decode", "streamrec-inflate", "streamrec-prefault")
RESET = struct.pack("ii", 1, 0)
"""Value of ``SO_LINGER`` that drops the connection on close, as a killed process does."""


def leave(sock: socket.socket) -> None:
    """Leave in mid-run, as ``break`` and ``close`` do."""
    with closing(BlockingFeed.open(sock)) as feed:
        for _ in range(3):
            feed.receive()


def crash(sock: socket.socket) -> None:
    """Crash in mid-run, while batches are in flight."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    with closing(BlockingFeed.open(sock)) as feed:
        feed.receive()


def leave_at_once(sock: socket.socket) -> None:
    """Leave before the first batch."""
    BlockingFeed.open(sock).close()


class Held(NamedTuple):
    """The resources of a feeder's process while no client is connected."""

    tasks: int
    threads: int
    """Threads of runs, without the threads that read files, which belong to the dataset."""
    descriptors: int
    memory: int
    """Bytes of ranges, and of columns."""


async def tasks_here() -> int:
    return len(asyncio.all_tasks())


def held(feeder: ServedFeeder) -> Held:
    gc.collect()
    pools = [found for found in gc.get_objects() if issubclass(type(found), Pool)]
    memory = sum(pool.in_use + pool.idle for pool in pools)
    threads = sum(thread.name.startswith(THREADS) for thread in threading.enumerate())
    return Held(feeder.call(tasks_here()), threads, len(open_fds()), memory)


@pytest.mark.parametrize("shuffle", [pytest.param(False, marks=pytest.mark.night), True])
@pytest.mark.parametrize("go", [leave, crash, leave_at_once])
def test_clients_that_come_and_go_leave_nothing(
    go: Callable[[socket.socket], None], shuffle: bool, tmp_path: Path
) -> None:
    source = write_shards(tmp_path, shards=4, records=200, size=5000)
    order = {"shuffle": shuffle, "shuffle_window": "2MiB"}
    settings = settings_of(source, batch_size=8, epochs=None, **order)
    with served({}) as feeder:
        dataset = feeder.call(Dataset.open(settings))
        feeder.feeder.datasets[ENGINE_DATASET] = dataset
        place = (HOST, feeder.call(feeder.feeder.listen(f"tcp://{HOST}:0")).port)
        leave(socket.create_connection(place))  # what the dataset itself keeps is there then
        until(lambda: feeder.feeder.admission.clients == 0)
        before = held(feeder)
        for _ in range(CONNECTS):
            go(socket.create_connection(place))
        until(lambda: all(now <= then for now, then in zip(held(feeder), before, strict=True)))
        feeder.call(dataset.aclose())
