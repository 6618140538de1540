"""The downloader of single ranges.

It retries, resumes where a body broke off, cuts connections that stall, and hedges slow requests.

And the shards whose bytes a run has waited for lately, to name the slowest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from streamrec.errors import StoreError, StoreUnavailable
from streamrec.flow.cleanup import end
from streamrec.flow.retry import Backoff, RetryRate, Silence
from streamrec.flow.timings import Timings
from streamrec.pipeline.fetch.range_queue import RangeRead
from streamrec.plan.reading.concurrency import Hedging
from streamrec.plan.reading.ranges import RangeRequest
from streamrec.stores.base.source_text import store_kind
from streamrec.stores.cache.cached_store import NOT_ASKED, CachedBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from random import Random

    from streamrec.flow.shared_memory import SharedRanges
    from streamrec.flow.stages import Collector
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.stores.base.protocol import RangeBody, Store
    from streamrec.values.columns import ByteArray

PATIENCE_AT_START = 15.0
"""Seconds for a store that has never answered: it is more likely misnamed than briefly down."""
SILENCE = 15.0
"""Seconds after which a connection is cut if it has not brought ``SLOWEST`` bytes."""
SLOWEST = 16 << 10
HEDGE_AGAIN = 0.1
"""Seconds after which a slow request that could not be hedged is checked again."""


_SILENT = "the connection was silent and has been cut"


class OpensStores(Protocol):
    """The part of :class:`streamrec.stores.open.Stores` that the fetcher needs."""

    def store_for(self, url: str) -> Store:
        """Return the store that serves the URL."""
        ...

    def share_memory(self, size: int) -> SharedRanges | None:
        """Return memory of a size into which the stores read best; ``None``: into any."""
        ...


@dataclass(eq=False)
class RangeDownloader:
    """A downloader of ranges; the caller decides how many are downloaded at a time.

    Args:
        shards: The facts about the shards; responses add to them.
        stores: The stores of the shards.
        stall_timeout: Seconds for which one range may fail or make no progress.
        random: The source of the retries' jitter.
        lend: Allocates memory in bytes for the hedge of a range; ``None`` if there is none.
        spans: Collects spans of the requests; ``None``: nobody does.
    """

    shards: Shards
    stores: OpensStores
    stall_timeout: float
    random: Random
    lend: Callable[[RangeRead, int], ByteArray | None]
    hedging: Hedging = field(default_factory=Hedging)
    retries: RetryRate = field(default_factory=RetryRate)
    counts: Counter[str] = field(default_factory=Counter)
    timings: Timings = field(default_factory=Timings)
    spans: Collector | None = None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._hedges_under_way = 0

    async def download(self, read: RangeRead, moved: Callable[[], None]) -> None:
        """Fill a range's memory, and set ``read.done`` or ``read.error`` at the end.

        Args:
            read: The range.
            moved: Called when bytes have been received or the shard's size is known.
        """
        try:
            await self._race(read, moved)
        except StoreError as error:
            read.error = error.at(read.request.start + read.filled)
        else:
            read.done = True

    # -- one range, perhaps by two requests --------------------------------------------------------

    async def _race(self, read: RangeRead, moved: Callable[[], None]) -> None:
        started = read.heard_at = self._loop.time()
        first = asyncio.create_task(self._fill(read, moved))
        try:
            while (hedge := await self._until_slow(first, read, started)) is not None:
                # The first request goes on meanwhile, into the range's own memory; the hedge has
                # another.
                if await self._hedge_wins(first, hedge):
                    await end(first)
                    _take_over(read, hedge)
                    return
        finally:
            # Cancelled or not: it must not write into memory that another range may get.
            await end(first)
        first.result()
        # The time of a retried request says nothing of a usual one, and would make hedges rare.
        if read.last_failure is None:
            seconds = self._loop.time() - started
            self.hedging.finished(len(read.memory), seconds, read.silence)

    async def _until_slow(
        self, first: asyncio.Task[None], read: RangeRead, started: float
    ) -> RangeRead | None:
        """Wait until the request ends, or is slow and may be hedged; then return the hedge."""
        wait = self._slow_in(read, started)
        while True:
            due = self._loop.time() + max(0.0, wait)
            if (await asyncio.wait([first], timeout=max(0.0, wait)))[0]:
                return None
            late = self._loop.time() - due
            started += late
            # While the loop was busy nothing could be received, so the request gets that time now.
            late = min(late, self.hedging.silence(len(read.memory)))
            if (await asyncio.wait([first], timeout=late))[0]:
                return None
            wait = self._slow_in(read, started)
            if wait <= 0:
                hedge = self._new_hedge(read)
                if hedge is not None:
                    return hedge
                wait = HEDGE_AGAIN

    def _slow_in(self, read: RangeRead, started: float) -> float:
        """Return the seconds until the request is slow, by its total time or by its silence."""
        size = len(read.memory)
        return min(started + self.hedging.patience(size) - self._loop.time(), self._mute_in(read))

    def _mute_in(self, read: RangeRead) -> float:
        return read.heard_at + self.hedging.silence(len(read.memory)) - self._loop.time()

    def _new_hedge(self, read: RangeRead) -> RangeRead | None:
        counts, request = self.counts, read.request
        left = len(read.memory) - read.filled
        if (
            not left
            or read.resting
            or not self.hedging.allows(
                self._loop.time(),
                hedges=counts["hedges"],
                requests=counts["requests"],
                under_way=self._hedges_under_way,
            )
        ):
            return None
        memory = self.lend(read, left)
        if memory is None:
            return None
        counts["hedges"] += 1
        begin = request.start + read.filled
        return RangeRead(RangeRequest(request.extent, begin, request.stop), memory)

    async def _hedge_wins(self, first: asyncio.Task[None], hedge: RangeRead) -> bool:
        """Return whether the hedge, in its one attempt, is complete before the first request.

        A hedge that stalls is given up, so that another one can be sent.
        """
        hedge.heard_at = self._loop.time()
        second = asyncio.create_task(self._receive_all(hedge))
        self._hedges_under_way += 1
        try:
            await self._until_mute(hedge, first, second)
            # Where both are complete, the bytes of the first one are in place already.
            won = second.done() and second.result() and not first.done()
        finally:
            self._hedges_under_way -= 1
            await end(second)
        self.counts["hedges_won" if won else "hedges_lost"] += 1
        # Otherwise a hedge that fails at once would be followed by the next without a pause.
        if not won:
            await asyncio.wait([first], timeout=HEDGE_AGAIN)
        return won

    async def _until_mute(self, hedge: RangeRead, *tasks: asyncio.Task[Any]) -> None:
        """Wait for one of the tasks, but no longer than the hedge may be silent."""
        wait = self._mute_in(hedge)
        while not (
            await asyncio.wait(tasks, timeout=max(0.0, wait), return_when=asyncio.FIRST_COMPLETED)
        )[0]:
            # Bytes that came while the loop was busy are counted before the hedge is judged.
            await asyncio.sleep(0)
            wait = self._mute_in(hedge)
            if wait <= 0:
                return

    # -- one range by as many requests as it takes -------------------------------------------------

    async def _fill(self, read: RangeRead, moved: Callable[[], None]) -> None:
        """Request the range until it is complete.

        Raises:
            StoreError: It cannot be retried, or no byte came for ``stall_timeout``.
        """
        backoff = Backoff(self.random)
        filled, since = 0, self._loop.time()
        while True:
            silence = Silence(self._left(since, SILENCE))
            try:
                async with silence:
                    with self._span("retry" if read.last_failure else "request", read):
                        await self._receive(read, silence, moved)
                return
            except TimeoutError:
                self.counts["cut"] += 1
                # A failure that the store has named says more than a silence.
                read.last_failure = read.last_failure or StoreUnavailable(_SILENT)
            except StoreError as error:
                if not error.retryable:
                    raise
                self._note(error)
                read.last_failure = _bare(error)
            # A trickle is no progress: a store that sends a byte a minute has stalled.
            has_moved = read.filled >= filled + min(SLOWEST, len(read.memory) - filled)
            if has_moved or silence.was_busy:
                filled, since = read.filled, self._loop.time()
                backoff.reset()
            self.counts["retries"] += 1
            wait = backoff.next(getattr(read.last_failure, "retry_after", None))
            wait = max(wait, self.retries.delay(self._loop.time()))
            # A hedge beside a pause would be a retry without its backoff.
            read.resting = True
            await asyncio.sleep(self._left(since, wait))
            read.resting = False
            if self._left(since, 1.0) <= 0:
                raise self._stall_of(read)

    def _note(self, error: StoreError) -> None:
        if isinstance(error, StoreUnavailable) and error.throttled:
            self.counts["throttled"] += 1
            self.hedging.throttled(self._loop.time())

    async def _receive_all(self, read: RangeRead) -> bool:
        """Make one attempt; return whether it brought everything.

        Its errors are ignored: the first request will meet them too.
        """
        try:
            async with Silence(SILENCE) as silence:
                with self._span("hedge", read):
                    await self._receive(read, silence, _nobody)
        except TimeoutError:
            return False
        except StoreError as error:
            self._note(error)
            return False
        return True

    async def _receive(self, read: RangeRead, silence: Silence, moved: Callable[[], None]) -> None:
        """Make one request for the rest of the range."""
        started = read.heard_at = self._loop.time()
        read.answered_at = None
        request, shards, shard = read.request, self.shards, read.shard
        url = shards.urls[shard]
        begin = request.start + read.filled
        # The first answer pins the version, for all ranges, retries and hedges of the shard.
        async with self._open(url, begin, request.stop, shards.etags.get(shard)) as body:
            shards.learn(shard, body.info)
            moved()  # other ranges of the shard may have waited for its size
            # The request may reach beyond the shard: until this answer its size could be a guess.
            expected = max(0, min(request.stop, shards.sizes[shard]) - request.start)
            counted = read.filled

            def received(count: int) -> None:
                nonlocal counted
                now = self._loop.time()
                read.receive(count, now)
                self.counts["bytes_read"] += count
                # Fewer bytes are no sign of life: a trickle must not hold a connection for ever.
                if read.filled - counted >= SLOWEST:
                    counted, silence.seconds = read.filled, SILENCE
                    silence.heard()
                moved()

            await body.fill(read.memory.data[read.filled : expected], received)
            if read.filled < expected:
                raise StoreUnavailable("the response ended early", url=url)
            # The memory of a cache is none of the store.
            if read.answered_at is not None and not isinstance(body, CachedBody):
                first_byte, duration = read.answered_at - started, self._loop.time() - started
                self.timings.observe(store_kind(url), "read", first_byte, duration)

    @contextmanager
    def _span(self, kind: str, read: RangeRead) -> Iterator[None]:
        """Tell the span of a request, if anyone collects spans."""
        if self.spans is None:
            yield
            return
        started, filled = self._loop.time(), read.filled
        try:
            yield
        finally:
            self.spans.add(
                *("request", kind, started, self._loop.time()),
                first_byte=read.answered_at,
                url=self.shards.urls[read.shard],
                start=read.request.start + filled,
                bytes=read.filled - filled,
            )

    @asynccontextmanager
    async def _open(
        self, url: str, start: int, stop: int, etag: str | None
    ) -> AsyncIterator[RangeBody]:
        """Open a range, and count what it takes: a cache may have some of it, or all."""
        body: RangeBody | None = None
        is_asked = True
        try:
            async with self.stores.store_for(url).open_range(url, start, stop, etag=etag) as body:
                self.counts["requests"] += not isinstance(body, CachedBody)
                yield body
        except asyncio.CancelledError as error:  # as of the slower of two that hedge
            is_asked = error.args != (NOT_ASKED,)
            raise
        finally:
            # A request that failed counts too; what a cache answered does not, and counts itself.
            self.counts["requests"] += is_asked and body is None
            if isinstance(body, CachedBody):
                body.count(self.counts)

    def _patience(self) -> float:
        if self.counts["bytes_read"]:
            return self.stall_timeout
        return min(self.stall_timeout, PATIENCE_AT_START)

    def _left(self, since: float, wanted: float) -> float:
        """Limit ``wanted`` seconds to those that the range still has before it stalls."""
        return max(0.0, min(wanted, since + self._patience() - self._loop.time()))

    def _stall_of(self, read: RangeRead) -> StoreUnavailable:
        failure = read.last_failure
        return StoreUnavailable(
            f"fetch stalls: no byte came for {self._patience():g} s"
            f"{f' ({failure.message})' if failure else ''}; check the endpoint and the network, "
            "or raise stall_timeout",
            url=self.shards.urls[read.shard],
        )


def _take_over(read: RangeRead, hedge: RangeRead) -> None:
    """Copy the hedge's bytes beyond those received; the first request has ended."""
    # The first request may have received more since the hedge began; only the rest is copied.
    begin = read.request.start + read.filled - hedge.request.start
    count = hedge.filled - begin
    read.memory[read.filled : read.filled + count] = hedge.memory[begin : hedge.filled]
    read.filled += count


