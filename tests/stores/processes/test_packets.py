from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from streamrec.stores.processes.packets import LONGEST, MOST_BYTES, Packets, TooLong
from tests.support import asynchronous, open_fds


class End:
    """One end of a channel, and what it has heard."""

    def __init__(self, sock: socket.socket) -> None:
        self.heard: list[Any] = []
        self.news, self.lost = asyncio.Event(), asyncio.Event()
        self.packets = Packets(sock, self._take, self.lost.set)

    def _take(self, message: list[Any], content: memoryview, fd: int | None) -> None:
        self.heard.append((message, bytes(content), fd))
        self.news.set()

    async def has(self, number: int) -> list[Any]:
        """Return what was heard when there is so much of it."""
        while len(self.heard) < number:
            self.news.clear()
            await self.news.wait()
        return self.heard


def ends() -> tuple[End, End]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return End(ours), End(theirs)


@asynchronous
async def test_lists_bytes_and_descriptors_arrive_in_their_order() -> None:
    one, other = ends()
    fd = os.memfd_create("test")
    os.write(fd, b"shared")
    one.packets.send("plain", 1, None, "ü")
    one.packets.send("bytes", content=b"a\nb\x00")
    one.packets.send("fd", fd=fd)
    os.close(fd)
    first, second, (_, _, received) = await other.has(3)
    assert first == (["plain", 1, None, "ü"], b"", None)
    assert second == (["bytes"], b"a\nb\x00", None)
    assert os.pread(received, 9, 0) == b"shared"
    os.close(received)
    one.packets.close()
    other.packets.close()


@asynchronous
async def test_what_the_system_does_not_take_is_sent_later() -> None:
    one, other = ends()
    fd = os.memfd_create("test")
    content = os.urandom(MOST_BYTES)
    for number in range(20):
        one.packets.send(number, content=content, fd=fd)
    assert "open, 0 unsent" not in repr(one.packets)
    os.close(fd)
    heard = await other.has(20)
    assert [message for message, _, _ in heard] == [[number] for number in range(20)]
    assert {data for _, data, _ in heard} == {content}
    await one.packets.all_sent()
    for _, _, received in heard:
        os.close(received)
    one.packets.close()
    other.packets.close()


@asynchronous
async def test_too_long_a_packet_is_refused_at_either_end() -> None:
    one, other = ends()
    with pytest.raises(TooLong, match=str(LONGEST)):
        one.packets.send("x" * LONGEST)
    sock = one.packets._sock
    sock.send(b'"' + b"x" * LONGEST + b'"\n')
    await other.lost.wait()
    assert not other.heard
    one.packets.close()


@pytest.mark.parametrize("noise", [b"", b"no JSON", b"\xff\n", b"[1\n"])
@asynchronous
async def test_noise_ends_it(noise: bytes) -> None:
    one, other = ends()
    one.packets._sock.send(noise or b"\n")
    await other.lost.wait()
    assert not other.heard
    one.packets.close()


@asynchronous
async def test_the_end_of_one_is_told_to_the_other() -> None:
    one, other = ends()
    one.packets.send("last")
    one.packets.close()
    one.packets.close()
    one.packets.send("never")
    await other.lost.wait()
    assert other.heard == [(["last"], b"", None)]
    assert not one.lost.is_set()
    other.packets.send("nobody hears it")


@asynchronous
async def test_unsent_packets_of_a_closed_end_hold_nobody_up() -> None:
    one, other = ends()
    fd = os.memfd_create("test")
    for _ in range(20):
        one.packets.send(content=bytes(MOST_BYTES), fd=fd)
    os.close(fd)
    before = open_fds()
    one.packets.close()
    await one.packets.all_sent()
    assert before - open_fds()
    for _, _, received in other.heard:
        os.close(received)
    other.packets.close()
