"""The private engine process, from its start to its end.

:mod:`streamrec.feeder.engine.engine` starts it. It serves a dataset as a feeder does, or hands on
the batches of feeders: then it heals, speaks TLS and reads ahead where the trainer's interpreter
lock is not. To the trainer it is a feeder that never fails before ``retry_for`` is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, validate
from streamrec.config.server_settings import ServerSettings
from streamrec.feeder.client.client import ENGINE_DATASET
from streamrec.feeder.client.connection import AsyncConnection
from streamrec.feeder.client.shared import Outboxes
from streamrec.feeder.server.conversation import Conversation, fault_of
from streamrec.feeder.server.datasets import open_all
from streamrec.feeder.server.listener import first_bytes
from streamrec.feeder.server.server import Feeder
from streamrec.flow.bridge import new_event_loop
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.terms.memory_needs import Measures
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.open import import_store
from streamrec.wire.protocol import Connection, Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from streamrec.feeder.client.healing import AsyncHealingFeed
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
        from streamrec.feeder.client.healing import (
            AsyncHealingFeed,
        )  # only where batches are relayed

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


FOR_EVER = 1e7
"""Seconds that this process waits for its parent, whatever that does; it dies with it anyway."""
LOOK_EVERY = 0.25
"""Seconds between two looks whether the parent lives."""


def main() -> None:
    """Run the process, as its arguments and its standard input say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's business
    # The parent is the only client, and is told all by itself.
    logging.getLogger("streamrec.feeder").setLevel(logging.CRITICAL)
    parent, sock, store = (*sys.argv[1:], "")[:3]
    with contextlib.suppress(Exception):  # what is missing here is told when the dataset is opened
        import_store(store)
    life = _live(int(parent), socket.socket(fileno=int(sock)))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(life)


async def _live(parent: int, sock: socket.socket) -> None:
    """Read the settings and serve, as long as the parent lives."""
    watching = asyncio.create_task(_watch(parent))
    order = await asyncio.to_thread(sys.stdin.buffer.read)
    if order:  # else the parent has no use for this process
        instructions = json.loads(order)
        if "route" in instructions:
            await relay(sock, instructions["route"], FOR_EVER)
        else:
            find_functions(instructions)
            await serve(sock, instructions)
    watching.cancel()


async def serve(sock: socket.socket, order: dict[str, Any]) -> None:
    """Serve one connection, as long as it lives.

    Args:
        sock: Connected.
        order: What to read, as ``engine.order_for`` has written it.
    """
    patient = ServerSettings.model_construct(  # it need not be checked
        handshake_timeout=FOR_EVER,
        idle_timeout=FOR_EVER,
        # The only client is the trainer, which is trusted.
        max_frames_per_second=sys.maxsize,
        shared_memory=sys.maxsize,
    )
    async with (
        open_all({ENGINE_DATASET: open_ordered(order)}) as datasets,
        # Without digests of functions: the trainer knows its own.
        Feeder(dict(datasets), patient, linger=FOR_EVER, codes=None) as feeder,
    ):
        await feeder.serve_socket(sock)


def find_functions(order: dict[str, Any]) -> None:
    """Find the user's functions where the parent finds them, after everything else."""
    # Behind: what this process has found itself must stay what it is.
    sys.path += [place for place in order["path"] if place not in sys.path]


async def open_ordered(order: dict[str, Any]) -> Dataset:
    """Open the dataset that ``engine.order_for`` has described."""
    loaded: dict[str, Any] = {}
    if order["functions"] is not None:
        from streamrec.feeder.functions.sent_functions import (
            unpickle,  # cloudpickle: few streams need it
        )

        loaded = unpickle(order["functions"])
    objects = order["objects"]
    shards = None if objects is None else [ObjectInfo(*fields) for fields in objects]
    return await Dataset.open(validate(DatasetSettings, order["settings"] | loaded), shards)


async def _watch(parent: int) -> None:
    """End this process when the parent has ended, even where its sockets live on."""
    while os.getppid() == parent:  # noqa: ASYNC110 - no event says that a parent has died
        await asyncio.sleep(LOOK_EVERY)
    os._exit(1)  # nobody is left to tell, and nothing on disk to tidy up
