"""Hostile peers: a client raises errors of the tree, and a feeder answers FAULT."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.config import DatasetSettings
from streamrec.errors import RemoteProtocolError, StreamrecError
from streamrec.feeder.client.client import BlockingFeed
from streamrec.pipeline.batch import payload
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.order.coordinates import pack
from streamrec.streams import handle
from streamrec.wire.error_fields import to_fields
from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    End,
    Fault,
    Goaway,
    Hello,
    Statistics,
    Subscribe,
    Welcome,
)
from streamrec.wire.protocol import Connection, Role
from tests.feeder import fake_dataset
from tests.feeder.client.test_session import SETTINGS
from tests.feeder.shards import write_shards
from tests.feeder.support import served
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamrec.plan.state.position import Position
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.streams.ranks import Rank
    from streamrec.streams.start import Description
    from streamrec.wire.messages import Message
    from tests.feeder.support import ServedFeeder

FINGERPRINT = fake_dataset.fingerprint().to_dict()
POSITION = fake_dataset.position(1).to_dict()
COUNTERS = {"requests": 3, "concurrency_reason": "the start", "components": {"a": 1}}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([1 << 31, 1 << 32, 1 << 63, 1 << 64, -(1 << 63), 10**400])
    | st.floats()
    | st.text(max_size=9)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)


@st.composite
def changed(draw: st.DrawFn, good: Any) -> Any:
    """Draw a mapping with a few values changed, or something that is no mapping."""
    if draw(st.integers(0, 9)) == 0:
        return draw(values)
    some = st.sampled_from(sorted(good))
    new = {name: draw(values) for name in draw(st.sets(some, max_size=2))}
    gone = draw(st.sets(some, max_size=1))
    return {name: value for name, value in {**good, **new}.items() if name not in gone}


def said(good: Any) -> st.SearchStrategy[bytes]:
    """JSON like the good one, or any other bytes."""
    return (
        changed(good).map(lambda value: json.dumps(value).encode())
        | st.binary(max_size=20)
        | st.sampled_from([b"[" * 5_000, b'{"a":' * 5_000, b"1" * 5_000])
    )


faults = said(to_fields(RemoteProtocolError("x")) | {"url": "x", "offset": 1, "position": {}})
encoded = payload.encode(fake_dataset.batch(0))


@st.composite
def batches(draw: st.DrawFn) -> BatchMessage:
    """Draw a batch with a few bytes of its description changed, or with another payload."""
    metadata = bytearray(encoded.metadata)
    for _ in range(draw(st.integers(0, 3))):
        metadata[draw(st.integers(0, len(metadata) - 1))] = draw(st.integers(0, 255))
    whole = b"".join(encoded.payload)
    kept = draw(st.sampled_from([len(whole), len(whole), len(whole) // 2, 0]))
    return BatchMessage(bytes(metadata), (memoryview(whole[:kept]),) if kept else ())


messages = (
    batches()
    | said(POSITION).map(End)
    | said(COUNTERS).map(Statistics)
    | st.builds(Fault, faults, st.booleans())
    | st.text(max_size=20).map(Goaway)
)


class Hostile:
    """A feeder that says what it is told to, however the client answers."""

    def __init__(self, welcome: Welcome, told: Sequence[Message]) -> None:
        ours, feeder = Connection(Role.CLIENT), Connection(Role.SERVER)
        _exchange(ours, feeder, Hello(dataset="stream", world_size=1))
        self._said = b"".join(feeder.send(welcome))
        ours.state = feeder.state  # the client may take offence, and still gets the rest
        _exchange(ours, feeder, Subscribe(0))
        _exchange(ours, feeder, Credit(1 << 20))
        for message in told:
            if not feeder.over and feeder.state is ours.state:
                self._said += b"".join(feeder.send(message))

    def start(
        self, _: Description, rank: Rank, position: ResumePoint, functions: object
    ) -> BlockingFeed:
        theirs, ours = socket.socketpair()
        with theirs:
            theirs.sendall(self._said)
            theirs.shutdown(socket.SHUT_WR)
            return BlockingFeed.open(ours, position=position, patience=5.0)


def _exchange(sender: Connection, receiver: Connection, message: Message) -> None:
    data = b"".join(sender.send(message))
    receiver.get_buffer()[: len(data)] = data
    receiver.buffer_updated(len(data))
    list(receiver.events())


def use(feeder: Hostile) -> None:
    """Do with a stream all that one can."""
    stream = sr.connect("unix:///nowhere#stream", rank=0, world_size=1)
    started = patch("streamrec.streams.session_owner.start", feeder.start)
    try:
        with contextlib.suppress(StreamrecError), started, stream:
            facts = stream.surplus, repr(stream), stream.statistics(), handle.of(stream).summary()
            assert len(facts) == 4
            with contextlib.suppress(TypeError):  # as of a length that is not known
                len(stream)
            with contextlib.suppress(StreamrecError):
                assert len(stream.shards) == stream.fingerprint.shards
            for item in stream:
                assert repr(item)
                assert stream.epoch >= 0
            json.dumps(stream.state_dict())
    finally:
        stream.close()


@given(said(FINGERPRINT), said(SETTINGS))
def test_any_welcome(fingerprint: bytes, settings: bytes) -> None:
    use(Hostile(Welcome(3, fingerprint, settings), [encoded]))


@pytest.mark.parametrize("batch_size", [fake_dataset.ROWS, None])
@given(told=st.lists(messages, min_size=1, max_size=3))
def test_any_message(batch_size: int | None, told: list[Message]) -> None:
    fingerprint = FINGERPRINT | {"global_batch": batch_size}
    facts = SETTINGS | {"batch_size": batch_size}
    welcome = Welcome(3, json.dumps(fingerprint).encode(), json.dumps(facts).encode())
    use(Hostile(welcome, told))


# -- a feeder --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def feeder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFeeder]:
    pattern = write_shards(tmp_path_factory.mktemp("shards"), shards=4, records=10)
    source = [pattern.replace("*", str(shard)) for shard in range(4)]
    common: dict[str, Any] = {"source": source, "batch_size": 3, "memory_budget": "64MiB"}
    mixed = {"source": {"a": source[:2], "b": source[2:]}, "weights": {"a": 1, "b": 1}}
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "shuffled": {"shuffle": True, "shuffle_window": "1KiB"},
        "mixed": {**mixed, "epochs": None},
        "buckets": {"length_buckets": 2, "shuffle_window": "1KiB"},
    }
    opened: list[Dataset] = []
    with served({}) as running:
        for name, more in kinds.items():
            settings = DatasetSettings.model_validate({**common, **more})
            opened.append(running.call(Dataset.open(settings)))
            running.feeder.datasets[name] = opened[-1]
        yield running
        running.call(running.feeder.aclose())
        for dataset in opened:
            running.call(dataset.aclose())


NAMES = ("plain", "shuffled", "mixed", "buckets")
numbers = st.integers(0, 5) | st.sampled_from([48, 1 << 16, (1 << 31) - 1, (1 << 32) - 1])


def talk(feeder: ServedFeeder, hello: Hello, subscribe: Subscribe) -> list[Message]:
    """Return a feeder's answers, up to its first batch, its end or its last message."""
    ours, serving = feeder.connect()
    machine, heard = Connection(Role.CLIENT), list[Any]()
    with ours:
        ours.settimeout(60)
        ours.sendall(b"".join(machine.send(hello)))
        while not any(isinstance(one, BatchMessage | End | Fault | Goaway) for one in heard):
            count = ours.recv_into(machine.get_buffer())
            assert count, "it hangs up without a word"
            machine.buffer_updated(count)
            heard += (new := list(machine.events()))
            if any(isinstance(one, Welcome) for one in new):
                for message in (subscribe, Credit(1 << 30)):
                    ours.sendall(b"".join(machine.send(message)))
    serving.result(100)
    return heard


