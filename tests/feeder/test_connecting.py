from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import FeederLost
from streamrec.feeder.address import Address
from streamrec.feeder.connecting import _failed, connect, connect_async
from streamrec.wire.protocol import Connection, Role
from tests.feeder.support import on_both_loops

if TYPE_CHECKING:
    from pathlib import Path


def test_a_ready_made_socket_is_taken_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert connect(ours) is ours


def test_no_feeder(tmp_path: Path) -> None:
    with pytest.raises(FeederLost, match="check that a feeder runs there"):
        connect(f"unix://{tmp_path}/none#train")


@on_both_loops
async def test_no_feeder_for_asyncio(tmp_path: Path) -> None:
    with pytest.raises(FeederLost, match="check that a feeder runs there"):
        await connect_async(f"unix://{tmp_path}/none#train", Connection(Role.CLIENT))


def test_a_failed_connection_says_what_to_check() -> None:
    place = Address.parse("tcp://a:1/b")
    error = _failed(place, ConnectionRefusedError(111, "Connection refused"))
    assert str(error).startswith("cannot connect to tcp://a:1/b: Connection refused; check that")
    assert "TimeoutError" in str(_failed(place, TimeoutError()))
