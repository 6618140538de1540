"""Streams that an engine process receives from a feeder: with the real process."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import CorruptRecord, FeederLost, OtherOrder
from streamrec.streams.session import open_relay
from tests.feeder import fake_dataset
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import gone, served, server_settings
from tests.feeder.test_client import all_now, check
from tests.feeder.test_healing import Fleet, rest

if TYPE_CHECKING:
    from streamrec.feeder.client import BlockingFeed


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


def test_what_does_not_heal_comes_as_it_is() -> None:
    error = CorruptRecord("the CRC is wrong", url="s3://b/a", offset=77, record=3)
    with served({"train": FakeDataset(fail_at=2, error=error)}) as feeder:
        place = feeder.listen("tcp://127.0.0.1:0")
        with closing(relayed(f"{place}/train")) as feed:
            for step in range(2):
                check(feed.receive(), step)
            with pytest.raises(CorruptRecord, match="the CRC is wrong") as corrupt:
                feed.receive()
            assert corrupt.value.fields() == {"url": "s3://b/a", "offset": 77, "record": 3}
        with pytest.raises(OtherOrder, match="seed was 3 and is 0"):
            relayed(f"{place}/train", fingerprint=fake_dataset.fingerprint(seed=3))
    state = fake_dataset.position(3).to_dict()
    with pytest.raises(FeederLost, match=r"tried tcp://127\.0\.0\.1:1/train \(") as lost:
        relayed("tcp://127.0.0.1:1/train", retry_for=0.1, position=state)
    assert lost.value.position == state


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
