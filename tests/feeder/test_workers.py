"""A daemon of several real processes, as an operator has it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from streamrec.feeder.client.client import AsyncFeed
from tests.feeder.shards import write_shards
from tests.feeder.support import gone, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

MIB = 1 << 20
SECRET = "swordfish"
CONFIG = """
[server]
listen = ["tcp://127.0.0.1:0", "unix://{path}/feeder.sock"]
status = "127.0.0.1:0"
log_format = "json"
memory_budget = "128MiB"

[datasets.train]
source = "{source}"
batch_size = 16
memory_budget = "1GiB"
epochs = 1000
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


class Daemon:
    """A running daemon."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process = process
        self.path = path
        assert process.stdout is not None
        self.bound = json.loads(process.stdout.readline())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        self.workers = list(map(int, children.split()))

    @property
    def log(self) -> list[dict[str, Any]]:
        lines = (self.path / "log").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def logged(self, part: str) -> list[int]:
        """Return the workers whose records have a text; 0: the supervisor."""
        return [entry.get("worker", 0) for entry in self.log if part in entry["message"]]

    @property
    def memory(self) -> int:
        """The bytes that all processes have; what several share is counted once."""
        total = 0
        for pid in (self.process.pid, *self.workers):
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))
        return total

    def page(self, name: str) -> str:
        with closing(urlopen(f"http://{self.bound['status']}/{name}")) as answer:
            return str(answer.read(), "utf-8")


@contextmanager
def started(path: Path) -> Iterator[Daemon]:
    source = write_shards(path, shards=8, records=50, size=80_000)
    (path / "feeder.toml").write_text(CONFIG.format(path=path, source=source))
    variables = {
        "STREAMREC_SERVER_TOKEN": SECRET,
        "STREAMREC_SERVER_WORKERS": "2",
        "NOTIFY_SOCKET": f"{path}/notify",
    }
    with (path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamrec", "serve", f"{path}/feeder.toml", "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | variables,
            text=True,
        )
    with process:
        try:
            yield Daemon(process, path)
        finally:
            process.kill()


async def eight_clients(daemon: Daemon) -> int:
    """Read from all addresses, and return the most bytes that the daemon had."""
    most = 0

    async def read(opening: Awaitable[AsyncFeed]) -> None:
        nonlocal most
        async with aclosing(await opening) as feed:
            await all_are_there.wait()
            for batch in range(9):
                await feed.receive()
                if batch % 4 == 0:
                    most = max(most, daemon.memory)

    tcp, unix = daemon.bound["listen"]
    all_are_there = asyncio.Barrier(8)
    places = [f"{tcp}/train", f"{unix}#train"] * 4
    opening = [AsyncFeed.open(where, token=SECRET, credit_bytes=MIB) for where in places]
    await asyncio.gather(*map(read, opening))
    return most


def test_it_is_one_daemon_with_one_memory_and_no_secret_is_shown(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{tmp_path}/notify")
        manager.setblocking(False)
        with started(tmp_path) as daemon:
            most = asyncio.run(eight_clients(daemon))
            assert most < 128 * MIB + 200 * MIB + 8 * MIB
            assert daemon.page("readyz") == "ok\n"
            assert "streamrec_feeder_workers 2.0" in daemon.page("metrics")
            for pid in daemon.workers:
                for name in ("cmdline", "environ"):
                    assert SECRET not in Path(f"/proc/{pid}/{name}").read_text()
            operate(daemon, manager)
            daemon.process.kill()
            until(lambda: all(gone(pid) for pid in daemon.workers))
        assert SECRET not in (tmp_path / "log").read_text()


def operate(daemon: Daemon, manager: socket.socket) -> None:
    """Send each signal: what the daemon says it says once, and workers say which they are."""
    assert daemon.logged("the dataset is open") == [0]
    until(lambda: sorted(daemon.logged("a client is welcome")) == [1] * 4 + [2] * 4)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.logged("reload: nothing has changed") == [0])
    daemon.process.send_signal(signal.SIGUSR1)
    until(lambda: len(daemon.logged("statistics: ")) == 3)
    assert daemon.logged("<Supervisor serving train") == [0]
    assert sorted(daemon.logged("<WorkerFeeder serving train")) == [1, 2]
    said = heard(manager)
    assert said.count(b"READY=1") == 2, "at the start, and after the reload"
    assert sum(message.startswith(b"RELOADING=1") for message in said) == 1


def heard(manager: socket.socket) -> list[bytes]:
    messages = []
    try:
        while True:
            messages.append(manager.recv(4096))
    except BlockingIOError:
        return messages
