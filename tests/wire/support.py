"""Two ends of the protocol without a network, and messages of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    End,
    Fault,
    Goaway,
    Hello,
    Message,
    Ping,
    Release,
    Shared,
    Statistics,
    Subscribe,
    Welcome,
)
from streamrec.wire.protocol import Connection, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

CREDIT = 1 << 20
HELLO = Hello(dataset="train", world_size=2, batch_size=16, token="t", protocol_versions=(1, 2))
BATCH = BatchMessage(b"what it is", (memoryview(b"abc" * 50), memoryview(b"defg")))

FROM_CLIENT: list[Message] = [
    HELLO,
    Subscribe(1, b"{}"),
    Credit(CREDIT),
    Release((0, 4096)),
    Ping(7),
]
FROM_SERVER: list[Message] = [
    Welcome(1, b"fingerprint", b"settings"),
    BATCH,
    BatchMessage(b""),
    BatchMessage(b"x" * 100, (memoryview(bytes(200_000)),)),
    Shared(b"what it is", (8192, 0), (100, 7)),
    Ping(1 << 63),
    Statistics(b"counters"),
    End(b"position"),
]


def joined(buffers: Iterable[memoryview]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def plain(message: Message) -> Message:
    """Return the same message with its payload in one piece, to compare it."""
    if isinstance(message, BatchMessage):
        data = joined(message.payload)
        return BatchMessage(message.metadata, (memoryview(data),) if data else ())
    return message


def feed(machine: Connection, data: bytes, step: int | None = None) -> list[Message]:
    """Give a machine bytes, at most ``step`` at a time; the messages that came of it."""
    received: list[Message] = []
    view = memoryview(data)
    while view:
        buffer = machine.get_buffer()
        count = min(len(buffer), len(view), step or len(view))
        buffer[:count] = view[:count]
        machine.buffer_updated(count)
        view = view[count:]
        received += [plain(message) for message in machine.events()]
    return received


def pass_on(source: Connection, target: Connection, message: Message) -> list[Message]:
    return feed(target, joined(source.send(message)))


def pair(credit: int = CREDIT) -> tuple[Connection, Connection]:
    """Return a client and a feeder that stream."""
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    pass_on(client, server, HELLO)
    pass_on(server, client, FROM_SERVER[0])
    pass_on(client, server, Subscribe(0))
    if credit:
        pass_on(client, server, Credit(credit))
    return client, server


def streaming_client(credit: int = CREDIT) -> Connection:
    return pair(credit)[0]


FINAL: list[Message] = [Goaway("elsewhere"), Fault(b"{}", retryable=True)]
