from __future__ import annotations

import asyncio
import socket
import threading
from functools import partial
from typing import Any

import pytest

from streamrec.errors import FeederLost, LocalProtocolError, RemoteProtocolError, WireError
from streamrec.feeder.access.access import Certificates, client_context
from streamrec.feeder.client import connection as connection_module
from streamrec.feeder.client.connection import (
    AT_ONCE,
    READS_AT_ONCE,
    WRITE_BUFFER,
    AsyncConnection,
)
from streamrec.wire import protocol
from streamrec.wire.frame import trailer
from streamrec.wire.messages import BatchMessage, Credit, Hello, Ping, Release, Subscribe, Welcome
from streamrec.wire.protocol import MOST_REPLIES, Connection, Role
from tests.feeder.certificates import Authority
from tests.feeder.support import eventually, on_both_loops

HELLO = Hello(dataset="train", world_size=1)


async def attached(sock: socket.socket, role: Role) -> AsyncConnection:
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    machine = Connection(role)
    return (await loop.connect_accepted_socket(lambda: AsyncConnection(machine), sock))[1]


async def pair() -> tuple[AsyncConnection, AsyncConnection]:
    ours, theirs = socket.socketpair()
    return await attached(ours, Role.CLIENT), await attached(theirs, Role.SERVER)


async def streaming(credit: int = 1 << 20) -> tuple[AsyncConnection, AsyncConnection]:
    client, server = await pair()
    await subscribed(client, server, credit)
    return client, server


async def subscribed(
    client: AsyncConnection, server: AsyncConnection, credit: int = 1 << 20
) -> None:
    await client.send(HELLO)
    assert await server.receive() == HELLO
    await server.send(Welcome(1, b"", b""))
    await client.receive()
    await client.send(Subscribe(0))
    await client.send(Credit(credit))
    await server.receive()
    await server.wait_for_credit()


async def streaming_by_tls(authority: Authority) -> tuple[AsyncConnection, AsyncConnection]:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    client = AsyncConnection(Connection(Role.CLIENT))
    server = AsyncConnection(Connection(Role.SERVER))
    await asyncio.gather(
        loop.create_connection(
            lambda: client,
            sock=ours,
            ssl=await asyncio.to_thread(client_context, {"ca": authority.file}),
            server_hostname="localhost",
        ),
        loop.connect_accepted_socket(
            lambda: server,
            theirs,
            ssl=await asyncio.to_thread(lambda: Certificates(authority.server()).context),
        ),
    )
    await subscribed(client, server)
    return client, server


async def closed(*connections: AsyncConnection) -> None:
    for connection in connections:
        connection.abort()
        await connection.wait_closed()


