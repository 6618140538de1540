from __future__ import annotations

import gc
import json
import os
from typing import Any

import pytest

from streamrec.errors import (
    FeederDraining,
    FeederLost,
    FeederRefused,
    ObjectNotFound,
    RemoteProtocolError,
    StreamrecError,
)
from streamrec.feeder.client.session import FeedState
from streamrec.feeder.client.shared import Inbox, Outbox, create_memory
from streamrec.flow.channel import EndOfStream
from streamrec.flow.shared_memory import PAGE
from streamrec.pipeline.batch import payload
from streamrec.plan.state.resume_point import Beginning
from streamrec.wire.error_fields import to_fields
from streamrec.wire.frame import frame_size
from streamrec.wire.messages import (
    Credit,
    End,
    Fault,
    Goaway,
    Message,
    Ping,
    Release,
    Shared,
    Statistics,
    Subscribe,
    Welcome,
)
from tests.feeder import fake_dataset
from tests.feeder.fake_dataset import received

needs_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd_create here")


SETTINGS = {
    "batch_size": fake_dataset.ROWS,
    "lanes": fake_dataset.LANES,
    "shard_count": 2,
    "shards": ["memory://double/a", "memory://double/b"],
    "features": None,
    "length": None,
    "surplus": None,
    "epochs": 1,
    "steps_per_epoch": None,
    "remainder": None,
    "contents": {
        "length_buckets": None,
        "check_crc": True,
        "on_corrupt": "raise",
        "filter": None,
        "map": None,
        "transform": None,
        "pack": None,
    },
}


def feed_state(**options: Any) -> FeedState:
    return FeedState("train", **{"credit_bytes": 100_000, **options})


def welcome(fingerprint: Any = None, settings: Any = None) -> Welcome:
    fingerprint = fake_dataset.fingerprint().to_dict() if fingerprint is None else fingerprint
    settings = SETTINGS if settings is None else settings
    return Welcome(3, json.dumps(fingerprint).encode(), json.dumps(settings).encode())


def welcomed(**options: Any) -> FeedState:
    ours = feed_state(**options)
    ours.welcome(welcome())
    return ours


def fault(error: Exception) -> Fault:
    return Fault(json.dumps(to_fields(error)).encode(), retryable=False)


def test_a_hello_says_who_and_what() -> None:
    hello = feed_state(rank=1, world_size=2, batch_size=5, token="t").hello
    assert (hello.dataset, hello.world_size, hello.batch_size, hello.token) == ("train", 2, 5, "t")


@pytest.mark.parametrize(
    "state", [None, fake_dataset.position(3), fake_dataset.position(3).to_dict()]
)
def test_a_feed_begins_where_it_should(state: Any) -> None:
    subscribe, credit = feed_state(position=state).request()
    assert isinstance(subscribe, Subscribe)
    expected = b"" if state is None else json.dumps(fake_dataset.position(3).to_dict()).encode()
    assert subscribe.position == expected
    assert credit == Credit(100_000)


def test_credit_is_granted_a_quarter_at_a_time() -> None:
    ours = welcomed()
    ours.request()
    owed = 0
    for step in range(100):
        message = received(payload.encode(fake_dataset.batch(step)))
        assert ours.take(message).next_position.step == step + 1
        owed += frame_size(len(message.metadata), message.payload_size)
        due = ours.due()
        assert due == ([] if owed * 4 < 100_000 else [Credit(owed)])
        owed = 0 if due else owed
    assert ours.position == fake_dataset.position(100).to_dict()


