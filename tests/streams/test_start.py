"""The positions in errors of feeds, from which streams go on, for every kind of session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import FeederDraining, FeederLost, FeedError
from streamrec.feeder.engine import engine
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import served
from tests.pipeline.small_datasets import write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOWHERE = "tcp://127.0.0.1:1/d"


def stay(_: sr.Stream) -> None:
    """Leave a stream at its very beginning."""


def saved(stream: sr.Stream) -> None:
    """Load the state of a stream of before."""
    with served({"train": FakeDataset()}) as feeder:
        with sr.connect(f"{feeder.listen('tcp://127.0.0.1:0')}/train") as before:
            next(before)
            stream.load_state_dict(before.state_dict())


STARTS: list[Any] = [
    pytest.param(stay, False, id="the very beginning"),
    pytest.param(lambda stream: stream.set_epoch(2), True, id="a later epoch"),
    pytest.param(saved, True, id="a state"),
]


def held(stream: sr.Stream, error: FeedError, known: bool) -> None:
    """See that the error says where to go on: nowhere, where nothing was taken or loaded."""
    assert error.position == (stream.state_dict() if known else None)


@pytest.mark.parametrize(("move", "known"), STARTS)
def test_no_feeder(move: Callable[[sr.Stream], None], known: bool) -> None:
    stream = sr.connect(NOWHERE, retry_for=0)
    move(stream)
    with pytest.raises(FeederLost) as caught, stream:
        pass
    held(stream, caught.value, known)


@pytest.mark.parametrize(("move", "known"), STARTS)
@asynchronous
async def test_no_feeder_for_a_loop(move: Callable[[sr.Stream], None], known: bool) -> None:
    stream = sr.connect(NOWHERE, retry_for=0)
    move(stream)
    with pytest.raises(FeederLost) as caught:
        async with stream:
            pass
    held(stream, caught.value, known)


@pytest.mark.parametrize(("move", "known"), STARTS)
def test_a_feeder_that_shuts_down_before_its_first_batch(
    move: Callable[[sr.Stream], None], known: bool
) -> None:
    dataset = FakeDataset(error=FeederDraining("it shuts down"))
    with served({"train": dataset}) as feeder:
        stream = sr.connect(f"{feeder.listen('tcp://127.0.0.1:0')}/train", retry_for=0)
        move(stream)
        dataset.fail_at = stream._cursor.step
        with stream, pytest.raises(FeederDraining) as caught:
            list(stream)
        held(stream, caught.value, known)


@pytest.mark.parametrize("kind", ["process", None])
@pytest.mark.parametrize(("move", "known"), STARTS[:2])
def test_an_engine_process_that_cannot_start(
    move: Callable[[sr.Stream], None],
    known: bool,
    kind: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "PROCESS", "streamrec.no_such_module")
    # With a shuffle no thread begins to read before the process does.
    stream = sr.open(write(tmp_path, ((9,),)), batch_size=3, shuffle=True, engine=kind)
    move(stream)
    with pytest.raises(FeederLost, match="ended with exit code 1") as caught, stream:
        pass
    held(stream, caught.value, known)
