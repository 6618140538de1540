"""Feeds that heal: where one feeder fails they go on at the next, after the last batch.

Each holds the feed of one connection at a time, and asks :mod:`streamrec.feeder.client.failover`
what to do when that fails. What the feed had received whole is delivered first, so nothing is lost;
the next one begins after it, so nothing is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from streamrec.errors import FeederLost, FeedError, Stalled, StreamrecError
from streamrec.feeder.access.access import client_context
from streamrec.feeder.access.address import Address
from streamrec.feeder.access.tokens import read_token, read_token_async
from streamrec.feeder.client.client import (
    CONNECT_TIMEOUT,
    PATIENCE,
    AsyncFeed,
    BlockingFeed,
    look_up,
    look_up_async,
)
from streamrec.feeder.client.failover import Failover, Moves, Pause
from streamrec.feeder.client.session import StreamPart, state_of
from streamrec.feeder.client.welcome import check_same
from streamrec.flow.bridge import on_recall
from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import end, finish, until_done
from streamrec.pipeline.terms.memory_needs import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.fingerprint import Fingerprint

RETRY_FOR = 600.0
STAY_AFAR = 600.0
"""Seconds after which a client that reads from afar tries the near feeders again."""

log = logging.getLogger("streamrec.connect")


class Route(StreamPart, total=False):
    """The options of a feed that heals."""

    token: str | None
    """The secret that feeders ask for, or ``file:/path``, which is read for each connection."""
    fingerprint: Fingerprint | None
    """The fingerprint that feeders must serve; ``None``: that of the first one."""
    tls: Mapping[str, str] | None
    """The files of TLS (see `client_context`), which are read for each connection."""
    stall_timeout: float
    """Seconds to wait for a batch from a feeder that gives signs of life."""
    connect_timeout: float
    """Seconds for each attempt to connect."""
    retry_for: float
    """Seconds after which a failure that does not heal becomes an error."""


class _HealingFeed:
    """The part that both kinds share.

    Args:
        address: As in ``streamrec.connect``.
        route: The options.

    Raises:
        ConfigError: The address is malformed.
    """

    fingerprint: Fingerprint
    """Everything that determines the order of what is received."""
    settings: dict[str, Any]
    """Facts of the dataset, from the feeder."""
    _feed: AsyncFeed | BlockingFeed | None = None

    def __init__(self, address: str, route: Route) -> None:
        self._addresses = Address.parse_all(address)
        self._tls = route.pop("tls", None)
        self._token = route.pop("token", None)
        retry_for = route.pop("retry_for", RETRY_FOR)
        self._options: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, **route}
        random = Random()
        self._failover = Failover(self._options.get("rank", 0), retry_for, random)
        has_names = any(one.is_name for one in self._addresses)
        self._moves = Moves(partial(look_up, self._addresses), random) if has_names else None
        self._failure: StreamrecError | None = None
        self._counted: dict[str, Any] = {}
        """Counts of this run, at feeders that it has left."""
        self._has_begun = False
        """True after the first WELCOME."""
        self._reconnections = 0
        self._has_far = any(one.is_far for one in self._addresses)
        self._far_bytes = 0
        """Bytes from far feeders that it has left, in this run."""
        self._back_at: float | None = None
        """The time from which on a client that reads from afar tries the near feeders."""

    def __repr__(self) -> str:
        step = (self.position or {}).get("step", 0)
        return f"<{type(self).__name__}, {self._feed}, step {step}, {self._failover}>"

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken, or to begin with; ``None``: the very beginning."""
        if self._feed is not None:
            return self._feed.position
        return state_of(self._options.get("position"))

    def statistics(self) -> dict[str, Any]:
        """Return the counters of this run, of all feeders together."""
        now = {} if self._feed is None else self._feed.statistics()
        counted = {name: now.get(name, 0) + count for name, count in self._counted.items()}
        far = {"far_bytes": self._far_bytes + self._received_from_afar()} if self._has_far else {}
        return now | counted | {"reconnections": self._reconnections} | far

    def _received_from_afar(self) -> int:
        place = self._failover.address
        return self._feed.received if self._feed and place is not None and place.is_far else 0

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        # The counters are those of a run, and a feeder begins them anew as well.
        self._counted = {}
        self._far_bytes = -self._received_from_afar()
        if self._feed is not None:
            self._feed.subscribe()

    def _begin_round(self, machines: Sequence[Address]) -> None:
        self._failover.begin_round(machines)
        if self._moves is not None:
            self._moves.know(machines)

    def _should_move(self, now: float) -> bool:
        """Return whether the fleet has changed, and this rank belongs to another feeder of it."""
        if self._feed is None or self._feed.over:
            return False
        machines = self._fleet(now)
        if machines is None or not self._failover.move(machines):
            return False
        rank = self._options.get("rank", 0)
        log.info("rank %d leaves %r: there are %d feeders now", rank, self._feed, len(machines))
        return True

    def _fleet(self, now: float) -> Sequence[Address] | None:
        """Return the feeders, if there is a reason to ask whether this is the right one."""
        machines = None if self._moves is None else self._moves.changed(now)
        place = self._failover.address
        if machines is not None or place is None or not place.is_far:
            self._back_at = None
        elif self._back_at is None:
            self._back_at = now + STAY_AFAR
        elif now >= self._back_at:
            self._back_at = None
            return self._failover.addresses
        return machines

    def _arguments(self, token: str | None) -> dict[str, Any]:
        return {**self._options, "token": token, "patience": PATIENCE}

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _adopt(self, feed: AsyncFeed | BlockingFeed) -> None:
        """Compare a new feed with the one before.

        Raises:
            OtherOrder: Its batches differ, or its runs end elsewhere.
        """
        if self._has_begun:
            check_same(self.settings, feed.settings)
            self._reconnections += 1
        self._has_begun = True
        self._failover.note_welcome()
        self.fingerprint, self.settings = feed.fingerprint, feed.settings
        # From now on each feeder must serve this: another order would repeat records, and lose
        # others.
        self._options["fingerprint"] = feed.fingerprint
        if self._failover.failures:
            log.info("%r goes on after %d failures", feed, self._failover.failures)

    def _leave(self, feed: AsyncFeed | BlockingFeed) -> None:
        """Keep what a feed that has failed knows."""
        self._options["position"] = feed.position or self._options.get("position")
        self._far_bytes += self._received_from_afar()
        counters = feed.statistics()
        for name in COUNTERS:
            if name in counters:
                self._counted[name] = self._counted.get(name, 0) + counters[name]
        self._feed = None

    def _note_failure(self, error: StreamrecError, now: float, *, welcomed: bool) -> None:
        """Note a failure.

        Raises:
            StreamrecError: It does not heal, or not in time.
        """
        final = self._failover.note_failure(error, now, welcomed=welcomed)
        if final is None:
            rank, step = self._options.get("rank", 0), (self.position or {}).get("step", 0)
            news = self._failover.news(now)
            if news is not None:
                log.warning("rank %d waits after step %d: %s", rank, step, news)
            elif self._failover.failures == 1 and self._has_begun:
                log.warning("rank %d connects again, after step %d: %s", rank, step, error)
            elif self._failover.failures == 1:
                log.warning("rank %d cannot connect yet, and tries again: %s", rank, error)
            return
        if isinstance(final, FeedError | Stalled):
            final.position = self.position
        self._failure = final
        raise final from None


