from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, aclosing, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import CorruptRecord, FeederLost, FeederRefused
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.engine.engine_process import relay
from streamrec.feeder.server.server import Feeder
from streamrec.streams.session import open_relay
from tests.by_day import at_night
from tests.feeder import fake_dataset
from tests.feeder.client.test_client import all_now, check
from tests.feeder.client.test_healing import Fleet, rest
from tests.feeder.engine.test_engine import settings
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import PATIENCE, eventually, gone, on_both_loops, served, server_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streamrec.feeder.client.client import BlockingFeed

CHILD = """
import os, socket, sys
from streamrec.feeder.engine import engine_process

async def serve(sock, order):
    print(order["settings"]["batch_size"], sys.path[-1], *sys.modules)

engine_process.serve = serve
ours, theirs = socket.socketpair()
sys.argv = ["", str(os.getppid()), str(theirs.detach()), sys.argv[1]]
engine_process.main()
"""


def said(store: str, order: bytes) -> list[str]:
    """Return the words that a process prints for an order."""
    command = [sys.executable, "-c", CHILD, store]
    done = subprocess.run(command, input=order, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().split()


@pytest.mark.parametrize(
    ("store", "module"),
    [
        ("s3://", "streamrec.stores.s3.s3_store"),
        at_night("gs://", "streamrec.stores.gcs.gcs_store"),
        at_night("https://", "streamrec.stores.http.http_store"),
        ("/", "streamrec.stores.local_store"),
        at_night("ftp://", "streamrec.stores.fsspec.filesystem_store"),
        ("nothing://", "streamrec.stores.open"),
        ("", "streamrec.stores.open"),
    ],
)
def test_serves_what_it_is_told(store: str, module: str, tmp_path: Path) -> None:
    plain = settings(tmp_path).model_dump(mode="json")
    order = json.dumps(
        {"settings": plain, "path": ["/elsewhere"], "objects": None, "functions": None}
    ).encode()
    batch_size, place, *modules = said(store, order)
    assert batch_size == "4"
    assert place == "/elsewhere", "where the parent finds the user's functions"
    assert module in modules


def test_ends_when_it_is_told_nothing() -> None:
    assert said("/", b"") == []


def relayed(address: str, **route: Any) -> BlockingFeed:
    known = {"rank": 0, "world_size": 1, "batch_size": None}
    return open_relay(address, **{**known, **route})


def process_of(feed: Any) -> int:
    return int(feed._engine.process.pid)


def test_gives_all_runs_heals_and_leaves_nothing_behind() -> None:
    with ExitStack() as stack:
        fleet = Fleet(2, stack)
        fleet.datasets[0].hang_at = 4
        fleet.datasets[1].counts = True
        with closing(relayed(fleet.address)) as feed:
            assert feed.fingerprint == fake_dataset.fingerprint()
            assert feed.settings["shard_count"] == 2
            for step in range(4):
                check(feed.receive(), step)
            fleet.end(0)
            assert rest(feed) == list(range(5, 13))
            assert feed.statistics()["reconnections"] == 1
            assert feed.statistics()["requests"] > 0
            assert feed.position == fake_dataset.position(12).to_dict()
            feed.subscribe()
            check(feed.receive(), 12)
        assert gone(process_of(feed))


def test_goes_on_from_a_position_with_large_batches_and_a_token() -> None:
    dataset = FakeDataset(size=100_000)
    with served({"train": dataset}, settings=server_settings(token="secret")) as feeder:
        address = f"{feeder.listen('tcp://127.0.0.1:0')}/train"
        state = fake_dataset.position(7).to_dict()
        with closing(relayed(address, token="secret", position=state)) as feed:
            kept = all_now(feed)
            assert [batch.next_position.step for batch in kept] == [8, 9, 10]
            arguments = f"/proc/{process_of(feed)}/cmdline"
            with Path(arguments).open("rb") as file:
                assert b"secret" not in file.read()
        for step, batch in enumerate(kept, 7):
            expected = fake_dataset.batch(step, size=100_000)["values"]
            assert (batch["values"] == expected).all(), "it outlives the process"


@contextlib.asynccontextmanager
async def relaying(**route: Any) -> AsyncIterator[tuple[socket.socket, asyncio.Task[None]]]:
    """A relay in this process; the trainer's end of its connection, and its task."""
    ours, theirs = socket.socketpair()
    task = asyncio.create_task(relay(theirs, route, PATIENCE))
    with ours:
        yield ours, task
    await task


@on_both_loops
async def test_errors_come_as_they_are() -> None:
    error = CorruptRecord("the CRC is wrong", url="s3://b/a", offset=77, record=3)
    async with Feeder({"train": FakeDataset(fail_at=2, error=error)}) as feeder:
        address = f"{await feeder.listen('tcp://127.0.0.1:0')}/train"
        async with relaying(address=address) as (sock, _):
            async with aclosing(await AsyncFeed.open(sock)) as feed:
                for step in range(2):
                    check(await feed.receive(), step)
                with pytest.raises(CorruptRecord, match="the CRC is wrong") as caught:
                    await feed.receive()
                assert caught.value.fields() == {"url": "s3://b/a", "offset": 77, "record": 3}
        async with relaying(address=address.replace("train", "other")) as (sock, _):
            with pytest.raises(FeederRefused, match="there is no dataset 'other' here"):
                await AsyncFeed.open(sock)


@on_both_loops
async def test_counters_come_with_the_first_batch() -> None:
    async with Feeder({"train": FakeDataset(hang_at=1)}) as feeder:
        address = f"{await feeder.listen('tcp://127.0.0.1:0')}/train"
        async with relaying(address=address) as (sock, _):
            async with aclosing(await AsyncFeed.open(sock)) as feed:
                assert feed.statistics() == {}
                check(await feed.receive(), 0)
                assert feed.statistics() == {"reconnections": 0}


@on_both_loops
async def test_an_outage_that_lasts_says_what_was_tried_and_where_to_go_on() -> None:
    state = fake_dataset.position(3).to_dict()
    route = {"address": "tcp://127.0.0.1:1/train", "retry_for": 0.1, "position": state}
    async with relaying(**route) as (sock, _):
        with pytest.raises(FeederLost, match=r"tried tcp://127\.0\.0\.1:1/train \(") as caught:
            await AsyncFeed.open(sock, position=state)
        assert caught.value.position == state


@on_both_loops
async def test_a_trainer_that_leaves_ends_it_whatever_it_waits_for() -> None:
    dataset = FakeDataset(hang_at=1)
    async with Feeder({"train": dataset}) as feeder:
        address = f"{await feeder.listen('tcp://127.0.0.1:0')}/train"
        async with relaying(address=address) as (sock, task):
            feed = await AsyncFeed.open(sock)
            check(await feed.receive(), 0)
            await feed.aclose()
            await asyncio.wait([task])
        await eventually(lambda: dataset.open_runs == 0)


def test_an_error_on_the_way_is_not_taken_for_the_end_of_the_process() -> None:
    with pytest.raises(FeederLost, match=r"tried tcp://127\.0\.0\.1:1/train \("):
        relayed("tcp://127.0.0.1:1/train", retry_for=0.1)


def test_a_process_that_dies_is_diagnosed() -> None:
    with served({"train": FakeDataset(hang_at=2)}) as feeder:
        with closing(relayed(f"{feeder.listen('tcp://127.0.0.1:0')}/train")) as feed:
            feed.receive()
            os.kill(process_of(feed), signal.SIGKILL)
            with pytest.raises(FeederLost, match="was ended by SIGKILL") as caught:
                feed.receive(), feed.receive()
            assert json.dumps(caught.value.position)


@pytest.mark.parametrize("engine", ["process", "thread", None])
def test_a_stream_has_the_engine_that_it_is_told(engine: Any) -> None:
    with ExitStack() as stack:
        fleet = Fleet(2, stack)
        fleet.datasets[0].hang_at = 5
        with sr.connect(fleet.address, rank=0, world_size=1, engine=engine) as stream:
            assert len(stream.peek(2)) == 2
            for step in range(5):
                check(next(stream), step)
            state = json.loads(json.dumps(stream.state_dict()))
            fleet.end(0)
            assert len(list(stream)) == 7
            assert stream.statistics()["reconnections"] == 1
            stream.load_state_dict(state)
            check(next(stream), 5)
