"""What this version saves and sends is what streamrec 0.1.0 saved and sent, byte for byte."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

import streamrec as sr
from streamrec.plan.state.position import VERSION
from streamrec.wire.messages import Kind, Message, Pong
from streamrec.wire.protocol import PROTOCOL_VERSIONS, Connection, Role
from tests.data import frozen
from tests.pipeline.small_datasets import write_index
from tests.wire.support import feed, plain

KIND_AT = 5
"""The place of the message's kind in a frame."""
FROZEN: dict[str, Any] = json.loads(frozen.FILE.read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the shards, and the index that was written then."""
    Path(frozen.copy_shards(tmp_path)).write_bytes(b64decode(FROZEN["index"]))
    return tmp_path


def test_the_versions_are_those_that_are_frozen() -> None:
    assert {case["state"]["version"] for case in FROZEN["orders"].values()} == {VERSION}
    assert PROTOCOL_VERSIONS == (3,)


@pytest.mark.parametrize("name", frozen.ORDERS)
def test_a_state_of_then_goes_on_as_then(name: str, folder: Path) -> None:
    case = FROZEN["orders"][name]
    with frozen.open_order(folder, frozen.ORDERS[name]) as stream:
        stream.load_state_dict(case["state"])
        assert frozen.next_ids(stream) == case["next"]


@pytest.mark.parametrize("name", frozen.ORDERS)
def test_the_state_of_now_is_that_of_then(name: str, folder: Path) -> None:
    case = FROZEN["orders"][name]
    with frozen.open_order(folder, frozen.ORDERS[name]) as stream:
        list(sr.take(stream, frozen.TAKEN))
        state = stream.state_dict()
    state.pop("ends", None)  # has joined since then; who does not know it leaves it aside
    assert state == case["state"]


def test_the_index_of_now_is_that_of_then(tmp_path: Path) -> None:
    url = frozen.copy_shards(tmp_path)
    write_index(f"{tmp_path}/numbers-*.tfrecord", frozen.CHUNK_BYTES)
    assert Path(url).read_bytes() == b64decode(FROZEN["index"])


@pytest.mark.parametrize("title", frozen.TALKS)
def test_what_is_sent_now_is_what_was_sent_then(title: str) -> None:
    now = [(role.value, data) for role, data in frozen.sent(frozen.TALKS[title])]
    then = [(role, b64decode(data)) for role, data in FROZEN["talks"][title]]
    assert now == then


@pytest.mark.parametrize("title", frozen.TALKS)
def test_what_was_sent_then_is_understood(title: str) -> None:
    ends = {role: Connection(role) for role in Role}
    talk = iter(frozen.TALKS[title])
    for name, text in FROZEN["talks"][title]:
        role, data = Role(name), b64decode(text)
        if data[KIND_AT] == Kind.PONG:
            ends[role].replies()
            message: Message = Pong(7)
        else:
            _, message = next(talk)
            ends[role].send(message)
        assert feed(ends[role.peer], data) == [plain(message)]
    assert list(talk) == []


def test_each_kind_of_message_is_frozen() -> None:
    kinds = {b64decode(data)[KIND_AT] for talk in FROZEN["talks"].values() for _, data in talk}
    assert kinds == {*Kind}
