"""The arrival of a client: it says HELLO and is admitted, as one visit; the source of its batches.

Who comes to a feeder is not known yet. So all that a visitor may do here has a time limit, is
counted among the handshakes, and takes nothing that clients need.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from socket import MSG_PEEK, SHUT_WR
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import ConfigError, FeederDraining, FeederLost, FeederRefused
from streamrec.feeder.access.access import present_handshakes
from streamrec.feeder.access.address import check_received
from streamrec.feeder.client.connection import LINGER, AsyncConnection
from streamrec.feeder.client.watch import Watch
from streamrec.feeder.client.welcome import facts_of, mapping_of
from streamrec.feeder.server.conversation import Conversation, common_version, fault_of
from streamrec.feeder.server.listener import first_bytes, peer_of, readable, remote_host
from streamrec.feeder.server.replicas import ReplicaReader
from streamrec.feeder.server.statistics import SessionLog
from streamrec.masking import mask_urls, masked
from streamrec.plan.state.resume_point import read_resume_point
from streamrec.wire.error_fields import to_fields
from streamrec.wire.frame import MAGIC
from streamrec.wire.messages import Goaway
from streamrec.wire.protocol import Connection, Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from streamrec.feeder.access.access import Handshake
    from streamrec.feeder.access.tokens import Grant
    from streamrec.feeder.client.shared import Outbox, Outboxes
    from streamrec.feeder.server.conversation import Batches
    from streamrec.feeder.server.replicas import Replica
    from streamrec.feeder.server.service import Service
    from streamrec.feeder.server.statistics import Subscription
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.served import Served, ServedRun
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.wire.messages import Hello, Message, Subscribe


MOST_NAMES = 1 << 20
"""Bytes of shard URLs that WELCOME may carry; their number is always there."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client, as far as the source of its batches must know it."""

    hello: Hello
    peer: str | None
    """The address of its machine; ``None``: it is this one."""
    outbox: Outbox | None
    """The outbox in memory that it has brought, if it did."""
    session_log: SessionLog


