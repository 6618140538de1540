from __future__ import annotations

import itertools
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import FeederLost, RemoteProtocolError, Stalled
from streamrec.feeder.client.blocking import AT_ONCE, BlockingConnection
from streamrec.wire.messages import BatchMessage, Credit, End, Hello, Ping, Subscribe, Welcome
from streamrec.wire.protocol import Connection, Role
from tests.feeder.support import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

Pair = tuple[BlockingConnection, BlockingConnection]


@pytest.fixture(params=["unix", "tcp"])
def sockets(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    if request.param == "unix":
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs = listener.accept()[0]
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pair(sockets: tuple[socket.socket, socket.socket]) -> Pair:
    client = BlockingConnection(sockets[0], Connection(Role.CLIENT), patience=PATIENCE)
    server = BlockingConnection(sockets[1], Connection(Role.SERVER), patience=PATIENCE)
    client.send(Hello(dataset="train", world_size=1))
    server.receive()
    server.send(Welcome(1, b"", b""))
    client.receive()
    client.send(Subscribe(0))
    client.send(Credit(1 << 30))
    server.receive()
    return client, server


def catch_up(server: BlockingConnection) -> None:
    """Let the feeder's end see the credit, which alone is no message to receive."""
    while server.machine.credit <= 0:
        server._receive_some()


def test_messages_pass(pair: Pair) -> None:
    client, server = pair
    catch_up(server)
    large = BatchMessage(b"m", tuple(memoryview(bytes([i]) * 1000) for i in range(200)) * 10)
    thread = threading.Thread(target=server.send, args=(large,))
    thread.start()
    message = client.receive()
    thread.join()
    assert isinstance(message, BatchMessage)
    assert message.payload[0] == b"".join(large.payload)
    assert client.waiting == 0
    assert "open" in repr(client)
    client.abort()
    assert "closed" in repr(client)


def test_the_end_of_a_large_batch_is_not_waited_for_in_vain(pair: Pair) -> None:
    client, server = pair
    catch_up(server)
    for size in (4 * AT_ONCE - 1, 4 * AT_ONCE, 9 * AT_ONCE + 1):
        sent = BatchMessage(b"m", (memoryview(bytes(size)),))
        thread = threading.Thread(target=server.send, args=(sent,))
        thread.start()
        message = client.receive()  # nothing comes behind it
        thread.join()
        assert isinstance(message, BatchMessage)
        assert message.payload_size == size


def test_small_messages_come_together(pair: Pair) -> None:
    client, server = pair
    catch_up(server)
    for i in range(5):
        server.send(BatchMessage(b"%d" % i))
    server.send(End(b""))
    assert [client.receive() for _ in range(5)] == [BatchMessage(b"%d" % i) for i in range(5)]
    assert client.receive() == End(b"")


def test_pings_are_answered_on_the_way(pair: Pair) -> None:
    client, server = pair
    catch_up(server)
    server.send(Ping(4))
    server.send(BatchMessage(b"x"))
    assert client.receive() == BatchMessage(b"x")
    while server.machine._pings:
        server._receive_some()


def test_silence_is_asked_and_then_lost(sockets: tuple[socket.socket, socket.socket]) -> None:
    client = BlockingConnection(sockets[0], Connection(Role.CLIENT), patience=0.02)
    client.send(Hello(dataset="train", world_size=1))
    with pytest.raises(FeederLost, match=r"nothing came for 0\.02 s"):
        client.receive()
    server = BlockingConnection(sockets[1], Connection(Role.SERVER), patience=0.02)
    assert server.receive() == Hello(dataset="train", world_size=1)
    server._collect()
    assert Ping(1) not in server._inbox


def test_signs_of_life_alone_are_a_stall(pair: Pair) -> None:
    """Between them the client need never wait: it must look at the clock all the same."""
    client, server = pair
    impatient = BlockingConnection(client._socket, client.machine, stall_timeout=0.05)
    stop = threading.Event()

    def ping() -> None:
        for nonce in itertools.count(1):
            if stop.is_set():
                return
            server.send(Ping(nonce))
            while nonce in server.machine._pings and not stop.is_set():
                server._receive_some()

    thread = threading.Thread(target=ping)
    thread.start()
    for _ in range(2):
        with pytest.raises(
            Stalled, match=r"feeder: the feeder sent nothing of the stream for 0\.05"
        ):
            impatient.receive()
    stop.set()
    client.send(Credit(1))  # whoever still waits for the last answer
    thread.join()


def test_what_has_come_is_received_however_long_ago(pair: Pair) -> None:
    client, server = pair
    catch_up(server)
    impatient = BlockingConnection(client._socket, client.machine, stall_timeout=60)
    server.send(BatchMessage(b"x"))
    server.send(End(b""))
    assert impatient.receive() == BatchMessage(b"x")
    assert impatient.receive(since=float("-inf")) == End(b"")


def test_silence_inside_a_batch_is_lost(pair: Pair) -> None:
    client, server = pair
    catch_up(server)
    quick = BlockingConnection(client._socket, client.machine, patience=0.02)
    data = b"".join(server.machine.send(BatchMessage(b"", (memoryview(bytes(300_000)),))))
    server._socket.sendall(data[:100_000])
    with pytest.raises(FeederLost, match="in the middle of a message"):
        quick.receive()


def test_what_came_before_the_end_is_received(pair: Pair) -> None:
    client, server = pair
    catch_up(server)
    server.send(BatchMessage(b"x"))
    server.abort()
    client.post_if_possible(Credit(1))
    assert client.receive() == BatchMessage(b"x")
    for _ in range(2):
        with pytest.raises(FeederLost):
            client.receive()
    client.post_if_possible(Credit(1))


def test_an_end_inside_a_batch(pair: Pair) -> None:
    client, server = pair
    catch_up(server)
    data = b"".join(server.machine.send(BatchMessage(b"", (memoryview(bytes(300_000)),))))
    server._socket.sendall(data[:100_000])
    server.abort()
    with pytest.raises(FeederLost, match="ended inside a BATCH of 300"):
        client.receive()


def test_a_violation(sockets: tuple[socket.socket, socket.socket]) -> None:
    client = BlockingConnection(sockets[0], Connection(Role.CLIENT))
    sockets[1].sendall(b"junk" * 10)
    with pytest.raises(RemoteProtocolError, match="expected a frame"):
        client.receive()


def test_sending_to_nobody(pair: Pair) -> None:
    client, server = pair
    server.abort()
    with pytest.raises(FeederLost, match="the connection broke"):
        for _ in range(100):
            client.send(Credit(1))


def test_a_fork_leaves_the_socket_to_its_parent(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    client = BlockingConnection(sockets[0], Connection(Role.CLIENT))
    client.leave_to_parent()
    assert sockets[0].fileno() == -1
    with pytest.raises(FeederLost, match="the connection is closed"):
        client.receive()
    sockets[1].settimeout(PATIENCE)
    assert sockets[1].recv(1) == b"", "not a byte was said"


def test_after_closing(pair: Pair) -> None:
    client, _ = pair
    client.abort()
    client.abort()
    with pytest.raises(FeederLost, match="is closed"):
        client.receive()
