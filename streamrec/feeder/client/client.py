"""Feeds: how one connection to a feeder is made and received from, in asyncio and in plain code.

Both have the same shape, and end with their connection; :mod:`streamrec.feeder.client.healing` goes
on. What was received whole is delivered, whatever happened to the connection afterwards; then the
error comes, with the position of the last batch that was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, Unpack
from zlib import crc32

from streamrec.errors import ConfigError, FeederLost, StreamrecError
from streamrec.feeder.access.access import client_context, failure
from streamrec.feeder.access.address import Address, check_sending
from streamrec.feeder.client.blocking import BlockingConnection
from streamrec.feeder.client.connection import AsyncConnection
from streamrec.feeder.client.session import NEAR, FeedState, Options
from streamrec.feeder.client.shared import Inbox, create_memory
from streamrec.feeder.client.watch import Watch, silence, stall_error
from streamrec.flow.channel import EndOfStream
from streamrec.wire.protocol import Connection, Role
from streamrec.wire.protocol import State as ConnectionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamrec.errors import FeederRefused
    from streamrec.feeder.client.session import State
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.wire.messages import Message


CONNECT_TIMEOUT = 10.0


def look_up(addresses: Iterable[Address]) -> list[Address]:
    """Return the addresses that names stand for now: one for each machine behind a name.

    They are in an order that all clients share. What cannot be looked up stays as it is, and the
    attempt to connect there says why.
    """
    return [machine for place in addresses for machine in _look_up_all(place)]


async def look_up_async(
    addresses: Sequence[Address],
    timeout: float = CONNECT_TIMEOUT,  # noqa: ASYNC109 - as for a connection
) -> list[Address]:
    """Return what :func:`look_up` does, in threads; after some seconds, the names as they are."""
    if not any(one.is_name for one in addresses):
        return list(addresses)
    try:
        async with asyncio.timeout(timeout):
            machines = await asyncio.gather(
                *(asyncio.to_thread(_look_up_all, one) for one in addresses)
            )
    except TimeoutError:
        return list(addresses)
    return [one for some in machines for one in some]


def _look_up_all(place: Address) -> list[Address]:
    if not place.is_name:
        return [place]
    try:
        # AI_ADDRCONFIG: no IPv6 addresses for a machine that has no IPv6 itself.
        answers = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except OSError:
        return [place]
    # Sorted, so that all clients count the same machines: each rank begins at its own. By dataset,
    # so that the first ranks of all jobs do not begin at one feeder.
    machines = {str(answer[4][0]) for answer in answers}
    return [
        replace(place, ip=ip)
        for ip in sorted(machines, key=lambda ip: (crc32(f"{place.dataset} {ip}".encode()), ip))
    ]


def connect(
    address: Address | socket.socket, timeout: float | None = CONNECT_TIMEOUT
) -> socket.socket:
    """Return a socket that is connected to a feeder; a ready-made one as it is.

    Raises:
        FeederLost: The feeder cannot be reached.
        ConfigError: It speaks TLS, which plain code leaves to an event loop.
    """
    if isinstance(address, socket.socket):
        return address
    if address.tls:
        raise ConfigError(
            f"{address}: a plain `for` over TLS needs an engine process; read with "
            'engine="process", or with `async for`'
        )
    try:
        if address.path is not None:
            return connect_unix(address.path, timeout)
        return socket.create_connection((address.ip or address.host, address.port), timeout)
    except OSError as error:
        raise _error_of(address, error) from None


def connect_unix(path: str, timeout: float | None = CONNECT_TIMEOUT) -> socket.socket:
    """Return a socket that is connected to the one at a path."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