class DatasetSource:
    """The source of one client's batches; made by :meth:`open`."""

    def __init__(
        self, *, service: Service, client: Client, dataset: Served, opened_in: float
    ) -> None:
        self.name = client.hello.dataset
        self.subscription: Subscription | None = None
        """The client's subscription, from SUBSCRIBE on."""
        self._service = service
        self._client = client
        self._dataset = dataset
        self._world_size = client.hello.world_size
        self._batch_size = client.hello.batch_size or dataset.settings.batch_size
        self._start: Callable[[ResumePoint | None], ServedRun]
        self._opened_in = opened_in
        """Seconds for which the first run waited until its dataset was open."""

    @classmethod
    async def open(cls, service: Service, client: Client, grant: Grant) -> Self:
        """Wait for the dataset that a client names, and return it as a source.

        Raises:
            FeederRefused: There is no dataset of this name.
            ConfigError: The client names a world size without ranks.
            StreamrecError: The dataset cannot be opened.
        """
        clock = asyncio.get_running_loop().time
        arrived = clock()
        dataset = await service.dataset(client.hello.dataset, grant)
        opened_in = clock() - arrived
        self = cls(service=service, client=client, dataset=dataset, opened_in=opened_in)
        service.statistics.count_opening(self.name, opened_in)
        return self

    async def describe(self) -> None:
        """Find what WELCOME says of the dataset.

        Raises:
            ConfigError: The client names a world size without ranks.
        """
        dataset, batch_size, world_size = self._dataset, self._batch_size, self._world_size
        if not world_size:
            raise ConfigError("world_size must be 1 or more, not 0")
        codes = {} if self._service.codes is None else await self._service.codes.of(dataset)
        facts = facts_of(dataset, names_told(dataset), batch_size, world_size, codes)
        self.facts = json.dumps(facts).encode()
        fingerprint = dataset.fingerprint(batch_size, world_size)
        self.fingerprint = json.dumps(fingerprint.to_dict()).encode()

    @asynccontextmanager
    async def subscribe(self, rank: int) -> AsyncIterator[None]:
        """Count a subscription, and lend it memory, while the block runs."""
        subscribed = self._service.statistics.subscribe(
            self.name,
            rank=rank,
            world_size=self._world_size,
            batch_size=self._batch_size,
            peer=self._client.peer,
        )
        with subscribed as self.subscription:
            if self._client.hello.replicas:
                # The reading that replicas share has memory of its own.
                self._start = self._replica(rank)
                yield
                return
            async with self._service.memory(self._dataset, self._world_size) as loan:
                run = partial(
                    self._dataset.run,
                    rank=rank,
                    world_size=self._world_size,
                    batch_size=self._batch_size,
                    allocate=self._allocate(),
                    budget=loan.budget,
                    ceiling=loan.ceiling,
                )
                self._start = lambda position: run(position=position)
                yield

    def run(self, subscribe: Subscribe) -> AbstractAsyncContextManager[ServedRun]:
        """Return the run that begins where a client says.

        Raises:
            StateError: That is not a position of this stream.
        """
        return self._count_run(self._start(_position(subscribe)))

    def counters(self, batches: Batches) -> dict[str, Any]:
        """Return the counters of a run, with the time until the dataset was open."""
        counters = batches.statistics()
        if self._opened_in and "waits" in counters:
            counters["waits"]["list"] = self._opened_in
        return counters

    def count(self, batch: Batch, size: int) -> None:
        """Count a batch that was sent, in a frame of so many bytes."""
        assert self.subscription is not None
        step = batch.next_position.step
        self._service.statistics.count_batch(self.subscription, step, len(batch), size)
        self._client.session_log.count(size)

    @asynccontextmanager
    async def _count_run(self, run: ServedRun) -> AsyncIterator[ServedRun]:
        assert self.subscription is not None
        async with run:
            self._client.session_log.subscribe(self.subscription.rank, run.position.step)
            self.subscription.begin(run)
            try:
                yield run
            finally:
                # The next run of this client did not wait for the dataset to be opened.
                self._opened_in = 0.0
                self.subscription.finish()

    def _replica(self, rank: int) -> Callable[[ResumePoint | None], Replica]:
        reader = ReplicaReader(
            name=self.name,
            dataset=self._dataset,
            rank=rank,
            world_size=self._world_size,
            batch_size=self._batch_size,
        )
        return partial(self._service.readings.replica, reader)

    def _allocate(self) -> Allocate | None:
        """Return the source of memory for large columns; ``None``: the run's own."""
        # A client may write to what it shares, at any time: nothing of it must come to a cache.
        cache, outbox = self._dataset.settings.cache, self._client.outbox
        # A cache of ranges has bytes of the store, which are decoded behind it.
        keeps_decoded = cache is not None and cache.of != "ranges"
        return None if outbox is None or keeps_decoded else outbox.allocate


def _position(subscribe: Subscribe) -> ResumePoint | None:
    if not subscribe.position:
        return None
    return read_resume_point(mapping_of(subscribe.position, "the position of SUBSCRIBE"))


def names_told(dataset: Served) -> list[str] | None:
    """Return the shards' URLs for WELCOME; ``None``: they are too many to be told."""
    room = MOST_NAMES
    for url in dataset.shards:
        # In JSON: two quotes, a comma and a space.
        room -= len(url) + 4
        if room < 0:  # without a look at the others, which may be a million
            return None
    return [masked(url) for url in dataset.shards]


