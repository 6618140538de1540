"""Fetch processes that are no processes: their programs run in the event loop of the test."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from typing import TYPE_CHECKING, Any

from streamrec.stores.fetch_process import RangeServer
from streamrec.stores.open import Stores
from streamrec.stores.processes import fetch_processes

if TYPE_CHECKING:
    import pytest

    from streamrec.stores.base.protocol import Store


class InLoop:
    """The server of one stream in this loop, in place of the ``Popen`` of a process."""

    pid = 4711

    def __init__(self, order: bytes) -> None:
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock = ours
        self.stores = Stores(json.loads(order)["options"])
        self.server = RangeServer(self.stores, self._theirs, asyncio.Event())
        self.server.packets.send("ready")
        self.returncode: int | None = None
        self.served: list[str] = []
        """The URLs that were asked for."""
        self._store_for = self.stores.store_for
        self.stores.store_for = self._note  # type: ignore[method-assign]
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None

    def kill(self) -> None:
        """End as a process does: at once, and its requests with it."""
        if self.returncode is None:
            self.returncode = -signal.SIGKILL
            for task in self.server._tasks.values():
                task.cancel()
            self.server.packets.close()
            self._closing = self._loop.create_task(self.stores.aclose())

    def _note(self, url: str) -> Store:
        self.served.append(url)
        return self._store_for(url)

    def wait(self) -> int | None:
        """Return how it ended."""
        return self.returncode


def run_in_loop(monkeypatch: pytest.MonkeyPatch) -> list[InLoop]:
    """Start no fetch processes in this test; return the list of those that stand for them."""
    started: list[InLoop] = []

    def spawn(order: bytes) -> tuple[Any, socket.socket]:
        started.append(InLoop(order))
        return started[-1], started[-1].sock

    monkeypatch.setattr(fetch_processes, "_spawn", spawn)
    return started
