from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError, FeederLost, FeederRefused
from streamrec.feeder.access.address import Address
from streamrec.feeder.client.connecting import (
    _failed,
    connect,
    connect_async,
    look_up,
    look_up_async,
)
from streamrec.wire.protocol import Connection, Role
from tests.feeder.support import PATIENCE, on_both_loops

if TYPE_CHECKING:
    from pathlib import Path


def test_a_ready_made_socket_is_taken_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert connect(ours) is ours


def test_no_feeder(tmp_path: Path) -> None:
    with pytest.raises(FeederLost, match="check that a feeder runs there"):
        connect(Address(path=f"{tmp_path}/none"))


@on_both_loops
async def test_no_feeder_for_asyncio(tmp_path: Path) -> None:
    with pytest.raises(FeederLost, match="check that a feeder runs there"):
        await connect_async(Address(path=f"{tmp_path}/none"), Connection(Role.CLIENT))


def test_a_failed_connection_says_what_to_check() -> None:
    place = Address.parse("tcp://a:1/b")
    error = _failed(place, ConnectionRefusedError(111, "Connection refused"))
    assert str(error).startswith("cannot connect to tcp://a:1/b: Connection refused; check that")
    assert "TimeoutError" in str(_failed(place, TimeoutError()))


def test_plain_code_leaves_tls_to_an_event_loop() -> None:
    with pytest.raises(ConfigError, match="TLS is spoken by an engine process"):
        connect(Address("127.0.0.1", 1, tls=True))


def test_a_name_is_every_address_that_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ["10.0.0.9", "10.0.0.1", "10.0.0.9"]

    def answer(host: str, port: int, **_: object) -> list[Any]:
        if host == "nowhere":
            raise socket.gaierror("unknown")
        return [(0, 0, 0, "", (number, port)) for number in numbers]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    places = Address.parse_all("tcp://feeders:7070,10.0.0.5:7070,nowhere:7071/train")
    found = look_up(places)
    assert [place.ip for place in found] == ["10.0.0.1", "10.0.0.9", None, None]
    assert [place.host for place in found] == ["feeders", "feeders", "10.0.0.5", "nowhere"]
    assert str(found[0]) == "tcp://feeders:7070/train (10.0.0.1)"
    assert asyncio.run(look_up_async(places)) == found
    unix = Address.parse_all("unix:///a#train")
    assert look_up(unix) == asyncio.run(look_up_async(unix)) == list(unix)


def test_names_that_nobody_answers_for_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(PATIENCE) and [])
    places = Address.parse_all("tcp://feeders:7070/train")

    async def looked_up() -> list[Address]:
        try:
            return await look_up_async(places, 0.01)
        finally:
            released.set()

    assert asyncio.run(looked_up()) == list(places)


def test_what_openssl_refuses_is_not_tried_again() -> None:
    place = Address("a", 1, dataset="b", tls=True)
    error = ssl.SSLError(1, "wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    assert isinstance(_failed(place, error), FeederRefused)
    assert "tls://a:1/b does not speak TLS" in str(_failed(place, error))
    error.reason = "UNEXPECTED_EOF_WHILE_READING"
    assert isinstance(_failed(place, error), FeederLost)
