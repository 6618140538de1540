from __future__ import annotations

import asyncio
import builtins
import socket
import threading
from typing import Any

import pytest

from streamrec.devstore import DevStore
from streamrec.devstore.thread import StoreThread, new_event_loop


class Recorder:
    """A store that tells when it is entered and left."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.thread = ""

    async def __aenter__(self) -> None:
        self.events.append("enter")
        self.thread = threading.current_thread().name

    async def __aexit__(self, *_: object) -> None:
        self.events.append("exit")


def test_the_store_runs_in_a_thread_of_its_own() -> None:
    store = Recorder()
    thread = StoreThread(store)
    thread.start()
    assert store.events == ["enter"]
    assert store.thread == "devstore" != threading.current_thread().name
    thread.stop()
    assert store.events == ["enter", "exit"]


def test_nothing_is_left_behind() -> None:
    with DevStore():
        assert "devstore" in [thread.name for thread in threading.enumerate()]
    assert "devstore" not in [thread.name for thread in threading.enumerate()]


def test_what_keeps_it_from_starting_is_raised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        store = DevStore(port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            store.__enter__()
    assert "devstore" not in [thread.name for thread in threading.enumerate()]


def test_without_uvloop_asyncios_own_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "uvloop":
            raise ImportError(name)
        return plain(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.BaseEventLoop)