class Visit:
    """A connection from its arrival to its end; the host of the conversation with its client.

    Args:
        service: What is served, and the settings, the limits and the counters.
        sock: The connection, in a socket that this owns.
        tls: It came to an address of TLS.
    """

    def __init__(self, service: Service, sock: socket.socket, *, tls: bool) -> None:
        self.connection = AsyncConnection(
            Connection(Role.SERVER), most_frames=service.settings.max_frames_per_second
        )
        self._service = service
        self._sock = sock
        self._tls = tls
        self._peer = remote_host(sock)
        self._log = SessionLog(peer_of(sock))
        self._source: DatasetSource | None = None
        self._outbox: Outbox | None = None
        self._refusal: FeederRefused | None = None
        """What to tell a client that has the wrong port, as soon as it can be told."""

    async def serve(self, outboxes: Outboxes) -> None:
        """Serve the client until either side is done."""
        # The loop's socket calls refuse one that blocks.
        self._sock.setblocking(False)
        settings = self._service.settings
        try:
            self._arrive()
            with outboxes.open(await self._descriptor()) as self._outbox:
                await self._greet()
                conversation = Conversation(
                    self.connection,
                    self,
                    self._outbox,
                    handshake_timeout=settings.handshake_timeout,
                    linger=self._service.linger,
                )
                await conversation.run()
        except (FeederDraining, FeederLost) as reason:
            self.connection.stop(reason)
        except FeederRefused as refused:
            self.drop("tls")
            self._log.fail(refused)
        finally:
            # Whatever has ended the visit, its place is free for the next client.
            self._service.admission.leave(self.connection)
            self.connection.abort()
            self._log.end(self.connection.broken)

    @asynccontextmanager
    async def admit(self, hello: Hello) -> AsyncIterator[DatasetSource]:
        """Let a client in while the block runs, and open the dataset that it asks for.

        Raises:
            FeederRefused: It may not read that, speaks another protocol, or has the wrong port.
            FeederDraining: There is no room for it.
            StreamrecError: The dataset cannot be opened.
        """
        self._log.note_hello(hello)
        if self._refusal is not None:
            raise self._refusal
        grant = await self._grant(hello)
        # After the token: a stranger learns nothing of this feeder, its versions neither.
        common_version(hello)
        await self._service.admit(self.connection)
        # From here on idle_timeout holds; until HELLO it was handshake_timeout.
        with Watch(self.connection, self._service.settings.idle_timeout, self._idle):
            client = Client(
                hello=hello, peer=self._peer, outbox=self._outbox, session_log=self._log
            )
            self._source = await DatasetSource.open(self._service, client, grant)
            await self._source.describe()
            self._log.welcome()
            yield self._source

    def drop(self, reason: str) -> None:
        """Count a connection that the feeder ends."""
        self._service.statistics.dropped[reason] += 1

    def fail(self, error: Exception) -> Message:
        """Log and count why a client cannot be served any longer; return what to tell it."""
        self._log.fail(error)
        # Not counted as a fault: the client is told to go elsewhere, and goes on there.
        if isinstance(error, FeederDraining):
            return Goaway(error.message)
        # None where the client was refused before its dataset was open.
        source = self._source
        self._service.note_failure("" if source is None else source.name, error)
        subscription = None if source is None else source.subscription
        self._service.statistics.count_fault(
            to_fields(error)["type"],
            mask_urls(str(error)),
            peer=self._peer or "local",
            dataset=subscription.dataset if subscription else None,
            rank=subscription.rank if subscription else None,
        )
        return fault_of(error)

    def _arrive(self) -> None:
        self._service.statistics.connections_total += 1
        crowded_out = self._service.admission.arrive(self.connection, self._peer)
        if crowded_out is not None:
            self.drop("crowd")
            crowded_out.stop(FeederLost("too many handshakes are under way (max_handshakes)"))
            # Without a word: it has said nothing, and would hold its place until it had read one.
            crowded_out.abort()

    async def _descriptor(self) -> int | None:
        """Receive what a client on this machine says first; return the descriptor that it sends."""
        connection = self.connection
        if self._tls or self._sock.family != socket.AF_UNIX or connection.broken is not None:
            return None
        descriptor = None
        try:
            async with asyncio.timeout(self._service.settings.handshake_timeout) as waiting:
                # A reason to end the visit ends this wait: the loop's clock is past 0.
                connection.on_broken = partial(waiting.reschedule, 0)
                connection.first, descriptor = await first_bytes(self._sock)
        except TimeoutError:
            if connection.broken is None:
                self.drop("handshake")
                connection.stop(FeederLost("no HELLO came in time"))
        finally:
            connection.on_broken = None
        return descriptor

    async def _greet(self) -> None:
        """Put the connection on its socket.

        Raises:
            FeederLost: It is gone, or was too slow.
            FeederDraining: This feeder serves nobody any more.
            FeederRefused: The handshake of TLS has failed.
        """
        if not self._tls:
            await greet(self._sock, self.connection)
            return
        access, seconds = self._service.access, self._service.settings.handshake_timeout
        await access.look()
        if access.certificates is None:
            raise FeederLost("the feeder no longer has a certificate")
        context = access.certificates.context
        try:
            self._refusal = await shake_hands(self._sock, self.connection, context, seconds)
        except TimeoutError:
            self.drop("handshake")
            raise FeederLost("no handshake of TLS came in time") from None

    async def _grant(self, hello: Hello) -> Grant:
        """Return what a client may read; its own dataset is among it.

        Raises:
            FeederRefused: It shows no token that opens that, or not in private.
        """
        access = self._service.access
        # Before the token is compared: one that others may have read must not open anything.
        check_received(hello.token, is_private=self._tls or self._peer is None)
        await access.look()
        grant = access.tokens.grant(hello.token)
        grant.check(hello.dataset, shows_token=bool(hello.token))
        return grant

    def _idle(self) -> None:
        self.drop("idle")
        timeout = self._service.settings.idle_timeout
        reason = (
            f"the client gave no sign of life for {timeout:.3g} s and lost its "
            "place; connect again with the position, or raise idle_timeout in the feeder's [server]"
        )
        self.connection.stop(FeederDraining(reason))


