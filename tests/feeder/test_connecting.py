from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import FeederLost
from streamrec.feeder.connecting import connect, connect_async
from streamrec.wire import Connection, Role
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