def _bare(error: StoreError) -> StoreError:
    """Strip the error's traceback: it holds the range, which holds the error and its memory."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _nobody() -> None:
    """Do nothing: nobody is notified."""


RECENT = 30.0
"""Seconds after which waits for shards are forgotten, or twice as many: there may be many shards.
"""


class AwaitedShards:
    """The seconds for which bytes of each shard were waited for lately.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turned = clock()
        self._old: dict[int, float] = {}
        self._new: dict[int, float] = {}

    def add(self, shard: int, seconds: float) -> None:
        """Add a wait that has ended."""
        self._turn()
        self._new[shard] = self._new.get(shard, 0.0) + seconds

    def longest(self, now: Mapping[int, float]) -> tuple[int, float] | None:
        """Return the shard that was waited for longest, and the seconds; ``None``: none was.

        Args:
            now: The seconds of the wait that goes on, by shard.
        """
        self._turn()
        waits: dict[int, float] = {}
        for shard, seconds in chain(self._old.items(), self._new.items(), now.items()):
            waits[shard] = waits.get(shard, 0.0) + seconds
        return max(waits.items(), key=lambda wait: wait[1], default=None)

    def _turn(self) -> None:
        now = self._clock()
        if now >= self._turned + RECENT:
            has_gap = now >= self._turned + 2 * RECENT
            self._old, self._new = {} if has_gap else self._new, {}
            self._turned = now