async def greet(sock: socket.socket, connection: AsyncConnection) -> None:
    """Put a connection on a socket that was accepted, without TLS."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: connection, sock)


async def shake_hands(
    sock: socket.socket, connection: AsyncConnection, context: ssl.SSLContext, seconds: float
) -> FeederRefused | None:
    """Put a connection on a socket that was accepted, with TLS.

    Args:
        sock: The socket.
        connection: What to put on it; a reason to end it ends the handshake, too.
        context: The certificate, and what is asked of clients.
        seconds: The time that a client has for it.

    Returns:
        ``None``; or, where the client does not speak TLS, what to tell it. It is connected then,
        too.

    Raises:
        TimeoutError: The client took too long.
        FeederRefused: The handshake failed, and the client knows why.
        FeederLost: The connection is gone.
    """
    sock.setblocking(False)
    try:
        async with asyncio.timeout(seconds) as shaking:
            # A reason to end the visit ends the handshake: the loop's clock is past 0.
            connection.on_broken = partial(shaking.reschedule, 0)
            # It may have been crowded out before anybody was to be told.
            if connection.broken is not None:
                raise connection.broken
            if await _speaks_plainly(sock):
                await greet(sock, connection)
                return FeederRefused(
                    "this port needs TLS, but the client speaks without it; connect to tls:// in "
                    "place of tcp://",
                    code="tls",
                )
            await _shake(sock, connection, context)
    except TimeoutError:
        if connection.broken is None:
            raise
        raise connection.broken from None
    finally:
        connection.on_broken = None
    return None


async def _speaks_plainly(sock: socket.socket) -> bool:
    """Return True if a client begins without TLS, with a frame; its bytes stay unread."""
    await readable(sock)
    try:
        first = sock.recv(1, MSG_PEEK)
    except OSError as error:
        raise FeederLost(f"the connection broke: {error}") from None
    if not first:
        raise FeederLost("the connection was closed by the other side")
    return first == MAGIC[:1]


async def _shake(sock: socket.socket, connection: AsyncConnection, context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    ends: list[Handshake] = []
    present_handshakes.set(ends)  # for this task, and what the loop does for it
    with sock.dup() as spare:  # the loop closes the other
        try:
            await loop.connect_accepted_socket(lambda: connection, sock, ssl=context)
        except ssl.SSLError as error:
            await _say(spare, b"".join(one.alert for one in ends))
            reason = getattr(error, "verify_message", None) or error.reason or "no reason is known"
            raise FeederRefused(f"the handshake of TLS failed: {reason}", code="tls") from None
        except OSError as error:
            # Event loops do not send the alert of a client that distrusts the certificate.
            raise FeederRefused(
                f"the client left in the handshake of TLS ({error}), so it may not trust this "
                "feeder's certificate; give its authority as the client's tls=",
                code="tls",
            ) from None


async def _say(sock: socket.socket, alert: bytes) -> None:
    """Send the last bytes, and wait until the client has read them: a reset would discard them."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # a TimeoutError is one too
        async with asyncio.timeout(LINGER):
            await loop.sock_sendall(sock, alert)
            sock.shutdown(SHUT_WR)
            while await loop.sock_recv(sock, 1 << 16):
                pass
