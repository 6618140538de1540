"""The engine process of a stream that comes from a feeder: it receives, and hands batches on.

It heals, speaks TLS and reads ahead where the trainer's interpreter lock is not. To the trainer it
is a feeder that never fails before ``retry_for`` is over.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from streamrec.errors import StreamrecError
from streamrec.feeder.client.connection import AsyncConnection
from streamrec.feeder.client.healing import AsyncHealingFeed
from streamrec.feeder.client.shared import Outboxes
from streamrec.feeder.server.conversation import TELL_EVERY
from streamrec.feeder.server.listener import first_bytes
from streamrec.flow.channel import EndOfStream
from streamrec.flow.loop_share import LoopShare
from streamrec.pipeline.batch import payload
from streamrec.wire.error_fields import to_fields
from streamrec.wire.messages import End, Fault, Hello, Statistics, Subscribe, Welcome
from streamrec.wire.protocol import PROTOCOL_VERSIONS, Connection, Role

if TYPE_CHECKING:
    import socket

    from streamrec.feeder.client.shared import Outbox


async def relay(sock: socket.socket, route: dict[str, Any], linger: float) -> None:
    """Serve the trainer's connection with the batches of feeders, as long as it lives.

    Args:
        sock: Connected to the trainer.
        route: The arguments of `AsyncHealingFeed.open`.
        linger: Seconds that the trainer has to read the last message.
    """
    sock.setblocking(False)
    connection = AsyncConnection(Connection(Role.SERVER))
    connection.first, memory = await first_bytes(sock)
    with Outboxes(sys.maxsize).open(memory) as outbox:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        serving = asyncio.ensure_future(_Relay(connection, outbox).run(route))
        connection.on_broken = serving.cancel
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
        await connection.aclose(linger)


class _Relay:
    """The trainer's connection, and the feed of its feeders."""

    def __init__(self, connection: AsyncConnection, outbox: Outbox | None) -> None:
        self._connection = connection
        self._outbox = outbox
        self._told_at = float("-inf")
        if outbox is not None:
            connection.on_release = outbox.free

    async def run(self, route: dict[str, Any]) -> None:
        """Hand on everything, until the trainer leaves or an error does not heal."""
        try:
            await self._serve(route)
        except StreamrecError as error:
            fields = json.dumps(to_fields(error), default=str).encode()
            self._connection.post_if_possible(Fault(fields, error.retryable))

    async def _serve(self, route: dict[str, Any]) -> None:
        await self._receive(Hello)
        async with aclosing(await AsyncHealingFeed.open(**route)) as feed:
            fingerprint = json.dumps(feed.fingerprint.to_dict()).encode()
            settings = json.dumps(feed.settings).encode()
            await self._connection.send(Welcome(max(PROTOCOL_VERSIONS), fingerprint, settings))
            # The first run begins where the route says, each other one where the last one ended.
            await self._receive(Subscribe)
            while True:
                await self._one_run(feed)
                await self._receive(Subscribe)
                feed.subscribe()

    async def _receive(self, kind: type[Hello | Subscribe]) -> None:
        """Receive the only message that the state machine lets come now."""
        assert isinstance(await self._connection.receive(), kind)

    async def _one_run(self, feed: AsyncHealingFeed) -> None:
        try:
            await self._send_all(feed)
        finally:
            self._tell(feed)
        await self._connection.send(End(json.dumps(feed.position).encode()))

    async def _send_all(self, feed: AsyncHealingFeed) -> None:
        clock, share = asyncio.get_running_loop().time, LoopShare()
        with suppress(EndOfStream):
            while True:
                await self._connection.wait_for_credit()
                await share.give_way()  # to the end of the connection
                batch = await feed.receive()
                if clock() >= self._told_at + TELL_EVERY:
                    self._told_at = clock()
                    self._tell(feed)
                message = payload.encode(batch)
                outgoing = message if self._outbox is None else self._outbox.put(message)
                await self._connection.send(outgoing)

    def _tell(self, feed: AsyncHealingFeed) -> None:
        counters = json.dumps(feed.statistics()).encode()
        self._connection.post_if_possible(Statistics(counters))
