"""The serving side of one connection, from HELLO to the end, over a source of batches.

It knows neither datasets nor feeders: the batches may be those of a run, of a reading that replicas
share, or of another feeder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from streamrec.errors import FeederLost, FeederRefused, StreamrecError
from streamrec.feeder.client.connection import LINGER
from streamrec.feeder.client.session import state_of
from streamrec.flow.channel import EndOfStream
from streamrec.flow.timings import LoopShare
from streamrec.pipeline.batch import payload
from streamrec.plan.state.position import VERSION
from streamrec.wire.error_fields import to_fields
from streamrec.wire.frame import frame_size
from streamrec.wire.messages import End, Fault, Hello, Statistics, Subscribe, Welcome
from streamrec.wire.protocol import PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextlib import AbstractAsyncContextManager
    from typing import TypeVar

    from streamrec.feeder.client.connection import AsyncConnection
    from streamrec.feeder.client.session import State
    from streamrec.feeder.client.shared import Outbox
    from streamrec.flow.stages import WaitClock
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.terms.memory_needs import Measures
    from streamrec.wire.messages import Message

    T = TypeVar("T")

TELL_EVERY = 0.1
"""Seconds between two STATISTICS, at least: counting and writing them costs as much as a small
batch."""


TELL_WAITS_EVERY = 1.0
"""Seconds between two STATISTICS while a client waits: it shows what a wait of minutes is for."""


LOOK_FIRST, LOOK_LAST = 0.005, 0.08
"""Seconds between two looks at whether a client reads what is sent; the first and the longest."""


class Batches(Protocol):
    """The batches of one run."""

    @property
    def position(self) -> State | None:
        """The position of the next batch; at the end, that of the next run."""

    @property
    def measures(self) -> Measures:
        """The clock of what the run waits for."""

    async def receive(self) -> Batch:
        """Return the next batch.

        Raises:
            EndOfStream: The run is over.
        """

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the run."""


class BatchSource(Protocol):
    """The batches that a client may read: one run after the other."""

    fingerprint: bytes
    """Everything that determines their order, as WELCOME has it."""
    facts: bytes
    """The facts of the dataset, as WELCOME has them."""

    def subscribe(self, rank: int) -> AbstractAsyncContextManager[None]:
        """Hold what it takes to read a rank while the block runs."""

    def run(self, subscribe: Subscribe) -> AbstractAsyncContextManager[Batches]:
        """Return the run that a client asks for; it begins to read when it is entered.

        Raises:
            StateError: The position that the client names is not one of this stream.
        """

    def counters(self, batches: Batches) -> dict[str, Any]:
        """Return the counters of a run as the client is told them; empty: there are none."""

    def count(self, batch: Batch, size: int) -> None:
        """Count a batch that was sent, in a frame of so many bytes."""


class Host(Protocol):
    """The side of a conversation that decides who is served, and with what."""

    def admit(self, hello: Hello) -> AbstractAsyncContextManager[BatchSource]:
        """Let a client in while the block runs, and open what it asks for.

        Raises:
            StreamrecError: It is refused, or sent elsewhere.
        """

    def drop(self, reason: str) -> None:
        """Count a client that was too slow."""

    def fail(self, error: Exception) -> Message:
        """Return the last message, for a client that cannot be served any longer."""


