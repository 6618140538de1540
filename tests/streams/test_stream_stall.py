"""A feeder that is there and sends nothing: ``stall_timeout`` of ``sr.connect``."""

from __future__ import annotations

import json
from typing import Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError, Stalled
from tests.feeder.fake_dataset import FakeDataset, batch
from tests.feeder.support import served
from tests.support import asynchronous


def connect(address: str, **settings: Any) -> sr.Stream:
    return sr.connect(f"{address}/data", rank=0, world_size=1, **settings)


def numbers(step: int) -> list[int]:
    return list(batch(step)["number"])


def test_a_plain_loop_ends_with_the_position() -> None:
    dataset = FakeDataset(hang_at=2)
    with served({"data": dataset}) as feeder:
        address = feeder.listen("tcp://127.0.0.1:0")
        with connect(address, stall_timeout=0.1) as stream:
            assert [list(next(stream)["number"]) for _ in range(2)] == [numbers(0), numbers(1)]
            with pytest.raises(Stalled) as caught:
                next(stream)
            assert caught.value.position == stream.state_dict()
        dataset.hang_at = -1
        again = connect(address)
        again.load_state_dict(json.loads(json.dumps(caught.value.position)))
        with again:
            assert list(next(again)["number"]) == numbers(2)


@asynchronous
async def test_an_asynchronous_loop_ends_with_the_position() -> None:
    with served({"data": FakeDataset(hang_at=1)}) as feeder:
        address = feeder.listen("tcp://127.0.0.1:0")
        async with connect(address, stall_timeout=0.1) as stream:
            assert list((await anext(stream))["number"]) == numbers(0)
            with pytest.raises(Stalled) as caught:
                await anext(stream)
            assert caught.value.position == stream.state_dict()


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_wait_without_a_length(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"stall_timeout.* greater than 0"):
        connect("tcp://127.0.0.1:1", stall_timeout=seconds)
