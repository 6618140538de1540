"""Feeds: the receiving side of a feeder's stream, for asyncio and for plain code.

Both have the same shape. What was received whole is delivered, whatever happened to the connection
afterwards; then the error comes, with the position of the last batch that was taken.
"""

from __future__ import annotations

import asyncio
import math
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self

from streamrec.errors import ConfigError, FeederLost, StreamrecError
from streamrec.feeder.address import Address
from streamrec.feeder.blocking import BlockingConnection
from streamrec.feeder.connecting import connect, connect_async
from streamrec.feeder.connection import AsyncConnection, silence, stalled
from streamrec.feeder.session import Subscription
from streamrec.flow.channel import EndOfStream
from streamrec.wire import DEFAULT_PAYLOAD_CAP, Connection, Ping, Role

if TYPE_CHECKING:
    import socket

    from streamrec.feeder.engine import Engine
    from streamrec.feeder.session import State
    from streamrec.feeder.shared import Inbox
    from streamrec.plan.position import Fingerprint
    from streamrec.values.batch import Batch
    from streamrec.wire import Message

__all__ = ["ENGINE_DATASET", "AsyncFeed", "BlockingFeed"]

ENGINE_DATASET = "stream"
"""The name of the only dataset behind a ready-made socket."""
CREDIT_BYTES = 64 << 20
PATIENCE = 60.0


