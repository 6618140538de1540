"""The feeder's side of one connection, from HELLO to the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from streamrec.errors import (
    ConfigError,
    FeederDraining,
    FeederLost,
    FeederRefused,
    StreamrecError,
)
from streamrec.feeder.access.exposure import check_received
from streamrec.feeder.client.connection import LINGER
from streamrec.feeder.client.watch import Watch
from streamrec.feeder.client.welcome import facts_of, mapping_of
from streamrec.feeder.server.replicas import ReplicaReader
from streamrec.flow.channel import EndOfStream
from streamrec.flow.loop_share import LoopShare
from streamrec.masking import masked, shown
from streamrec.pipeline.batch import payload
from streamrec.plan.state.position import VERSION
from streamrec.plan.state.resume_point import read_resume_point
from streamrec.wire.error_fields import to_fields
from streamrec.wire.frame import frame_size
from streamrec.wire.messages import End, Fault, Goaway, Hello, Statistics, Subscribe, Welcome
from streamrec.wire.protocol import PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from streamrec.feeder.access.tokens import Grant
    from streamrec.feeder.client.connection import AsyncConnection
    from streamrec.feeder.client.shared import Outbox
    from streamrec.feeder.server.replicas import Replica
    from streamrec.feeder.server.service import Service
    from streamrec.feeder.server.session_log import SessionLog
    from streamrec.feeder.server.subscription import Subscription
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.dataset import Dataset
    from streamrec.pipeline.run import Run
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.wire.messages import Message

    T = TypeVar("T")

MOST_NAMES = 1 << 20
"""Bytes of shard URLs that WELCOME may carry; their number is always there."""

TELL_EVERY = 0.1
"""Seconds between two STATISTICS, at least: counting and writing them costs as much as a small
batch."""


class Conversation:
    """A conversation with one client.

    Args:
        service: The datasets, the settings and the statistics.
        connection: The connection to the client.
        session_log: The log of the connection.
        peer: The address of the client's machine; ``None``: it is this one.
        outbox: The outbox in memory that the client has brought, if it did.
        is_private: Nobody on the way can read what the client sends.
    """

    def __init__(
        self,
        service: Service,
        connection: AsyncConnection,
        session_log: SessionLog,
        peer: str | None = None,
        outbox: Outbox | None = None,
        *,
        is_private: bool = True,
    ) -> None:
        self._service = service
        self._peer = peer
        self._is_private = is_private
        self._subscription: Subscription | None = None
        self._connection = connection
        self._log = session_log
        self._dataset = ""
        self._outbox = outbox
        if outbox is not None:
            connection.on_release = outbox.free
        self._settings = service.settings
        self._linger = service.settings.handshake_timeout
        """Seconds that the client has to read the last message, and to disconnect."""
        self._told_at = float("-inf")
        self._opened_in = 0.0
        """Seconds for which the first run waited until its dataset was open."""

    async def run(self, refusal: FeederRefused | None = None) -> None:
        """Serve until either side is done, then close the connection.

        Args:
            refusal: What to tell the client instead, as soon as it can be told.
        """
        try:
            await self._serve_until_stopped(refusal)
        except FeederLost as lost:
            self._connection.abort()
            # The connection keeps it, and its frames would keep the connection and the last batch.
            lost.__context__ = lost.__traceback__ = None
        except FeederDraining as reason:
            self._log.failed(reason)
            self._say(Goaway(reason.message))
        except Exception as error:  # noqa: BLE001 - the client must hear of a defect too
            self._fail(error)
        except asyncio.CancelledError:
            self._connection.abort()
            raise
        broke_the_protocol = self._connection.machine.error is not None
        await self._connection.aclose(LINGER if broke_the_protocol else self._linger)

    async def _serve_until_stopped(self, refusal: FeederRefused | None) -> None:
        """Serve until the connection has a reason to end, whatever is waited for."""
        connection = self._connection
        try:
            # No time limit: the reason moves it to now.
            async with asyncio.timeout(None) as serving:
                connection.on_broken = partial(serving.reschedule, 0)
                if connection.broken is not None:
                    raise connection.broken
                await self._serve(refusal)
        except TimeoutError:
            if connection.broken is None:  # it is somebody else's
                raise
            raise connection.broken from None
        finally:
            connection.on_broken = None

    async def _serve(self, refusal: FeederRefused | None) -> None:
        hello = await self._in_time("HELLO", self._receive(Hello), since=self._connection.made_at)
        self._log.hello(hello)
        if refusal is not None:
            raise refusal
        grant = await self._admitted(hello)
        version = _common_version(hello)
        await self._service.admit(self._connection)
        with Watch(self._connection, self._settings.idle_timeout, self._idle):
            await self._stream(hello, version, grant)

    async def _admitted(self, hello: Hello) -> Grant:
        """Return what a client may read; its own dataset is among it.

        Raises:
            FeederRefused: It shows no token that opens that, or not in private.
        """
        access = self._service.access
        check_received(hello.token, is_private=self._is_private)
        await access.look()
        grant = access.tokens.grant(hello.token)
        grant.check(hello.dataset, given=bool(hello.token))
        return grant

    async def _stream(self, hello: Hello, version: int, grant: Grant) -> None:
        clock = asyncio.get_running_loop().time
        arrived = clock()
        dataset = await self._service.dataset(hello.dataset, grant)
        self._dataset = hello.dataset
        self._opened_in = clock() - arrived
        self._service.statistics.opened(hello.dataset, self._opened_in)
        batch_size = hello.batch_size or dataset.settings.batch_size
        if not hello.world_size:
            raise ConfigError("world_size 0 has no ranks; it counts from 1")
        fingerprint = json.dumps(dataset.fingerprint(batch_size, hello.world_size).to_dict())
        codes = {} if self._service.codes is None else await self._service.codes.of(dataset)
        facts = facts_of(dataset, _names(dataset), batch_size, hello.world_size, codes)
        settings = json.dumps(facts)
        await self._connection.send(Welcome(version, fingerprint.encode(), settings.encode()))
        self._log.welcomed()
        self._linger = self._service.linger
        subscribe = await self._in_time("SUBSCRIBE and CREDIT", self._first_subscription())
        subscribed = self._service.statistics.subscribed(
            hello.dataset,
            rank=subscribe.rank,
            world_size=hello.world_size,
            batch_size=batch_size,
            peer=self._peer,
        )
        with subscribed as self._subscription:
            await self._runs(dataset, hello, batch_size, subscribe)

    async def _runs(
        self, dataset: Dataset, hello: Hello, batch_size: int | None, subscribe: Subscribe
    ) -> None:
        """Serve one run after the other."""
        if hello.replicas:
            part = self._dataset, dataset, subscribe.rank, hello.world_size, batch_size
            replica = partial(self._service.readings.replica, ReplicaReader(*part))
            await self._each_run(subscribe, replica)
            return
        async with self._service.memory(dataset, hello.world_size) as loan:
            run = partial(
                dataset.run,
                rank=subscribe.rank,
                world_size=hello.world_size,
                batch_size=batch_size,
                allocate=self._allocate(dataset),
                budget=loan.budget,
                ceiling=loan.ceiling,
            )
            await self._each_run(subscribe, lambda position: run(position=position))

    async def _each_run(
        self, subscribe: Subscribe, start: Callable[[ResumePoint | None], Run | Replica]
    ) -> None:
        while True:
            run = start(_position(subscribe))
            # Reading ahead takes memory: a client that gives no credit takes none.
            await self._connection.wait_for_credit()
            await self._one_run(run)
            subscribe = await self._receive(Subscribe)

    def _allocate(self, dataset: Dataset) -> Allocate | None:
        """Return the source of memory for large columns; ``None``: the run's own."""
        # A client may write to what it shares, at any time: nothing of it must come to a cache.
        cache = dataset.settings.cache
        keeps_decoded = cache is not None and cache.of != "ranges"
        return None if self._outbox is None or keeps_decoded else self._outbox.allocate

    def _idle(self) -> None:
        self._service.statistics.dropped["idle"] += 1
        reason = (
            f"the client gave no sign of life for {self._settings.idle_timeout:.3g} s and lost its "
            "place; connect again with the position, or raise idle_timeout in the feeder's [server]"
        )
        self._connection.stop(FeederDraining(reason))

    async def _in_time(self, what: str, event: Awaitable[T], since: float | None = None) -> T:
        """Wait for what a client sends at once."""
        since = asyncio.get_running_loop().time() if since is None else since
        try:
            async with asyncio.timeout_at(since + self._settings.handshake_timeout):
                return await event
        except TimeoutError:
            self._service.statistics.dropped["handshake"] += 1
            raise FeederLost(f"no {what} came in time") from None

    async def _first_subscription(self) -> Subscribe:
        subscribe = await self._receive(Subscribe)
        await self._connection.wait_for_credit()
        return subscribe

    async def _receive(self, kind: type[T]) -> T:
        """Receive the only message that the state machine lets come now."""
        message = await self._connection.receive()
        assert isinstance(message, kind)
        return message

    async def _one_run(self, run: Run | Replica) -> None:
        assert self._subscription is not None
        async with run as batches:
            self._log.subscribed(self._subscription.rank, batches.position.step)
            self._subscription.begin(batches)
            try:
                await self._send_all(batches, self._subscription)
            finally:
                self._tell(batches)
                self._opened_in = 0.0
                self._subscription.finish()
            end = End(json.dumps(batches.position.to_dict()).encode())
        await self._connection.send(end)

    async def _send_all(self, batches: Run | Replica, subscription: Subscription) -> None:
        waits, share = batches.measures.waits, LoopShare()
        with contextlib.suppress(EndOfStream):
            while True:
                waits.consume("client")
                await self._connection.wait_for_credit()
                await share.give_way()  # to the other clients
                batch = await batches.receive()
                waits.consume("wire")
                message = payload.encode(batch)
                if asyncio.get_running_loop().time() >= self._told_at + TELL_EVERY:
                    self._tell(batches)
                outgoing = message if self._outbox is None else self._outbox.put(message)
                await self._connection.send(outgoing)
                size = frame_size(len(message.metadata), message.payload_size)
                step = batch.next_position.step
                self._service.statistics.sent(subscription, step, len(batch), size)
                self._log.sent(size)

    def _tell(self, batches: Run | Replica) -> None:
        """Send the run's counters along; in front of a batch, the end, or what went wrong."""
        self._told_at = asyncio.get_running_loop().time()
        counters: dict[str, Any] = batches.statistics()
        if counters:
            if self._opened_in and "waits" in counters:
                counters["waits"]["list"] = self._opened_in
            self._connection.post_if_possible(Statistics(json.dumps(counters).encode()))

    def _fail(self, error: Exception) -> None:
        self._log.failed(error)
        self._service.failed(self._dataset, error)
        fields = to_fields(error)
        subscription = self._subscription
        self._service.statistics.failed(
            fields["type"],
            shown(str(error)),
            peer=self._peer or "local",
            dataset=subscription.dataset if subscription else None,
            rank=subscription.rank if subscription else None,
        )
        retryable = isinstance(error, StreamrecError) and error.retryable
        self._say(Fault(json.dumps(fields, default=str).encode(), retryable))

    def _say(self, message: Message) -> None:
        """Send the last message; where nobody can be told any more, cut the connection."""
        try:
            self._connection.post(message)
        except StreamrecError:
            self._connection.abort()


def _common_version(hello: Hello) -> int:
    common = set(PROTOCOL_VERSIONS) & set(hello.protocol_versions)
    if not common or hello.position_version < VERSION:
        raise FeederRefused(
            f"the client speaks the protocol's versions {list(hello.protocol_versions)} and reads "
            f"positions up to {hello.position_version}, the feeder {list(PROTOCOL_VERSIONS)} and "
            f"{VERSION}; install the same streamrec on both sides",
            code="version",
        )
    return max(common)


def _position(subscribe: Subscribe) -> ResumePoint | None:
    if not subscribe.position:
        return None
    return read_resume_point(mapping_of(subscribe.position, "the position of SUBSCRIBE"))


def _names(dataset: Dataset) -> list[str] | None:
    room = MOST_NAMES
    for url in dataset.shards:
        room -= len(url) + 4
        if room < 0:  # without a look at the others, which may be a million
            return None
    return [masked(url) for url in dataset.shards]