class AsyncHealingFeed(_HealingFeed):
    """A stream that heals, in asyncio code; made by :meth:`open`."""

    is_async: Literal[True] = True
    _feed: AsyncFeed | None = None

    def __init__(self, address: str, route: Route) -> None:
        super().__init__(address, route)
        self._connecting: asyncio.Task[AsyncFeed] | None = None
        """A task, so that a cancelled ``receive`` does not begin to connect from the start."""
        self._closing = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._owner = asyncio.create_task(self._own(), name="streamrec-feed")
        """A task that closes the connection also when the loop is shut down, and cancels it."""

    @classmethod
    async def open(cls, address: str, **route: Unpack[Route]) -> Self:
        """Connect and subscribe; the first batches are on their way when it returns.

        Args:
            address: As in ``streamrec.connect``.
            route: The options.

        Raises:
            ConfigError: An argument is wrong.
            FeederLost: No feeder can be reached.
            FeederRefused: It does not serve this client or dataset.
            StateError: The position or the fingerprint does not fit what it serves.
        """
        self = cls(address, route)
        try:
            await self._wait_for_feed()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def receive(self) -> Batch:
        """Return the next batch; cancelling the wait loses nothing.

        Raises:
            EndOfStream: The run is over; :meth:`subscribe` starts the next.
            FeederLost: No feeder has sent one for ``retry_for``.
            StreamrecError: What does not heal.
        """
        while True:
            self._check()
            if self._should_move(self._now()):
                await self._leave_for_another()
            feed = self._feed or await self._wait_for_feed()
            try:
                batch = await feed.receive()
            except EndOfStream:
                self._failover.note_delivery()
                raise
            except StreamrecError as error:
                await feed.aclose()
                self._leave(feed)
                self._note_failure(error, self._now(), welcomed=True)
            else:
                self._failover.note_delivery()
                return batch

    async def _leave_for_another(self) -> None:
        feed = self._feed
        assert feed is not None
        await feed.aclose()
        self._leave(feed)

    @property
    def is_over(self) -> bool:
        """True once it is closed."""
        return self._owner.done()

    async def aclose(self) -> None:
        """Disconnect; closing again changes nothing."""
        self._closing.set()
        await until_done(self._owner)

    async def _own(self) -> None:
        try:
            await self._closing.wait()
        finally:
            await finish(self._disconnect())

    async def _disconnect(self) -> None:
        task, self._connecting = self._connecting, None
        if task is not None:
            await end(task)
            # It may have connected at the last moment, and nobody else would close that.
            if not task.cancelled() and task.exception() is None:
                self._feed = task.result()
        if self._feed is not None:
            await self._feed.aclose()

    async def _wait_for_feed(self) -> AsyncFeed:
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="streamrec-connect")
        # A caller that is cancelled here does not cancel the task: the next call goes on with it.
        await asyncio.wait([self._connecting])
        task, self._connecting = self._connecting, None
        self._feed = task.result()
        return self._feed

    async def _connect(self) -> AsyncFeed:
        while True:
            place = self._failover.next()
            if isinstance(place, Pause):
                await asyncio.sleep(place.seconds)
                self._begin_round(await look_up_async(self._addresses))
                continue
            try:
                return await self._attempt(place)
            except StreamrecError as error:
                self._note_failure(error, self._now(), welcomed=False)

    async def _attempt(self, place: Address) -> AsyncFeed:
        context = None
        if place.tls:
            # In a thread, as it reads files.
            context = await asyncio.to_thread(client_context, self._tls or {})
        token = await read_token_async(self._token)
        feed = await AsyncFeed.open(place, tls=context, **self._arguments(token))
        try:
            self._adopt(feed)
        except BaseException:
            await feed.aclose()
            raise
        return feed

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class BlockingHealingFeed(_HealingFeed):
    """A stream that heals, in plain code; used by one thread at a time.

    Args:
        address: As in ``streamrec.connect``.
        route: The options.

    Raises:
        StreamrecError: As from :meth:`AsyncHealingFeed.open`.
    """

    is_async: Literal[False] = False
    _feed: BlockingFeed | None = None

    def __init__(self, address: str, **route: Unpack[Route]) -> None:
        super().__init__(address, route)
        self._recalled = threading.Event()
        on_recall(self._recalled.set)
        self._feed = self._connect()

    def receive(self) -> Batch:
        """Return the next batch; errors as of :meth:`AsyncHealingFeed.receive`."""
        while True:
            self._check()
            if self._feed is not None and self._should_move(time.monotonic()):
                self._feed.close()
                self._leave(self._feed)
            if self._feed is None:
                self._feed = self._connect()
            feed = self._feed
            try:
                batch = feed.receive()
            except EndOfStream:
                self._failover.note_delivery()
                raise
            except StreamrecError as error:  # which has closed the feed's connection
                self._leave(feed)
                self._note_failure(error, time.monotonic(), welcomed=True)
            else:
                self._failover.note_delivery()
                return batch

    def close(self) -> None:
        """Disconnect; closing again changes nothing."""
        if self._feed is not None:
            self._feed.close()

    def _connect(self) -> BlockingFeed:
        while True:
            place = self._failover.next()
            if isinstance(place, Pause):
                if self._recalled.wait(place.seconds):
                    raise FeederLost("nobody waits for the feeder any more")
                self._begin_round(look_up(self._addresses))
                continue
            try:
                return self._attempt(place)
            except StreamrecError as error:
                self._note_failure(error, time.monotonic(), welcomed=False)

    def _attempt(self, place: Address) -> BlockingFeed:
        feed = BlockingFeed.open(place, **self._arguments(read_token(self._token)))
        try:
            self._adopt(feed)
        except BaseException:
            feed.close()
            raise
        return feed