class Conversation:
    """A conversation with one client.

    Args:
        connection: The connection to the client.
        host: The one who lets it in, and hears how it ends.
        outbox: The outbox in memory that the client has brought, if it did.
        handshake_timeout: Seconds for what a client sends at once.
        linger: Seconds that a client whose stream has ended has to read why, and to disconnect.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        host: Host,
        outbox: Outbox | None,
        *,
        handshake_timeout: float,
        linger: float,
    ) -> None:
        self._connection = connection
        self._host = host
        self._outbox = outbox
        if outbox is not None:
            connection.on_release = outbox.free
        self._handshake_timeout = handshake_timeout
        self._linger = linger
        # A stranger gets no more time to leave than to arrive.
        self._patience = handshake_timeout
        self._told_at = float("-inf")
        self._makes_wait = False
        """True while the client waits for a batch that is not ready."""

    async def run(self) -> None:
        """Serve until either side is done, then close the connection."""
        try:
            await self._serve_until_stopped()
        except Exception as error:  # noqa: BLE001 - the client must hear of a defect too
            is_reason = error is self._connection.broken
            # A client that left is not a fault; a relay's feeder that is lost is one.
            if isinstance(error, FeederLost) and (is_reason or self._connection.is_cut):
                self._connection.abort()
            else:
                self._say(self._host.fail(error))
            if is_reason:
                # The connection keeps it; its frames would keep the connection and the last batch.
                error.__context__ = error.__traceback__ = None
        except asyncio.CancelledError:
            self._connection.abort()
            raise
        broke_the_protocol = self._connection.machine.error is not None
        await self._connection.aclose(LINGER if broke_the_protocol else self._patience)

    async def _serve_until_stopped(self) -> None:
        """Serve until the connection has a reason to end, whatever is waited for."""
        connection = self._connection
        try:
            # No time limit: the reason moves it to now.
            async with asyncio.timeout(None) as serving:
                connection.on_broken = partial(serving.reschedule, 0)
                if connection.broken is not None:
                    raise connection.broken
                await self._serve()
        except TimeoutError:
            if connection.broken is None:  # it is somebody else's
                raise
            raise connection.broken from None
        finally:
            connection.on_broken = None

    async def _serve(self) -> None:
        hello = await self._in_time("HELLO", self._receive(Hello), since=self._connection.made_at)
        async with self._host.admit(hello) as source:
            welcome = Welcome(common_version(hello), source.fingerprint, source.facts)
            await self._connection.send(welcome)
            # A client that was welcome gets the time to read its last batches.
            self._patience = self._linger
            # Only the first: later ones come when the trainer begins its next epoch, whenever that
            # is.
            subscribe = await self._in_time("SUBSCRIBE and CREDIT", self._first_subscription())
            async with source.subscribe(subscribe.rank):
                while True:
                    await self._run(source, source.run(subscribe))
                    subscribe = await self._receive(Subscribe)

    async def _in_time(self, what: str, event: Awaitable[T], since: float | None = None) -> T:
        """Wait for what a client sends at once."""
        since = asyncio.get_running_loop().time() if since is None else since
        try:
            async with asyncio.timeout_at(since + self._handshake_timeout):
                return await event
        except TimeoutError:
            self._host.drop("handshake")
            lost = FeederLost(f"no {what} came in time")
            self._connection.stop(lost)
            raise lost from None

    async def _first_subscription(self) -> Subscribe:
        subscribe = await self._receive(Subscribe)
        await self._connection.wait_for_credit()
        return subscribe

    async def _receive(self, kind: type[T]) -> T:
        """Receive the only message that the state machine lets come now."""
        message = await self._connection.receive()
        assert isinstance(message, kind)
        return message

    async def _run(self, source: BatchSource, run: AbstractAsyncContextManager[Batches]) -> None:
        # Reading ahead takes memory: a client that gives no credit takes none.
        await self._connection.wait_for_credit()
        async with run as batches:
            self._makes_wait = False
            self._tell_waits(source, batches)
            try:
                await self._send_all(source, batches)
            finally:
                self._telling.cancel()
                self._tell(source, batches)
            end = End(json.dumps(state_of(batches.position)).encode())
        # Behind the run: what it holds is free before the client asks for the next.
        await self._connection.send(end)

    async def _send_all(self, source: BatchSource, batches: Batches) -> None:
        waits, share = batches.measures.waits, LoopShare()
        with contextlib.suppress(EndOfStream):
            while True:
                waits.consume("client")
                await self._connection.wait_for_credit()
                await share.give_way()  # to the other clients
                self._makes_wait = True
                batch = await batches.receive()
                self._makes_wait = False
                waits.consume("wire")
                message = payload.encode(batch)
                if asyncio.get_running_loop().time() >= self._told_at + TELL_EVERY:
                    self._tell(source, batches)
                # Where the client has filled its memory, the batch goes over the socket.
                outgoing = message if self._outbox is None else self._outbox.put(message)
                await self._connection.write(outgoing)
                # Before the wait for room, which a drain ends: the client gets this batch as well.
                source.count(batch, frame_size(len(message.metadata), message.payload_size))
                await self._flush(waits)

    async def _flush(self, waits: WaitClock) -> None:
        """Wait until the client has taken enough; where it reads nothing, its loop works."""
        connection, delay = self._connection, LOOK_FIRST
        if connection.has_room:
            return
        connection.peer_takes_nothing()
        while not connection.has_room:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await connection.flush()
                    return
            waits.consume("client" if connection.peer_takes_nothing() else "wire")
            delay = min(2 * delay, LOOK_LAST)

    def _tell_waits(self, source: BatchSource, batches: Batches) -> None:
        """Send counters during a long wait for a batch, too; look once a second for one."""
        loop = asyncio.get_running_loop()
        # A client that does not wait may not read for hours what is sent.
        # Half: what was told at the last look was told a bit after it.
        if self._makes_wait and loop.time() >= self._told_at + TELL_WAITS_EVERY / 2:
            self._tell(source, batches)
        self._telling = loop.call_later(TELL_WAITS_EVERY, self._tell_waits, source, batches)

    def _tell(self, source: BatchSource, batches: Batches) -> None:
        """Send the run's counters along; in front of a batch, the end, or what went wrong."""
        self._told_at = asyncio.get_running_loop().time()
        if counters := source.counters(batches):
            self._connection.post_if_possible(Statistics(json.dumps(counters).encode()))

    def _say(self, message: Message) -> None:
        """Send the last message; where nobody can be told any more, cut the connection."""
        try:
            self._connection.post(message)
        except StreamrecError:
            self._connection.abort()


def common_version(hello: Hello) -> int:
    """Return the version of the protocol to speak with a client.

    Raises:
        FeederRefused: There is none, or the client cannot read the positions of this version.
    """
    common = set(PROTOCOL_VERSIONS) & set(hello.protocol_versions)
    if not common or hello.position_version < VERSION:
        raise FeederRefused(
            f"the client speaks the protocol's versions {list(hello.protocol_versions)} and reads "
            f"positions up to {hello.position_version}, the feeder {list(PROTOCOL_VERSIONS)} and "
            f"{VERSION}; install the same streamrec on both sides",
            code="version",
        )
    return max(common)


def fault_of(error: Exception) -> Fault:
    """Return the message that tells a client an error as it is."""
    retryable = isinstance(error, StreamrecError) and error.retryable
    return Fault(json.dumps(to_fields(error), default=str).encode(), retryable)