@needs_memory
def test_places_are_released_along_with_credit() -> None:
    encoded = payload.encode(fake_dataset.batch(0))
    content = b"".join(encoded.payload)
    with create_memory(4 * PAGE) as fd:
        assert fd is not None
        outbox, ours = Outbox(fd, 4 * PAGE), welcomed(credit_bytes=8 * len(content))
        ours.inbox = Inbox(fd)
    ours.request()
    batch = ours.take(outbox.put(encoded))
    assert ours.due() == []
    second = ours.take(outbox.put(encoded))
    gc.collect()
    assert ours.due() == [Credit(2 * len(content))], "both batches are still there"
    del batch
    for _ in range(2):
        second = ours.take(outbox.put(encoded))
    gc.collect()
    release, credit = ours.due()
    assert release == Release((0, PAGE, 2 * PAGE))
    assert credit == Credit(2 * len(content))
    del second


def test_the_end_moves_the_position() -> None:
    ours = welcomed()
    with pytest.raises(EndOfStream):
        ours.take(End(json.dumps(fake_dataset.position(10).to_dict()).encode()))
    assert ours.over
    assert ours.position == fake_dataset.position(10).to_dict()
    ours.seek(fake_dataset.position(2))
    ours.request()
    assert not ours.over
    assert ours.position == fake_dataset.position(2).to_dict()


def test_the_counters_are_the_last_that_were_told() -> None:
    ours = feed_state()
    assert not ours.note(received(payload.encode(fake_dataset.batch(0))))
    assert ours.statistics() == {}
    assert ours.note(Statistics(b'{"requests": 3, "reason": "the start"}'))
    assert ours.note(Statistics(b'{"requests": 4}'))
    assert ours.statistics() == {"requests": 4}


@pytest.mark.parametrize("counters", [b"", b"[1]", b"[" * 100_000, b"\xff"])
def test_counters_that_cannot_be_read(counters: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="STATISTICS cannot be read"):
        feed_state().note(Statistics(counters))


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        (Goaway(""), FeederDraining, "shuts down"),
        (Goaway("move"), FeederDraining, "move"),
        (fault(ObjectNotFound("gone", url="s3://b/a")), ObjectNotFound, "s3://b/a: gone"),
        (fault(FeederRefused("no")), FeederRefused, "no"),
        (fault(KeyError("x")), StreamrecError, "KeyError"),
        (Fault(b"[", retryable=False), RemoteProtocolError, "cannot be read"),
        (Fault(b"[1]", retryable=False), RemoteProtocolError, "cannot be read"),
        (End(b"[1]"), RemoteProtocolError, "END cannot be read"),
        (Ping(1), RemoteProtocolError, "PING came instead"),
        (Shared(b"", (0,), (1,)), RemoteProtocolError, "in shared memory, and there is none"),
    ],
)
def test_what_ends_a_feed(message: Message, error: type[Exception], words: str) -> None:
    ours = feed_state(position=fake_dataset.position(4))
    with pytest.raises(error, match=words) as caught:
        ours.take(message)
    if isinstance(caught.value, FeederDraining | FeederRefused):
        assert ours.lost(caught.value).fields()["position"] == fake_dataset.position(4).to_dict()


@needs_memory
@pytest.mark.parametrize(
    ("offsets", "sizes", "words"),
    [
        ((0,), (), "places without sizes"),
        ((0, PAGE), (1,), "places without sizes"),
        ((0,), (PAGE + 1,), "not in a shared memory"),
        ((0,), (4,), "belong to no array"),
    ],
)
def test_places_that_cannot_be(
    offsets: tuple[int, ...], sizes: tuple[int, ...], words: str
) -> None:
    with create_memory(PAGE) as fd:
        assert fd is not None
        ours = welcomed()
        ours.inbox = Inbox(fd)
    with pytest.raises(RemoteProtocolError, match=words):
        ours.take(Shared(b"", offsets, sizes))