class _Feed:
    """What both kinds share: the subscription, and its facts."""

    def __init__(self, where: str, subscription: Subscription) -> None:
        self._where = where
        self._subscription = subscription
        self._failure: StreamrecError | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """What determines the order of what is received."""
        fingerprint = self._subscription.fingerprint
        assert fingerprint is not None
        return fingerprint

    @property
    def settings(self) -> dict[str, Any]:
        """What the feeder tells of the dataset: batch_size, lanes, shards, features."""
        return self._subscription.settings

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken, or to begin with; ``None``: the very beginning."""
        return self._subscription.position

    def statistics(self) -> dict[str, Any]:
        """What the feeder has counted in this run: told with a batch, every tenth of a second."""
        return self._subscription.statistics

    def _check_receivable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._subscription.over:
            raise EndOfStream

    def __repr__(self) -> str:
        step = (self.position or {}).get("step", 0)
        return f"<{type(self).__name__} of {self._where}, step {step}>"


class AsyncFeed(_Feed):
    """A feeder's stream in asyncio code; made by :meth:`open`."""

    is_async: Literal[True] = True

    def __init__(
        self,
        where: str,
        connection: AsyncConnection,
        subscription: Subscription,
        patience: float = PATIENCE,
        stall_timeout: float = math.inf,
    ) -> None:
        super().__init__(where, subscription)
        self._connection = connection
        self._patience = patience
        self._stall_timeout = stall_timeout
        self._nonce = 0

    @classmethod
    async def open(
        cls,
        address: str | socket.socket,
        *,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int | None = None,
        position: State | None = None,
        token: str | None = None,
        fingerprint: Fingerprint | None = None,
        credit_bytes: int = CREDIT_BYTES,
        payload_cap: int = DEFAULT_PAYLOAD_CAP,
        patience: float = PATIENCE,
        stall_timeout: float = math.inf,
    ) -> Self:
        """Connect and subscribe; the first batches are on their way when it returns.

        Args:
            address: ``tcp://host:port/dataset``, ``unix:///path#dataset``, or a connected socket,
                which the feed then owns.
            rank: Which part of the stream.
            world_size: Of how many.
            batch_size: Records per rank and batch; ``None``: the dataset's own.
            position: Where to go on; ``None``: at the beginning.
            token: What the feeder wants to see; never sent over TCP beyond this machine.
            fingerprint: What the feeder must serve.
            credit_bytes: Bytes of batches that may wait here.
            payload_cap: The largest batch to accept, in bytes.
            patience: Seconds without a sign of life after which the feeder counts as lost.
            stall_timeout: Seconds to wait for a batch from a feeder that gives signs of life.

        Raises:
            ConfigError: An argument is wrong.
            FeederLost: The feeder cannot be reached.
            FeederRefused: It does not serve this client or dataset.
            StateError: The position or the fingerprint does not fit what it serves.
        """
        where, subscription = _prepare(
            address,
            rank=rank,
            world_size=world_size,
            batch_size=batch_size,
            position=position,
            token=token,
            fingerprint=fingerprint,
            credit_bytes=credit_bytes,
        )
        machine = Connection(Role.CLIENT, payload_cap=payload_cap)
        connection = await connect_async(address, machine)
        self = cls(where, connection, subscription, patience, stall_timeout)
        try:
            await self._greet()
        except BaseException:
            connection.abort()
            raise
        return self

    async def receive(self) -> Batch:
        """The next batch.

        Raises:
            EndOfStream: The run is over; :meth:`subscribe` starts the next.
            FeederLost: The connection broke; ``position`` is where to go on.
            FeederDraining: The feeder shuts down; go on elsewhere.
            Stalled: It is there, and sent nothing of the stream for ``stall_timeout``.
            StreamrecError: What made the feeder stop, such as a corrupt record.
        """
        self._check_receivable()
        try:
            batch = self._subscription.take(await self._next())
        except StreamrecError as error:
            self._connection.abort()
            self._failure = self._subscription.lost(error)
            raise self._failure from None
        # Without a wait, so that no cancellation can come between a batch and its taker.
        for message in self._subscription.due():
            self._connection.post_if_possible(message)
        return batch

    def subscribe(self, position: State | None = None) -> None:
        """Start the next run, after the end of one.

        Args:
            position: Where to begin; ``None``: where the last run ended.
        """
        self._subscription.seek(position)
        for message in self._subscription.subscribe():
            self._connection.post_if_possible(message)

    async def aclose(self) -> None:
        """Disconnect; closing again changes nothing."""
        self._connection.abort()
        await self._connection.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _greet(self) -> None:
        try:
            self._connection.post_if_possible(self._subscription.hello)
            self._subscription.welcome(await self._next())
            self.subscribe()
        except StreamrecError as error:
            raise self._subscription.lost(error) from None

    async def _next(self) -> Message:
        """The next message, as long as the feeder shows signs of life, and goes on."""
        began = asyncio.get_running_loop().time()
        while True:
            longest = self._longest_wait(began)
            try:
                async with asyncio.timeout(None if self._connection.waiting else longest):
                    message = await self._connection.receive()
            except TimeoutError:
                self._check_alive(began)
                continue
            if not self._subscription.note(message):
                return message

    def _longest_wait(self, began: float) -> float:
        """Return the seconds after which to look how things stand."""
        half = self._patience / 2
        if self._connection.machine.exact:  # a batch is on its way, and may take its time
            return half
        left = began + self._stall_timeout - asyncio.get_running_loop().time()
        if left <= 0:
            raise stalled(self._stall_timeout)
        return min(half, left)

    def _check_alive(self, began: float) -> None:
        # A feeder that nobody waited for was not asked, and owes no sign of life.
        silent = asyncio.get_running_loop().time() - max(self._connection.heard_at, began)
        if silent >= self._patience:
            self._connection.abort()
            raise FeederLost(silence(silent))
        if silent >= self._patience / 2:
            self._nonce += 1
            self._connection.post_if_possible(Ping(self._nonce))