async def connect_async(
    address: Address | socket.socket,
    machine: Connection,
    *,
    timeout: float | None = CONNECT_TIMEOUT,  # noqa: ASYNC109 - one for all kinds of addresses
    tls: ssl.SSLContext | None = None,
) -> AsyncConnection:
    """Return a connection to a feeder, for asyncio.

    Args:
        address: Where it is, or a connected socket.
        machine: This end of the protocol.
        timeout: Seconds to wait, for the handshake of TLS too.
        tls: The context of TLS; ``None``: one that trusts the system's authorities.

    Raises:
        FeederLost: The feeder cannot be reached.
        FeederRefused: It does not speak TLS, or one of the two certificates is refused.
    """
    loop = asyncio.get_running_loop()
    where = None if isinstance(address, socket.socket) else str(address)

    def connection() -> AsyncConnection:
        return AsyncConnection(machine, where=where)

    if isinstance(address, socket.socket):
        # A transport needs a socket that does not block.
        address.setblocking(False)
        return (await loop.connect_accepted_socket(connection, address))[1]
    context = (tls or client_context({})) if address.tls else None
    # The certificate names the host of the address, whichever of its machines is tried.
    name = address.host if address.tls else None
    host, port = str(address.ip or address.host), address.port or 0
    try:
        async with asyncio.timeout(timeout):
            if address.path is not None:
                return (await loop.create_unix_connection(connection, address.path))[1]
            opening = loop.create_connection(
                connection, host, port, ssl=context, server_hostname=name
            )
            return (await opening)[1]
    except OSError as error:  # a TimeoutError is one too
        raise _error_of(address, error) from None


def _error_of(place: Address, error: OSError) -> FeederLost | FeederRefused:
    if isinstance(error, ssl.SSLError):
        return failure(error, str(place))
    reason = error.strerror or str(error) or type(error).__name__
    return FeederLost(
        f"cannot connect to {place}: {reason}; check that a feeder runs there and can be reached"
    )


Place: TypeAlias = str | Address | socket.socket
"""An address as text or as it was parsed, or a connected socket."""

ENGINE_DATASET = "stream"
"""The name of the only dataset behind a ready-made socket."""
PATIENCE = 60.0
"""Seconds without a sign of life after which a feeder counts as lost."""
LOOK_EVERY = 1.0
"""Seconds between two looks whether a slow batch still arrives."""


class OwnProcess(Protocol):
    """The process that serves a feed alone and ends with it: an engine."""

    def diagnosis(self) -> str | None:
        """Return why the process ended, with its last words; ``None`` if it has not."""

    def close(self, *, at_once: bool = False) -> None:
        """End the process; ``at_once``: it serves nobody yet."""


class _Feed(FeedState):
    """A feed: its state and its connection, as far as both kinds share them.

    Args:
        address: Where the dataset is, or a connected socket, which the feed then owns.
        options: Those of the feed.

    Raises:
        ConfigError: An argument is wrong.
    """

    _connection: AsyncConnection | BlockingConnection
    _patience: float

    def __init__(self, address: Place, options: Options) -> None:
        self._address = Address.parse(address) if isinstance(address, str) else address
        is_near = not isinstance(self._address, Address) or self._address.path is not None
        # A user's credit is taken as it is, also on this machine.
        if is_near and "credit_bytes" not in options:
            options = {**NEAR, **options}
        if isinstance(self._address, Address):
            check_sending(self._address, options.get("token"))
            self._where = str(self._address)
            dataset = self._address.dataset or ENGINE_DATASET
        else:
            self._where, dataset = "the engine process", ENGINE_DATASET
        super().__init__(dataset, **options)
        self._failure: StreamrecError | None = None

    def subscribe(self, position: State | None = None) -> None:
        """Start the next run, after the end of one.

        Args:
            position: The place to begin at; ``None``: where the last run ended.
        """
        self.seek(position)
        self._connection.post_if_possible(*self.request())

    def _patience_for_welcome(self, patience: float, connect_timeout: float) -> float:
        """Return the seconds without a sign of life until WELCOME: few, where it may be nobody."""
        return min(patience, connect_timeout) if isinstance(self._address, Address) else patience

    def _say_hello(self) -> None:
        """Greet the feeder, and bring memory along where it is on this machine."""
        with create_memory(self.shared_bytes if self._connection.is_local else 0) as memory:
            if memory is not None:
                with contextlib.suppress(OSError):  # no room for it in this process
                    self.inbox = Inbox(memory)
            if memory is None or self.inbox is None:
                self._connection.post_if_possible(self.hello)
            else:
                self._connection.post_with(memory, self.hello)

    def _check_receivable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.over:
            raise EndOfStream

    def _fail(self, error: StreamrecError) -> StreamrecError:
        """Cut the connection; return the error, which every later call raises too."""
        self._connection.abort()
        self.inbox = None
        self._failure = self.lost(error)
        return self._failure

    def __repr__(self) -> str:
        step = (self.position or {}).get("step", 0)
        return f"<{type(self).__name__} of {self._where}, step {step}>"