@pytest.mark.parametrize(
    "message",
    [
        Welcome(9, b"{}", b"{}"),
        Welcome(1, b"{", b"{}"),
        welcome({"names": 5}),
        welcome([]),
        Welcome(3, json.dumps(fake_dataset.fingerprint().to_dict()).encode(), b"[1]"),
        welcome(settings={}),
        welcome({**fake_dataset.fingerprint().to_dict(), "lanes": 0}),
        welcome({**fake_dataset.fingerprint().to_dict(), "shards": -2}),
        *(welcome(settings=SETTINGS | {name: "x"}) for name in SETTINGS),
        *(welcome(settings=SETTINGS | {name: 1 << 70}) for name in SETTINGS),
        welcome(settings=SETTINGS | {"lanes": 8}),
        welcome(settings=SETTINGS | {"batch_size": 9}),
        welcome(settings=SETTINGS | {"shard_count": 3, "shards": None}),
        welcome(settings=SETTINGS | {"shards": ["memory://double/a"]}),
        Welcome(1, b"[" * 100_000, b"{}"),
    ],
)
def test_a_welcome_that_cannot_be_read(message: Welcome) -> None:
    with pytest.raises(RemoteProtocolError):
        feed_state().welcome(message)


def test_a_welcome() -> None:
    ours = feed_state(fingerprint=fake_dataset.fingerprint())
    ours.welcome(welcome(settings=SETTINGS | {"of a later feeder": 5}))
    assert ours.fingerprint == fake_dataset.fingerprint()
    assert ours.settings == SETTINGS


def test_a_welcome_to_more_ranks_than_lanes_serve() -> None:
    fingerprint = fake_dataset.fingerprint(global_batch=24).to_dict()
    with pytest.raises(RemoteProtocolError, match="4 lanes, which 3 ranks cannot share"):
        feed_state(world_size=3).welcome(welcome(fingerprint))


@pytest.mark.parametrize(
    "position",
    [
        fake_dataset.position(10, 1, 2),
        fake_dataset.position(10, fingerprint=fake_dataset.fingerprint("others")),
    ],
)
def test_an_end_of_another_stream(position: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="of another stream, or another rank"):
        welcomed().take(End(json.dumps(position.to_dict()).encode()))


def test_what_a_feeder_says_is_cut_and_steers_no_terminal() -> None:
    text = "\x1b[2Jgone\a" + "x" * (15 << 20)
    refused = fault(FeederRefused("x"))
    fields = json.loads(refused.fields) | {"message": text, "type": "ObjectNotFound", "url": text}
    messages: list[Message] = [Fault(json.dumps(fields).encode(), retryable=False), Goaway(text)]
    for message in messages:
        with pytest.raises(StreamrecError) as caught:
            welcomed().take(message)
        said = str(caught.value)
        assert len(said) < 10_000
        assert "gone" in said
        assert "cut: there are" in said
        assert said.isprintable()


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "ObjectNotFound", "url": {"x": 1}},
        {"type": "CorruptRecord", "offset": "x", "record": 1.5, "feature": [1]},
        {"type": "CorruptRecord", "offset": 1 << 80, "record": True},
        {"type": "FeederLost", "position": "x"},
        {"type": ["x"], "message": {"y": [1]}},
    ],
)
def test_a_fault_of_which_fields_cannot_be(fields: Any) -> None:
    with pytest.raises(StreamrecError) as caught:
        welcomed().take(Fault(json.dumps(fields).encode(), retryable=False))
    assert caught.value.fields() == {}


@pytest.mark.parametrize("place", [None, Beginning()])
def test_the_very_beginning_is_no_position(place: Any) -> None:
    ours = feed_state(position=place)
    assert ours.position is None
    lost = ours.lost(FeederLost("x"))
    assert isinstance(lost, FeederLost)
    assert lost.position is None


def test_the_beginning_of_a_later_epoch_is_one() -> None:
    assert feed_state(position=Beginning(2)).position == {"version": 3, "step": 0, "epoch": 2}


def test_only_errors_of_feeds_carry_a_position() -> None:
    ours = feed_state(position=fake_dataset.position(4))
    lost = ours.lost(FeederLost("x"))
    assert lost.fields()["position"]["step"] == 4
    assert ours.lost(ObjectNotFound("x")).fields() == {}
