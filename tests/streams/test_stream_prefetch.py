"""Streams that begin to read before anybody iterates."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ObjectNotFound
from streamrec.flow import forks
from streamrec.streams.start import start
from tests.feeder.support import serving, until
from tests.forked_children import in_forked_child
from tests.pipeline.small_datasets import identities, settings_of, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.streams.loops import PlainSession


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path, ((40,) * 9, (30,) * 8))


def opened(source: str, **settings: Any) -> sr.Stream:
    return sr.open(source, **{"batch_size": 3, "lanes": 2, "engine": "thread", **settings})


def of_feeder(address: str, engine: Any) -> sr.Stream:
    return sr.connect(f"{address}/data", engine=engine)


class Held:
    """Starts of sessions that wait until the test lets them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions: list[PlainSession] = []
        self.may_start, self.has_started = threading.Event(), threading.Event()
        monkeypatch.setattr("streamrec.streams.session_owner.start", self.start)

    def start(self, *arguments: Any) -> PlainSession:
        assert self.may_start.wait(60)
        try:
            self.sessions.append(start(*arguments))
        finally:
            self.has_started.set()
        return self.sessions[-1]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    starts = Held(monkeypatch)
    yield starts
    starts.may_start.set()


@pytest.mark.parametrize("settings", [{}, {"engine": None}, {"engine": None, "shuffle": True}])
def test_the_same_batches_come(source: str, settings: Any) -> None:
    with opened(source, **settings) as stream:
        expected = identities(list(stream))
    stream = opened(source, **settings)
    stream.prefetch()
    stream.prefetch()
    with stream:
        assert identities(list(stream)) == expected


@pytest.mark.parametrize("engine", [None, "thread", "process"])
def test_of_a_feeder(source: str, engine: Any) -> None:
    with serving(settings_of(source, batch_size=3)) as address:
        stream = of_feeder(address, engine)
        stream.prefetch()
        with stream, of_feeder(address, engine) as other:
            assert identities(list(stream)) == identities(list(other))


def test_it_returns_before_the_session_has_started(source: str, held: Held) -> None:
    stream = opened(source)
    stream.prefetch()
    assert stream.statistics()["batches"] == 0
    assert not held.sessions
    held.may_start.set()
    with stream:
        assert stream.shards
        assert [stream._session] == held.sessions


def test_an_error_is_raised_where_the_loop_begins(tmp_path: Path) -> None:
    stream = opened(str(tmp_path / "*.tfrecord"))
    stream.prefetch()
    with pytest.raises(ObjectNotFound):
        next(iter(stream))
    with sr.TFRecordWriter(str(tmp_path / "0.tfrecord")) as writer:
        writer.write(b"x")
    assert [len(batch) for batch in stream] == [1]


def test_a_stream_that_is_moved_reads_elsewhere(source: str) -> None:
    with opened(source) as other:
        first = identities([next(other)])
        state = other.state_dict()
        rest = identities(list(other))
    stream = opened(source)
    stream.prefetch()
    stream.load_state_dict(state)
    stream.prefetch()
    with stream:
        assert identities(list(stream)) == rest
        stream.rewind()
        assert identities(list(stream)) == first + rest


@asynchronous
async def test_a_loop_of_an_event_loop_begins_anew(source: str) -> None:
    stream = opened(source)
    stream.prefetch()
    async with stream, opened(source) as other:
        first = identities([batch async for batch in stream])
        assert first == identities([batch async for batch in other])


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_session_that_comes_too_late_is_not_left_open(source: str, held: Held, how: str) -> None:
    before = {*threading.enumerate()}
    stream = opened(source)
    stream.prefetch()
    if how == "close":
        stream.close()
    else:
        del stream
    held.may_start.set()
    assert held.has_started.wait(60)
    for thread in threading.enumerate():
        if thread.name == "streamrec-prefetch":
            thread.join(60)
    until(lambda: {*threading.enumerate()} <= before)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_starts_its_own(
    source: str, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.0)  # as a store that does not answer
    stream = opened(source)
    stream.prefetch()

    def read() -> list[Any]:
        held.may_start.set()
        return identities(list(stream))

    batches = in_forked_child(read)
    held.may_start.set()
    assert batches == identities(list(stream))


@pytest.mark.parametrize("engine", [None, "thread", "process"])
def test_a_stream_that_is_closed_waits_no_longer_for_an_absent_feeder(engine: Any) -> None:
    stream = of_feeder("tcp://127.0.0.1:1", engine)
    before = {*threading.enumerate()}
    stream.prefetch()
    (thread,) = (t for t in {*threading.enumerate()} - before if t.name == "streamrec-prefetch")
    stream.close()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("settings", "length"),
    [({"steps_per_epoch": 4}, 4), ({"steps_per_epoch": 4, "epochs": 3}, 12), ({}, None)],
)
def test_a_length_of_the_settings_waits_for_no_session(
    source: str, held: Held, settings: Any, length: int | None
) -> None:
    stream = opened(source, **settings)
    stream.prefetch()
    assert stream.surplus is None
    if length is None:
        with pytest.raises(TypeError, match="the length is not known"):
            len(stream)
    else:
        assert len(stream) == length
    assert not held.sessions
    stream.close()