class AsyncFeed(_Feed):
    """A feeder's stream in asyncio code; made by :meth:`open`."""

    is_async: Literal[True] = True
    _connection: AsyncConnection
    _stall_timeout: float

    @classmethod
    async def open(
        cls,
        address: Place,
        *,
        patience: float = PATIENCE,
        stall_timeout: float = math.inf,
        connect_timeout: float = CONNECT_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Connect and subscribe; the first batches are on their way when it returns.

        Args:
            address: Where the dataset is, or a connected socket, which the feed then owns.
            patience: Seconds without a sign of life after which the feeder counts as lost.
            stall_timeout: Seconds to wait for a batch from a feeder that gives signs of life.
            connect_timeout: Seconds to connect, and then without a sign of life before WELCOME.
            tls: The context of TLS, for an address that asks for it.
            options: Those of the feed.

        Raises:
            ConfigError: An argument is wrong.
            FeederLost: The feeder cannot be reached.
            FeederRefused: It does not serve this client or dataset.
            StateError: The position or the fingerprint does not fit what it serves.
        """
        self = cls(address, options)
        self._stall_timeout = stall_timeout
        self._patience = self._patience_for_welcome(patience, connect_timeout)
        machine = Connection(Role.CLIENT)
        self._connection = await connect_async(
            self._address, machine, timeout=connect_timeout, tls=tls
        )
        try:
            self._say_hello()
            self.welcome(await self._next())
            # Whoever has said WELCOME is a feeder, and gets the time of one.
            self._patience = patience
            self.subscribe()
        except StreamrecError as error:
            raise self._fail(error) from None
        except BaseException:
            self._connection.abort()
            raise
        return self

    async def receive(self) -> Batch:
        """Return the next batch; cancelling the wait loses nothing.

        Raises:
            EndOfStream: The run is over; :meth:`subscribe` starts the next.
            FeederLost: The connection broke; ``position`` is where to go on.
            FeederDraining: The feeder shuts down; go on elsewhere.
            Stalled: It is there, and sent nothing of the stream for ``stall_timeout``.
            StreamrecError: The feeder's own error, such as a corrupt record.
        """
        self._check_receivable()
        try:
            batch = self.take(await self._next())
        except StreamrecError as error:
            raise self._fail(error) from None
        # Without a wait, so that no cancellation can come between a batch and its taker.
        self._connection.post_if_possible(*self.due())
        return batch

    async def aclose(self) -> None:
        """Disconnect; closing again changes nothing."""
        self._connection.abort()
        self.inbox = None
        await self._connection.wait_closed()

    async def _next(self) -> Message:
        """Return the next message of the stream, unless the feeder is lost or stalls."""
        until = asyncio.get_running_loop().time() + self._stall_timeout
        while self.note(message := await self._message(until)):
            pass
        return message

    async def _message(self, until: float) -> Message:
        # What has come already needs no clock.
        if self._connection.waiting:
            return await self._connection.receive()
        # A feeder that nobody waited for was not asked, and owes no sign of life.
        with Watch(self._connection, self._patience, self._lose):
            while True:
                try:
                    async with asyncio.timeout_at(until if until < math.inf else None):
                        return await self._connection.receive()
                except TimeoutError:
                    if not self._connection.machine.exact:
                        raise stall_error(self._stall_timeout) from None
                    # A batch is on its way, and may take its time.
                    until = asyncio.get_running_loop().time() + LOOK_EVERY

    def _lose(self) -> None:
        self._connection.stop(FeederLost(silence(self._patience)))
        self._connection.abort()


class BlockingFeed(_Feed):
    """A feeder's stream in plain code; made by :meth:`open`. Used by one thread at a time."""

    is_async: Literal[False] = False
    _connection: BlockingConnection

    def __init__(self, address: Place, options: Options, engine: OwnProcess | None = None) -> None:
        super().__init__(address, options)
        self._engine = engine
        self.has_begun = False
        """True once :meth:`begin` has come to its end."""

    @classmethod
    def open(cls, address: Place, **arguments: Any) -> Self:
        """Connect and subscribe; arguments as of :meth:`call`, errors as of `AsyncFeed.open`."""
        self = cls.call(address, **arguments)
        self.begin()
        return self

    @classmethod
    def call(
        cls,
        address: Place,
        *,
        patience: float = PATIENCE,
        stall_timeout: float = math.inf,
        connect_timeout: float = CONNECT_TIMEOUT,
        engine: OwnProcess | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Connect, and do not wait for an answer; :meth:`begin` does.

        Args:
            address: Where the dataset is, or a connected socket, which the feed then owns.
            patience: Seconds without a sign of life after which the feeder counts as lost.
            stall_timeout: Seconds to wait for a batch from a feeder that gives signs of life.
            connect_timeout: Seconds to connect, and then without a sign of life before WELCOME;
                not for a connected socket.
            engine: The process that serves this feed alone; closed with the feed.
            options: Those of the feed.

        Raises:
            ConfigError: An argument is wrong.
            FeederLost: The feeder cannot be reached.
        """
        self = cls(address, options, engine)
        self._patience = patience
        self._connection = BlockingConnection(
            connect(self._address, connect_timeout),
            Connection(Role.CLIENT),
            patience=self._patience_for_welcome(patience, connect_timeout),
            stall_timeout=stall_timeout,
        )
        self._say_hello()
        return self

    @property
    def answers(self) -> bool:
        """True once something has come from the feeder, or the connection has ended."""
        return self._connection.readable

    def begin(self, position: State | None = None) -> None:
        """Wait for the answer to the call, and subscribe; a failure closes the feed.

        Args:
            position: The place to go on at; ``None``: the one that the call named.

        Raises:
            FeederLost: The connection broke.
            FeederRefused: The feeder does not serve this client or dataset.
            StateError: The position or the fingerprint does not fit what it serves.
        """
        self._check_receivable()
        self.seek(position)
        try:
            self.welcome(self._next())
            # Whoever has said WELCOME is a feeder, and gets the time of one.
            self._connection.set_patience(self._patience)
            self.subscribe()
            self.has_begun = True
        except StreamrecError as error:
            raise self._fail(error) from None
        finally:
            if not self.has_begun:
                self.close()

    def receive(self) -> Batch:
        """Return the next batch; errors as of :meth:`AsyncFeed.receive`."""
        self._check_receivable()
        try:
            batch = self.take(self._next())
        except StreamrecError as error:
            raise self._fail(error) from None
        self._connection.post_if_possible(*self.due())
        return batch

    def close(self) -> None:
        """Disconnect, and end the engine process; closing again changes nothing."""
        self._connection.abort()
        self.inbox = None
        if self._engine is not None:
            self._engine.close(at_once=not self.has_begun)

    def _next(self) -> Message:
        since = monotonic()
        while self.note(message := self._connection.receive(since)):
            pass
        return message

    def _fail(self, error: StreamrecError) -> StreamrecError:
        self._connection.abort()  # before the process is asked: it ends when the socket does
        reason = None
        is_told = self._connection.machine.state is ConnectionState.FINISHED  # by FAULT
        if self._engine is not None and isinstance(error, FeederLost) and not is_told:
            reason = self._engine.diagnosis()
        return super()._fail(FeederLost(reason) if reason else error)