class BlockingFeed(_Feed):
    """A feeder's stream in plain code; made by :meth:`open`. Used by one thread at a time."""

    is_async: Literal[False] = False

    def __init__(
        self,
        where: str,
        connection: BlockingConnection,
        subscription: Subscription,
        engine: Engine | None = None,
    ) -> None:
        super().__init__(where, subscription)
        self._connection = connection
        self._engine = engine
        self.has_begun = False
        """Whether :meth:`begin` has come to its end."""

    @classmethod
    def open(
        cls, address: str | socket.socket, *, position: State | None = None, **arguments: Any
    ) -> Self:
        """Connect and subscribe; errors as of :meth:`AsyncFeed.open`.

        Args:
            address: As of :meth:`call`.
            position: Where to go on; ``None``: at the beginning.
            arguments: As of :meth:`call`.
        """
        self = cls.call(address, **arguments)
        try:
            self.begin(position)
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def call(
        cls,
        address: str | socket.socket,
        *,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int | None = None,
        token: str | None = None,
        fingerprint: Fingerprint | None = None,
        credit_bytes: int = CREDIT_BYTES,
        payload_cap: int = DEFAULT_PAYLOAD_CAP,
        patience: float = PATIENCE,
        stall_timeout: float = math.inf,
        engine: Engine | None = None,
        inbox: Inbox | None = None,
    ) -> Self:
        """Connect, and do not wait for an answer; :meth:`begin` does.

        Args:
            address: ``tcp://host:port/dataset``, ``unix:///path#dataset``, or a connected socket,
                which the feed then owns.
            rank: Which part of the stream.
            world_size: Of how many.
            batch_size: Records per rank and batch; ``None``: the dataset's own.
            token: What the feeder wants to see; never sent over TCP beyond this machine.
            fingerprint: What the feeder must serve.
            credit_bytes: Bytes of batches that may wait on their way.
            payload_cap: The largest batch to accept, in bytes.
            patience: Seconds without a sign of life after which the feeder counts as lost.
            stall_timeout: Seconds to wait for a batch from a feeder that gives signs of life.
            engine: The process that serves this feed alone; closed with the feed.
            inbox: Memory that the feeder shares.

        Raises:
            ConfigError: An argument is wrong.
            FeederLost: The feeder cannot be reached.
        """
        where, subscription = _prepare(
            address,
            rank=rank,
            world_size=world_size,
            batch_size=batch_size,
            position=None,
            token=token,
            fingerprint=fingerprint,
            credit_bytes=credit_bytes,
            inbox=inbox,
        )
        machine = Connection(Role.CLIENT, payload_cap=payload_cap)
        connection = BlockingConnection(
            connect(address), machine, patience=patience, stall_timeout=stall_timeout
        )
        self = cls(where, connection, subscription, engine)
        connection.send_if_possible(subscription.hello)
        return self

    @property
    def answers(self) -> bool:
        """Whether something has come from the feeder, or the connection has ended."""
        return self._connection.readable

    def begin(self, position: State | None = None) -> None:
        """Wait for the answer to the call, and subscribe; an interrupted wait can be taken up.

        Args:
            position: Where to go on; ``None``: at the beginning.

        Raises:
            FeederLost: The connection broke.
            FeederRefused: The feeder does not serve this client or dataset.
            StateError: The position or the fingerprint does not fit what it serves.
        """
        self._subscription.seek(position)
        try:
            self._subscription.welcome(self._next())
            self.subscribe()
        except StreamrecError as error:
            self._connection.close()
            raise self._explained(error) from None
        self.has_begun = True

    def receive(self) -> Batch:
        """The next batch; errors as of :meth:`AsyncFeed.receive`."""
        self._check_receivable()
        try:
            batch = self._subscription.take(self._next())
        except StreamrecError as error:
            self._connection.close()
            self._failure = self._explained(error)
            raise self._failure from None
        self._connection.send_if_possible(*self._subscription.due())
        return batch

    def subscribe(self, position: State | None = None) -> None:
        """Start the next run, after the end of one.

        Args:
            position: Where to begin; ``None``: where the last run ended.
        """
        self._subscription.seek(position)
        self._connection.send_if_possible(*self._subscription.subscribe())

    def close(self) -> None:
        """Disconnect, and end the engine process; closing again changes nothing."""
        self._connection.close()
        if self._engine is not None:
            self._engine.close(at_once=not self.has_begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> Message:
        since = monotonic()
        while self._subscription.note(message := self._connection.receive(since)):
            pass
        return message

    def _explained(self, error: StreamrecError) -> StreamrecError:
        if self._engine is not None and isinstance(error, FeederLost):
            reason = self._engine.diagnosis()
            error = FeederLost(reason) if reason else error
        return self._subscription.lost(error)


def _prepare(
    address: str | socket.socket,
    *,
    rank: int,
    world_size: int,
    batch_size: int | None,
    position: State | None,
    token: str | None,
    fingerprint: Fingerprint | None,
    credit_bytes: int,
    inbox: Inbox | None = None,
) -> tuple[str, Subscription]:
    """What to call the feeder, and the subscription to open there."""
    place = Address.parse(address) if isinstance(address, str) else None
    if token and place is not None and not place.is_loopback:
        raise ConfigError(
            f"a token is not sent over plain TCP to {place.host}: everybody on the way could read "
            "it; use a Unix socket, or a tunnel that ends at localhost"
        )
    subscription = Subscription(
        (place.dataset if place else None) or ENGINE_DATASET,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        position=position,
        token=token,
        fingerprint=fingerprint,
        credit_bytes=credit_bytes,
        inbox=inbox,
    )
    return str(place) if place else "the engine process", subscription
