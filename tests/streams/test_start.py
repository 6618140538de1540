"""The kinds of sessions that are started, and the positions in their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config import StreamSettings
from streamrec.errors import FeederDraining, FeederLost, FeedError
from streamrec.feeder.client.healing import BlockingHealingFeed
from streamrec.feeder.engine import engine
from streamrec.streams import start
from streamrec.streams.session import (
    ThreadFeed,
    ThreadSession,
    open_engine,
    open_relay,
)
from streamrec.streams.warm_start import WarmStartSession
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
    monkeypatch.setattr(start, "has_gil", lambda: True)
    # Where damage is skipped, no thread begins to read before the process does.
    source = write(tmp_path, ((9,),))
    stream = sr.open(source, batch_size=3, on_corrupt="skip", corrupt_budget=1, engine=kind)
    move(stream)
    with pytest.raises(FeederLost, match="ended with exit code 1") as caught, stream:
        pass
    held(stream, caught.value, known)


@pytest.mark.parametrize(
    ("named", "has_gil", "session"),
    [
        (None, True, WarmStartSession),
        (None, False, ThreadSession),
        ("process", False, open_engine),
        ("thread", True, ThreadSession),
    ],
)
def test_the_reader_of_shards(
    named: Any, has_gil: bool, session: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "has_gil", lambda: has_gil)
    settings = StreamSettings(source="a.tfrecord", batch_size=2, engine=named)
    assert start._reader_of(settings, settings.dataset()) is session


def test_a_thread_reads_where_there_is_no_gil_in_place_of_a_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "has_gil", lambda: True)
    settings = StreamSettings(
        source="a.tfrecord", batch_size=2, on_corrupt="skip", corrupt_budget=1
    )
    assert start._reader_of(settings, settings.dataset()) is open_engine
    monkeypatch.setattr(start, "has_gil", lambda: False)
    assert start._reader_of(settings, settings.dataset()) is ThreadSession


def test_a_process_that_was_started_ahead_is_taken_without_a_gil_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "has_gil", lambda: False)
    monkeypatch.setattr(start, "is_started_ahead", lambda: True)
    settings = StreamSettings(source="a.tfrecord", batch_size=2)
    assert start._reader_of(settings, settings.dataset()) is open_engine


def test_a_process_reads_where_greenlets_are_in_the_place_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "has_gil", lambda: True)
    monkeypatch.setattr(start, "has_threads", lambda: False)
    settings = StreamSettings(source="a.tfrecord", batch_size=2)
    assert start._reader_of(settings, settings.dataset()) is open_engine


@pytest.mark.parametrize(
    ("named", "tls", "has_gil", "feed"),
    [
        (None, {}, True, open_relay),
        (None, {}, False, ThreadFeed),
        ("process", {}, False, open_relay),
        (None, None, False, BlockingHealingFeed),
        (None, None, True, BlockingHealingFeed),
    ],
)
def test_the_receiver_from_a_feeder(
    named: Any, tls: Any, has_gil: bool, feed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "has_gil", lambda: has_gil)
    address = "tls://127.0.0.1:1/d" if tls is not None else NOWHERE
    settings = sr.connect(address, tls=tls, engine=named)._description
    assert isinstance(settings, start.FeederSettings)
    assert start._feed_for(settings) is feed
