from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from streamrec.feeder.operate.notify import Notifier
from tests.feeder.support import eventually
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Manager:
    """A service manager's socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0"))
        self.socket.setblocking(False)

    def told(self) -> list[str]:
        messages: list[str] = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = f"{tmp_path}/notify" if request.param == "path" else f"@{uuid4()}"
    found = Manager(address)
    with found.socket:
        yield found


def test_the_life_of_a_daemon(manager: Manager) -> None:
    notifier = Notifier.of({"NOTIFY_SOCKET": manager.address})
    notifier.ready()
    notifier.status("serves\n2 clients")
    notifier.status("serves\n2 clients")
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    notifier.stopping()
    ready, status, reloading, stopping = manager.told()
    assert (ready, status, stopping) == ("READY=1", "STATUS=serves 2 clients", "STOPPING=1")
    first, second = reloading.splitlines()
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


@asynchronous
async def test_signs_of_life_and_the_state(manager: Manager) -> None:
    variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000"}
    notifier = Notifier.of({**variables, "WATCHDOG_PID": str(os.getpid())})
    state, told = "opens", list[str]()

    def has_come(*wanted: str) -> Callable[[], bool]:
        def look() -> bool:
            told.extend(manager.told())
            return set(wanted) <= set(told) and told.count("WATCHDOG=1") > 1

        return look

    async with notifier.reporting(lambda: state):
        await eventually(has_come("STATUS=opens"))
        state = "serves"
        await eventually(has_come("STATUS=opens", "STATUS=serves"))


@pytest.mark.parametrize(
    "variables", [{}, {"WATCHDOG_USEC": "2000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}]
)
@asynchronous
async def test_no_watchdog_is_asked_for(variables: dict[str, str], tmp_path: Path) -> None:
    manager = Manager(f"{tmp_path}/notify")
    with manager.socket:
        notifier = Notifier.of({"NOTIFY_SOCKET": manager.address, **variables})
        told: list[str] = []

        def has_come() -> bool:
            told.extend(manager.told())
            return bool(told)

        async with notifier.reporting(lambda: "serves"):
            await eventually(has_come)
        assert told == ["STATUS=serves"]


@pytest.mark.parametrize("variables", [{}, {"NOTIFY_SOCKET": "vsock:2:1"}])
@asynchronous
async def test_nobody_to_tell(variables: dict[str, str]) -> None:
    notifier = Notifier.of(variables)
    notifier.ready()
    async with notifier.reporting(lambda: pytest.fail("asked for nothing")):
        pass


def test_a_manager_that_has_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(f"{tmp_path}/none").ready()
    assert "cannot be told READY=1" in caplog.text
