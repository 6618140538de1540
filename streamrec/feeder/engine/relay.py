"""The engine process of a stream that comes from a feeder: it receives, and hands batches on.

It heals, speaks TLS and reads ahead where the trainer's interpreter lock is not. To the trainer it
is a feeder that never fails before ``retry_for`` is over.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from streamrec.feeder.client.connection import AsyncConnection
from streamrec.feeder.client.healing import AsyncHealingFeed
from streamrec.feeder.client.shared import Outboxes
from streamrec.feeder.server.conversation import Conversation, fault_of
from streamrec.feeder.server.listener import first_bytes
from streamrec.pipeline.terms.memory_needs import Measures
from streamrec.wire.protocol import Connection, Role

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from streamrec.feeder.server.conversation import Batches
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.wire.messages import Fault, Hello, Subscribe


async def relay(sock: socket.socket, route: dict[str, Any], linger: float) -> None:
    """Serve the trainer's connection with the batches of feeders, as long as it lives.

    Args:
        sock: Connected to the trainer.
        route: The arguments of `AsyncHealingFeed.open`.
        linger: Seconds that the trainer has for each message, and to read the last one.
    """
    sock.setblocking(False)
    connection = AsyncConnection(Connection(Role.SERVER))
    connection.first, memory = await first_bytes(sock)
    with Outboxes(sys.maxsize).open(memory) as outbox:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        trainer = RelayHost(route)
        conversation = Conversation(
            connection, trainer, outbox, handshake_timeout=linger, linger=linger
        )
        await conversation.run()


class RelayHost:
    """The host of the only client, the trainer, which is told every error as it is.

    Args:
        route: The arguments of `AsyncHealingFeed.open`.
    """

    def __init__(self, route: dict[str, Any]) -> None:
        self._route = route

    @asynccontextmanager
    async def admit(self, hello: Hello) -> AsyncIterator[FeedSource]:  # noqa: ARG002 - a Host's
        """Connect to the feeders; the route says what to read."""
        async with aclosing(await AsyncHealingFeed.open(**self._route)) as feed:
            yield FeedSource(feed)

    def drop(self, reason: str) -> None:
        """Count nothing: nobody would read it."""

    def fail(self, error: Exception) -> Fault:
        """Return what the trainer is told."""
        return fault_of(error)


class FeedSource:
    """The batches of feeders as a source for the trainer.

    Args:
        feed: The connection to them.
    """

    def __init__(self, feed: AsyncHealingFeed) -> None:
        self.fingerprint = json.dumps(feed.fingerprint.to_dict()).encode()
        self.facts = json.dumps(feed.settings).encode()
        self.measures = Measures()
        self._feed = feed
        self._has_begun = False

    @property
    def position(self) -> dict[str, Any] | None:
        """The position after the last batch."""
        return self._feed.position

    @asynccontextmanager
    async def subscribe(self, rank: int) -> AsyncIterator[None]:  # noqa: ARG002 - a BatchSource's
        """Hold nothing: the feed has subscribed as its route says."""
        yield

    def run(self, subscribe: Subscribe) -> AbstractAsyncContextManager[Batches]:  # noqa: ARG002
        """Go on with the feed."""
        # The first run begins where the route says, each other one where the last one ended.
        if self._has_begun:
            self._feed.subscribe()
        self._has_begun = True
        return nullcontext(self)

    async def receive(self) -> Batch:
        """Return the next batch; errors as of `AsyncHealingFeed.receive`."""
        return await self._feed.receive()

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the run, of all feeders together."""
        return self._feed.statistics()

    def counters(self, batches: Batches) -> dict[str, Any]:
        """Return the counters of the run as they are."""
        return batches.statistics()

    def count(self, batch: Batch, size: int) -> None:
        """Count nothing: the feeders do."""