def faultless(caplog: pytest.LogCaptureFixture) -> bool:
    return not [one for one in caplog.records if one.levelno >= logging.ERROR]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
@given(
    hello=st.builds(
        Hello,
        dataset=st.sampled_from(NAMES) | st.text(max_size=20),
        world_size=numbers,
        batch_size=numbers,
        position_version=numbers,
        protocol_versions=st.lists(numbers, max_size=3).map(lambda some: (*some, 2)),
        token=st.text(max_size=20),
    ),
    rank=numbers,
)
def test_any_hello(
    feeder: ServedFeeder, caplog: pytest.LogCaptureFixture, hello: Hello, rank: int
) -> None:
    assert talk(feeder, hello, Subscribe(rank))
    assert faultless(caplog)


@pytest.fixture(scope="module")
def states(feeder: ServedFeeder) -> dict[str, Position]:
    """Return a position of each dataset, after its first batch."""
    bound, found = feeder.listen("tcp://127.0.0.1:0"), {}
    for name in NAMES:
        with closing(BlockingFeed.open(f"{bound}/{name}")) as feed:
            found[name] = feed.receive().next_position
    return found


@st.composite
def positions(draw: st.DrawFn, good: Position) -> bytes:
    """Draw a position with a few of its coordinates changed."""
    rows = good.rows.copy()
    for _ in range(draw(st.integers(1, 3))):
        row, column = (draw(st.integers(0, side - 1)) for side in rows.shape)
        rows[row, column] = draw(st.integers(0, 50) | st.integers(0, (1 << 48) - 1))
    return json.dumps({**good.to_dict(), "packed": pack(rows)}).encode()


@pytest.mark.parametrize("name", NAMES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
@given(data=st.data())
def test_any_position(
    feeder: ServedFeeder,
    states: dict[str, Position],
    caplog: pytest.LogCaptureFixture,
    name: str,
    data: st.DataObject,
) -> None:
    position = data.draw(said(states[name].to_dict()) | positions(states[name]))
    assert talk(
        feeder, Hello(dataset=name, world_size=1, position_version=3), Subscribe(0, position)
    )
    assert faultless(caplog)
