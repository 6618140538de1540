from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.feeder.access.address import Address
from streamrec.feeder.server import listener
from streamrec.feeder.server.listener import (
    Listener,
    address_of,
    bind,
    bind_in_thread,
    first_bytes,
    remote_host,
)
from tests.feeder.support import eventually, on_both_loops
from tests.support import open_fds

if TYPE_CHECKING:
    from pathlib import Path

HERE = Address(host="127.0.0.1", port=0)


def connect(place: Address) -> socket.socket:
    if place.path:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(place.path)
        except OSError:
            sock.close()
            raise
        return sock
    return socket.create_connection((place.host, place.port))


@pytest.mark.parametrize("kind", ["tcp", "tcp6", "unix"])
@on_both_loops
async def test_accepts(kind: str, tmp_path: Path) -> None:
    places = {
        "tcp": HERE,
        "tcp6": Address(host="::1", port=0),
        "unix": Address(path=f"{tmp_path}/s"),
    }
    accepted: list[socket.socket] = []
    listening = Listener(await bind_in_thread(places[kind]), accepted.append)
    clients = [connect(listening.address) for _ in range(40)]
    await eventually(lambda: len(accepted) == 40)
    listening.close()
    listening.close()
    with pytest.raises(OSError, match=r"refused|No such file"):
        connect(listening.address)
    for sock in (*clients, *accepted):
        sock.close()


@on_both_loops
async def test_a_socket_for_one_who_is_cancelled_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    binding = asyncio.create_task(bind_in_thread(Address(path=str(path))))
    await asyncio.sleep(0)  # the thread has begun
    binding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await binding
    assert not path.exists()


@on_both_loops
async def test_all_who_wait_are_accepted_in_one_turn_of_the_loop() -> None:
    accepted: list[socket.socket] = []
    turns: list[int] = []

    def accept(sock: socket.socket) -> None:
        accepted.append(sock)
        turns.append(turn)

    listening = Listener(await bind_in_thread(HERE), accept)
    clients = [connect(listening.address) for _ in range(40)]
    turn = 0
    while len(accepted) < 40:
        turn += 1
        await asyncio.sleep(0)
    assert len(set(turns)) == 1
    listening.close()
    for sock in (*clients, *accepted):
        sock.close()


@on_both_loops
async def test_no_more_are_accepted_in_one_turn_than_are_allowed() -> None:
    accepted: list[socket.socket] = []
    listening = Listener(await bind_in_thread(HERE), accepted.append, at_once=3)
    clients = [connect(listening.address) for _ in range(8)]
    found: list[int] = []
    while len(accepted) < 8:
        before = len(accepted)
        await asyncio.sleep(0)
        found += [len(accepted) - before] * (len(accepted) > before)
    assert found == [3, 3, 2]
    listening.close()
    for sock in (*clients, *accepted):
        sock.close()


@on_both_loops
async def test_beyond_a_burst_connections_are_accepted_in_time() -> None:
    accepted: list[socket.socket] = []
    clock = asyncio.get_running_loop().time
    began = clock()
    listening = Listener(await bind_in_thread(HERE), accepted.append, burst=11)
    clients = [connect(listening.address) for _ in range(31)]
    await eventually(lambda: len(accepted) == 31)
    assert clock() - began > 0.15  # 20 of them at 100 a second
    assert not listening.lacks_files
    listening.close()
    for sock in (*clients, *accepted):
        sock.close()


@pytest.mark.parametrize("kind", ["tcp", "tcp6", "dual", "unix"])
def test_whoever_is_on_this_machine_has_no_address(kind: str, tmp_path: Path) -> None:
    places = {
        "tcp": HERE,
        "tcp6": Address(host="::1", port=0),
        "dual": Address(host="::", port=0),
        "unix": Address(path=f"{tmp_path}/s"),
    }
    with bind(places[kind]) as listening:
        listening.listen()
        place = address_of(listening)
        host = "127.0.0.1" if kind == "dual" else place.host
        with connect(Address(host, place.port, place.path)):
            accepted = listening.accept()[0]
        with accepted:
            assert remote_host(accepted) is None


class Elsewhere(socket.socket):
    """A socket with another machine at its other end."""

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.7", 40_000


def test_another_machine_has_one() -> None:
    with Elsewhere() as sock:
        assert remote_host(sock) == "192.0.2.7"


def test_whoever_has_gone_has_none() -> None:
    with socket.socket() as sock:
        assert remote_host(sock) is None


@on_both_loops
async def test_leaves_the_file_of_a_successor(tmp_path: Path) -> None:
    place = Address(path=f"{tmp_path}/s")
    first = Listener(await bind_in_thread(place), lambda _: None)
    (tmp_path / "s").unlink()
    second = Listener(await bind_in_thread(place), lambda _: None)
    first.close()
    assert (tmp_path / "s").exists()
    second.close()
    assert not (tmp_path / "s").exists()


class Exhausted(socket.socket):
    """A listening socket that once has no file left for a connection."""

    failures = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@on_both_loops
async def test_waits_where_there_are_no_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE", 0.001)
    sock = Exhausted()
    sock.bind(("127.0.0.1", 0))
    accepted: list[socket.socket] = []
    listening = Listener(sock, accepted.append)
    with connect(listening.address):
        await eventually(lambda: len(accepted) == 1)
        assert not listening.lacks_files
    assert "raise the limit of open files" in caplog.text
    accepted[0].close()
    listening.close()


@on_both_loops
async def test_closed_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PAUSE", 3600.0)  # it waits until it is seen, however slowly
    sock = Exhausted()
    sock.bind(("127.0.0.1", 0))
    listening = Listener(sock, lambda _: None)
    with connect(listening.address):
        await eventually(lambda: listening.lacks_files)
        listening.close()
        await asyncio.sleep(0)


def test_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at tcp://127.0.0.1:{port}: Address"):
            bind(Address(host="127.0.0.1", port=port))


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        bind(Address(path=f"{tmp_path}/none/s"))


class TestFirstBytes:
    @pytest.mark.parametrize("count", [0, 1, 2, 64])
    @on_both_loops
    async def test_one_descriptor_comes_along(self, count: int) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        before = open_fds()
        with ours, theirs:
            receiving = asyncio.create_task(first_bytes(theirs))
            socket.send_fds(ours, [b"HELLO", b"!"], [ours.fileno()] * count)
            data, descriptor = await receiving
            assert data == b"HELLO!"
            assert (descriptor is not None) == bool(count)
            assert len(open_fds() - before) == bool(count), "the others are closed"
            if descriptor is not None:
                assert not os.get_inheritable(descriptor)
                os.close(descriptor)

    @on_both_loops
    async def test_the_end(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            ours.close()
            assert await first_bytes(theirs) == (b"", None)

    @on_both_loops
    async def test_a_connection_that_was_reset(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            theirs.send(b"never read")
            ours.close()
            assert await first_bytes(theirs) == (b"", None)

    @on_both_loops
    async def test_cancelled(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with ours, theirs:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await first_bytes(theirs)
            ours.send(b"a")
            assert await first_bytes(theirs) == (b"a", None)