class TestAsyncConnection:
    @on_both_loops
    async def test_messages_pass(self) -> None:
        client, server = await streaming()
        large = BatchMessage(b"m", (memoryview(bytes(3_000_000)),))
        sending = asyncio.create_task(server.send(large))
        message = await client.receive()
        assert isinstance(message, BatchMessage)
        assert message.payload[0] == large.payload[0]
        await sending
        assert "open" in repr(client)
        await closed(client, server)
        assert "closed" in repr(client)

    @on_both_loops
    async def test_the_checksum_of_a_large_batch_is_not_computed_in_the_loop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        computed_in: list[int] = []

        def noting(*content: Any) -> bytes:
            computed_in.append(threading.get_ident())
            return trailer(*content)

        monkeypatch.setattr(connection_module, "LARGE", 1000)
        monkeypatch.setattr(protocol, "trailer", noting)
        client, server = await streaming()
        here = threading.get_ident()
        for size, threads in ((999, 0), (1000, 1)):
            batch = BatchMessage(b"m", (memoryview(bytes(size)),))
            computed_in.clear()
            await server.send(batch)
            assert await client.receive() == batch
            assert len(computed_in) == 1
            assert sum(thread != here for thread in computed_in) == threads
        await closed(client, server)

    @on_both_loops
    async def test_a_sender_that_waits_for_room_goes_on_at_the_end(self) -> None:
        client, server = await streaming(1 << 30)
        large = BatchMessage(b"m", (memoryview(bytes(30_000_000)),))
        sending = asyncio.create_task(server.send(large))
        await eventually(lambda: not server._writable.is_set())
        await closed(client, server)
        await sending
        with pytest.raises(FeederLost):
            await server.send(large)

    @on_both_loops
    async def test_pings_are_answered_by_nobody(self) -> None:
        client, server = await streaming()
        client.post(Ping(1))
        await eventually(lambda: not client.machine._pings)
        assert server.waiting == client.waiting == 0
        await closed(client, server)

    @on_both_loops
    async def test_a_client_that_leaves_unread_bytes_has_left_in_good_order(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.send(b"not read")
        server = await attached(theirs, Role.SERVER)
        ours.close()  # the server's next read finds a reset
        with pytest.raises(FeederLost, match="closed by the other side"):
            await server.receive()
        await closed(server)

    @pytest.mark.parametrize("is_left", [False, True])
    @on_both_loops
    async def test_an_end_without_a_reason_is_of_the_side_that_closed_it(
        self, is_left: bool
    ) -> None:
        """As uvloop tells that the other side has cut a connection over TLS."""
        client, server = await pair()
        if is_left:
            client.abort()
        else:
            client.connection_lost(None)
        with pytest.raises(FeederLost, match="closed here" if is_left else "by the other side"):
            await client.receive()
        await closed(client, server)

    @on_both_loops
    async def test_what_came_before_the_end_is_received(self) -> None:
        client, server = await streaming()
        for i in range(3):
            await server.send(BatchMessage(b"%d" % i))
        await server.aclose(linger=0)
        for i in range(3):
            assert await client.receive() == BatchMessage(b"%d" % i)
        with pytest.raises(FeederLost):
            await client.receive()
        with pytest.raises(FeederLost):
            await client.send(Credit(1))
        client.post_if_possible(Credit(1))
        await closed(client, server)

    @on_both_loops
    async def test_an_end_inside_a_message(self) -> None:
        ours, theirs = socket.socketpair()
        server = await attached(ours, Role.SERVER)
        with theirs:
            theirs.sendall(b"SREC\x01")
        with pytest.raises(FeederLost, match="ended inside a header"):
            await server.receive()
        await closed(server)

    @on_both_loops
    async def test_what_is_released_must_have_been_shared(self) -> None:
        client, server = await streaming()
        await client.send(Release((4096,)))
        with pytest.raises(RemoteProtocolError, match="released, and no memory is shared"):
            await server.receive()
        await closed(client, server)

    @on_both_loops
    async def test_releases_are_passed_on(self) -> None:
        client, server = await streaming()
        released: list[int] = []
        server.on_release = released.extend
        await client.send(Release((0, 4096)))
        await client.send(Credit(1))
        await eventually(lambda: server.machine.credit > 1 << 20)
        assert released == [0, 4096]
        await closed(client, server)

    @on_both_loops
    async def test_a_violation_ends_it(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            server = await attached(ours, Role.SERVER)
            theirs.sendall(b"junk" * 100)
            with pytest.raises(RemoteProtocolError, match="expected a frame"):
                await server.receive()
            with pytest.raises(RemoteProtocolError, match="expected a frame"):
                await server.wait_for_credit()
            await closed(server)

    @on_both_loops
    async def test_whoever_sends_hears_of_a_violation(self) -> None:
        client, server = await streaming()
        client._transport.write(b"junk" * 100)
        await eventually(lambda: server.broken is not None)
        with pytest.raises(RemoteProtocolError, match="expected a frame"):
            await server.send(BatchMessage(b"m"))
        await closed(client, server)

    @on_both_loops
    async def test_a_flood_of_messages(self) -> None:
        client, server = await streaming()
        server._most_frames = 100
        client._transport.write(b"".join(map(bytes, client.machine.send(Credit(1)))) * 101)
        with pytest.raises(RemoteProtocolError, match="more than 100 messages came within a sec"):
            await server.receive()
        assert server.machine.error
        await closed(client, server)

    @on_both_loops
    async def test_many_messages_in_a_long_time(self) -> None:
        client, server = await streaming()
        server._most_frames = 100
        frames = b"".join(map(bytes, client.machine.send(Credit(1))))
        for count in range(1, 4):
            client._transport.write(frames * 90)
            granted = (1 << 20) + 90 * count
            await eventually(lambda granted=granted: server.machine.credit == granted)  # type: ignore[misc]
            server._second -= 1
        await closed(client, server)

    @on_both_loops
    async def test_one_that_is_not_made_can_be_cut(self) -> None:
        AsyncConnection(Connection(Role.SERVER)).abort()

    @on_both_loops
    async def test_closing_waits_for_the_peer_to_read(self) -> None:
        client, server = await streaming(credit=1 << 30)
        large = BatchMessage(b"m", (memoryview(bytes(5_000_000)),))
        server.post(large)
        closing = asyncio.create_task(server.aclose(linger=20))
        message = await client.receive()
        assert isinstance(message, BatchMessage)
        assert message.payload_size == 5_000_000
        await closing
        await closed(client)

    @pytest.mark.parametrize("pings", [0, 1])
    @on_both_loops
    async def test_nothing_is_written_behind_the_end(
        self, pings: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The transport has room again, and a PING has no answer yet, once our half has ended."""
        client, server = await streaming(credit=1 << 30)
        troubles: list[Any] = []
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_exception_handler", troubles.append, raising=False)
        client._transport.pause_reading()
        server.post(BatchMessage(b"m", (memoryview(bytes(5_000_000)),)))
        for nonce in range(pings):
            client.post(Ping(nonce))
        await eventually(lambda: len(server.machine._replies) == pings)
        closing = asyncio.create_task(server.aclose(linger=20))
        await asyncio.sleep(0)
        client._transport.resume_reading()
        assert isinstance(await client.receive(), BatchMessage)
        await closing
        await closed(client)
        assert troubles == []

    @on_both_loops
    async def test_closing_waits_no_longer_than_told(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            server = await attached(ours, Role.SERVER)
            await server.aclose(linger=0.01)
            await server.aclose(linger=0.01)
            await server.wait_closed()

    @on_both_loops
    async def test_the_first_reason_to_stop_counts(self) -> None:
        client, server = await pair()
        told: list[Exception | None] = []
        server.on_broken = lambda: told.append(server.broken)
        first = FeederLost("first")
        server.stop(first)
        server.stop(FeederLost("second"))
        assert server.broken is first
        assert told == [first]
        with pytest.raises(FeederLost, match="first"):
            await server.receive()
        await closed(client, server)
        assert told == [first]

    @on_both_loops
    async def test_only_one_task_receives(self) -> None:
        client, server = await pair()
        first = asyncio.create_task(server.receive())
        await asyncio.sleep(0)
        with pytest.raises(WireError, match="two tasks"):
            await server.receive()
        await client.send(HELLO)
        assert await first == HELLO
        await closed(client, server)

    @on_both_loops
    async def test_the_protocol_binds_us_too(self) -> None:
        client, server = await pair()
        with pytest.raises(LocalProtocolError):
            await client.send(Credit(1))
        await closed(client, server)

    @on_both_loops
    async def test_answers_do_not_pile_up_for_a_peer_that_does_not_read(self) -> None:
        client, server = await streaming(credit=1 << 30)
        client._transport.pause_reading()
        server.post(BatchMessage(b"m", (memoryview(bytes(8_000_000)),)))
        for nonce in range(MOST_REPLIES):
            client.post(Ping(nonce))
        await eventually(lambda: len(server.machine._replies) == MOST_REPLIES)
        client.post(Ping(MOST_REPLIES))
        with pytest.raises(RemoteProtocolError, match="does not read"):
            await server.receive()
        await closed(client, server)


class TestFirstMessage:
    """A client that sends it in many pieces is read now and then; a feeder as it comes."""

    @on_both_loops
    async def test_of_a_feeder_is_read_as_it_comes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("streamrec.feeder.client.connection.REST", 1e6)
        client, server = await pair()
        await client.send(HELLO)
        assert await server.receive() == HELLO
        for piece in b"".join(server.machine.send(Welcome(1, b"", b""))):
            server._transport.write(bytes([piece]))
            await asyncio.sleep(0)  # which reads it
        async with asyncio.timeout(60):
            assert isinstance(await client.receive(), Welcome)
        await closed(client, server)

    @on_both_loops
    async def test_in_few_pieces_is_read_at_once(self) -> None:
        ours, theirs = socket.socketpair()
        server = await attached(theirs, Role.SERVER)
        data = b"".join(Connection(Role.CLIENT).send(HELLO))
        with ours:
            for piece in (data[:1], data[1:2], data[2:]):
                ours.sendall(piece)
                await asyncio.sleep(0)
            assert await server.receive() == HELLO
            assert server._transport.is_reading()
            await closed(server)

    @pytest.mark.parametrize("goes", [False, True])
    @on_both_loops
    async def test_in_many_pieces_is_left_unread(
        self, goes: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamrec.feeder.client.connection.REST", 0.0 if goes else 1e6)
        ours, theirs = socket.socketpair()
        server = await attached(theirs, Role.SERVER)
        data = b"".join(Connection(Role.CLIENT).send(HELLO))
        with ours:
            for i in range(READS_AT_ONCE + 1):
                ours.sendall(data[i : i + 1])
                await eventually(partial(has_read, server, i + 1))
            if goes:
                await eventually(server._transport.is_reading)
                ours.sendall(data[READS_AT_ONCE + 1 :])
                assert await server.receive() == HELLO
            else:
                assert not server._transport.is_reading()
            await closed(server)


def has_read(connection: AsyncConnection, times: int) -> bool:
    return connection._reads == times


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class TestTls:
    """A batch is encrypted bit by bit: the loop serves others meanwhile."""

    batch = BatchMessage(b"m", (memoryview(bytes(range(256)) * 40_000),))

    @on_both_loops
    async def test_little_is_encrypted_at_once(self, authority: Authority) -> None:
        client, server = await streaming_by_tls(authority)
        sending = asyncio.create_task(server.send(self.batch))
        largest = 0
        while not sending.done():
            await asyncio.sleep(0)
            largest = max(largest, server._transport.get_write_buffer_size())
        assert await client.receive() == self.batch
        assert 0 < largest < WRITE_BUFFER + 2 * AT_ONCE
        assert server.unsent == 0
        await closed(client, server)

    @on_both_loops
    async def test_what_is_written_meanwhile_comes_behind_it(self, authority: Authority) -> None:
        client, server = await streaming_by_tls(authority)
        sending = asyncio.create_task(server.send(self.batch))
        await asyncio.sleep(0)
        assert server.unsent > AT_ONCE
        server.post(Ping(1))
        client.post(Ping(2))
        assert await client.receive() == self.batch
        await eventually(lambda: not server.machine._pings and not client.machine._pings)
        await sending
        await closed(client, server)

    @on_both_loops
    async def test_a_cancelled_sender_tears_nothing(self, authority: Authority) -> None:
        client, server = await streaming_by_tls(authority)
        sending = asyncio.create_task(server.send(self.batch))
        await asyncio.sleep(0)
        sending.cancel()
        assert await client.receive() == self.batch
        await closed(client, server)

    @on_both_loops
    async def test_the_end_comes_behind_it(self, authority: Authority) -> None:
        client, server = await streaming_by_tls(authority)
        server.post(self.batch)
        closing = asyncio.create_task(server.aclose())
        assert await client.receive() == self.batch
        with pytest.raises(FeederLost, match="closed by the other side"):
            await client.receive()
        await client.aclose()
        await closing

    @on_both_loops
    async def test_a_client_that_leaves_ends_the_wait(self, authority: Authority) -> None:
        client, server = await streaming_by_tls(authority)
        sending = asyncio.create_task(server.send(self.batch))
        await asyncio.sleep(0)
        client.abort()
        await sending
        with pytest.raises(FeederLost):
            await server.receive()
        assert server.unsent == 0
        await closed(client, server)

    @on_both_loops
    async def test_one_who_does_not_read_is_left_in_time(self, authority: Authority) -> None:
        client, server = await streaming_by_tls(authority)
        client._transport.pause_reading()
        server.post(self.batch)
        await eventually(lambda: not server._writable.is_set())
        await server.aclose(linger=0.01)
        assert server.unsent == 0
        await closed(client)
