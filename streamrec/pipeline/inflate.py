"""Between fetch and scan: the bytes of compressed shards, decompressed in threads.

A lane reads from a :class:`LaneInflater`. The ranges of shards that are not compressed pass through
it as they are; those of others are decompressed, in order, into memory of the same budget, while
they land. Offsets in a lane are those of the decompressed bytes, so that orders and positions are
the same whether shards are compressed or not; what that costs is that a lane which begins in the
middle of a compressed shard reads it from its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from streamrec.errors import DataError, StoreError, TruncatedShard
from streamrec.flow.pool import Account, Pool, size_class
from streamrec.formats.compression import HEAD, Decompressor, detect, of_name
from streamrec.pipeline.feeds import Piece
from streamrec.plan.ranges import RangeRequest, grown
from streamrec.stores.base import display_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.config import Compression
    from streamrec.pipeline.feeds import LaneFeed, Progress, RangeRead, Shards
    from streamrec.pipeline.fetch import Fetcher
    from streamrec.plan.order import Extent
    from streamrec.plan.ranges import MemoryPlan
    from streamrec.types import Octets

__all__ = ["Inflater", "LaneInflater"]

log = logging.getLogger("streamrec.pipeline")

MOST_THREADS = 16
USUAL_RATIO = 8
"""Bytes out for a byte in: small shards get no more memory than they are likely to need."""


class LaneInflater:
    """What one lane reads.

    Args:
        source: The lane's ranges, as they are fetched.
        shards: Names and sizes.
        setting: The compression, or ``"auto"``.
        offset: Where in the first shard to begin, in decompressed bytes.
        head: Bytes of the first piece of memory.
        rereads: Called with the shard's URL if it is read from its beginning to begin in it later.
    """

    def __init__(
        self,
        source: LaneFeed,
        shards: Shards,
        setting: Compression | Literal["auto"],
        offset: int,
        head: int,
        rereads: Callable[[str], None],
    ) -> None:
        self.size = head
        """Bytes of the next piece of memory."""
        self.busy = False
        """Whether a thread is at work for the lane."""
        self._source = source
        self._shards = shards
        self._setting = setting
        self._skip = offset
        self._rereads = rereads
        self._pieces: deque[Piece] = deque()
        self._extent: Extent | None = None
        self._stream: Decompressor | None = None
        self._failed = False
        self._given_up: Extent | None = None

    # -- for the lane ------------------------------------------------------------------------------

    @property
    def first(self) -> RangeRead | Piece | None:
        """What comes next and waits to be scanned."""
        if self._pieces:
            return self._pieces[0]
        read = self._source.first
        plain = self._stream is None and read is not None and read.request.extent is self._extent
        return read if plain else None

    def drop(self) -> None:
        """The first is scanned."""
        if self._pieces:
            self._pieces.popleft()
        else:
            self._source.drop()
            self.look()

    @property
    def ended(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return not self._pieces and self._source.ended

    @property
    def progress(self) -> Progress:
        """What the lane has made of it."""
        return self._source.progress

    def reread(self, start: int) -> None:
        """Have the first range of a plain shard read again from this byte on."""
        self._source.reread(start)

    def give_up(self) -> None:
        """Go on with the next shard: what is left of this one cannot be decompressed."""
        assert self._extent is not None
        self._source.planner.leave(self._extent)
        self._given_up, self._extent, self._stream = self._extent, None, None
        self._skip, self._failed = 0, False
        self._pieces.clear()
        self.look()

    # -- for the threads ---------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Decompressed bytes that wait to be scanned."""
        return sum(piece.filled - piece.scanned for piece in self._pieces)

    @property
    def open_piece(self) -> Piece | None:
        """The memory that is being filled."""
        return self._pieces[-1] if self._pieces and not self._pieces[-1].done else None

    @property
    def due(self) -> bool:
        """Whether the lane has nothing at all: its head's memory is then set aside."""
        return self.has_work and not (self._pieces or self.progress.ready or self._source.undrawn)

    @property
    def has_work(self) -> bool:
        """Whether there is work for a thread."""
        if self._stream is None or self.busy or self._failed:
            return False
        read = self._source.first
        landed = read is not None and read.scanned < read.filled
        return self._stream.pending or landed

    @property
    def decompresses(self) -> bool:
        """Whether a thread is what the lane waits for: one at work, or work for one."""
        return self.busy or self.has_work

    def look(self) -> bool:
        """Take notice of what has landed; whether there is work for a thread."""
        while not self._failed and (read := self._source.first) is not None:
            if read.request.extent is self._given_up:
                self._source.drop()
                continue
            if read.request.extent is not self._extent and not self._enter(read):
                return False
            if not self._settle():
                break
        return self.has_work

    def begin_piece(self, memory: Octets) -> None:
        """Fill this memory next."""
        assert self._extent is not None
        start = self._stream.produced if self._stream else 0
        begin = max(start, self._skip)
        self._pieces.append(Piece(RangeRequest(self._extent, begin, begin + len(memory)), memory))

    def work(self) -> tuple[Decompressor, Octets, Octets]:
        """What a thread is to do: the stream, its input, and the memory for its output."""
        read, piece, stream = self._source.first, self.open_piece, self._stream
        assert stream is not None
        assert piece is not None
        source = read.memory[read.scanned : read.filled] if read is not None else _NOTHING
        room = piece.memory[piece.filled :]
        missing = self._skip - stream.produced  # what is skipped is written, too, and overwritten
        return stream, source, room[:missing] if missing > 0 else room

    def worked(self, taken: int, given: int) -> None:
        """A thread has taken so many bytes, and given so many."""
        read, piece, stream = self._source.first, self.open_piece, self._stream
        assert stream is not None
        assert piece is not None
        if read is not None:
            read.scanned += taken
        if stream.produced > self._skip:
            piece.filled += given
        if piece.filled == len(piece.memory):
            piece.close()
        self.look()

    def fail(self, error: DataError | StoreError) -> None:
        """What waits is all that comes before this error."""
        if self.open_piece is None:
            self.begin_piece(_NOTHING)
        self._pieces[-1].error = error
        self._failed = True

    def likely_size(self) -> int:
        """Bytes that the shard at hand is likely to have, decompressed."""
        assert self._extent is not None
        return USUAL_RATIO * self._shards.sizes.get(self._extent.shard, 0)

    def _enter(self, read: RangeRead) -> bool:
        """Begin with a shard, if its compression can be told; whether it can."""
        kind = self._kind(read)
        if kind is None:
            return False
        self._extent = read.request.extent
        url = display_url(self._shards.urls[self._extent.shard])
        if kind == "none":
            self._go_on(read, self._skip)
            self._skip = 0
            return True
        if self._skip:
            self._rereads(url)
        self._stream = Decompressor(kind, url=url)
        self._go_on(read, read.request.stop)
        return True

    def _go_on(self, read: RangeRead, offset: int) -> None:
        """Read on, if only the shard's first bytes were asked for; without them if they are no use.

        If they could not be read, the lane is to find the error there.
        """
        planner = self._source.planner
        if not planner.looks or read.error is not None:
            return
        planner.go_on(offset)
        if self._stream is None:
            self._source.drop()
            self._source.answered = planner.guessed  # else the lane's head is yet to be asked for
        elif planner.guessed:
            self._source.withdraw()

    def _kind(self, read: RangeRead) -> Compression | None:
        if self._setting != "auto":
            return self._setting
        if read.filled < HEAD and not read.done and read.error is None:
            return None
        shard = read.request.extent.shard
        named = of_name(self._shards.urls[shard], self._shards.encodings.get(shard))
        return detect(read.memory[: min(HEAD, read.filled)].tobytes(), named)

    def _settle(self) -> bool:
        """Leave the first range behind if it is used up, and the shard if that was its last one."""
        read, stream = self._source.first, self._stream
        if stream is None or read is None or self.busy or stream.pending or self._failed:
            return False
        if read.scanned < read.filled:
            return False
        try:
            if read.error is not None:
                raise read.error
            return read.done and self._leave(read, stream)
        except (DataError, StoreError) as error:
            self.fail(error)
            return read.done

    def _leave(self, read: RangeRead, stream: Decompressor) -> bool:
        """Drop the first range; not the shard's last one before all is decompressed."""
        is_last = read.request.stop >= self._shards.sizes[read.request.extent.shard]
        if is_last:
            stream.end()
            if stream.pending:
                return False
        self._source.drop()
        if is_last:
            self._end_shard(stream)
        return True

    def _end_shard(self, stream: Decompressor) -> None:
        stream.finish()
        if stream.produced < self._skip:
            raise TruncatedShard(
                f"the shard has {stream.produced} bytes, decompressed, and is to be read from byte "
                f"{self._skip} on; give the offset of a record, or a state of this very shard",
                url=stream.url,
                offset=stream.consumed,
            )
        if self.open_piece is None:
            self.begin_piece(_NOTHING)
        piece = self._pieces[-1]
        piece.shard_size = stream.produced
        piece.close()
        assert self._extent is not None
        if not stream.produced:
            self._shards.hollow(self._extent.shard)
        self._stream, self._skip = None, 0


class Inflater:
    """Decompresses what the lanes need, the soonest needed first, within its share of the budget.

    Args:
        fetcher: Reads the ranges; is told how much of the budget is not for them.
        shards: Names and sizes.
        plan: The byte budget.
        setting: The compression, or ``"auto"``.
        offsets: Where in its first shard each lane begins, in decompressed bytes.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        shards: Shards,
        plan: MemoryPlan,
        setting: Compression | Literal["auto"],
        offsets: Sequence[int],
    ) -> None:
        self.feeds = [
            LaneInflater(feed, shards, setting, offset, plan.head, self._reread)
            for feed, offset in zip(fetcher.feeds, offsets, strict=True)
        ]
        self.bytes_in = self.bytes_out = 0
        self._fetcher = fetcher
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._busy = 0
        self._has_said = False
        self._most = min(MOST_THREADS, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(self._most, "streamrec-inflate")
        self.pool = Pool(self._released)
        self._account = Account()
        fetcher.landed = self._look
        if setting != "auto":
            self._claim()

    def __repr__(self) -> str:
        return f"<Inflater {self._busy} at work, {self.pool!r}>"

    async def run(self) -> None:
        """Keep decompressing until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._schedule(group)
                await self._wake.wait()

    def wake(self) -> None:
        """Look again at what should be done: a lane has become due."""
        self._wake.set()

    def close(self) -> None:
        """End the threads, after the step that each is at, and let go of all memory."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.pool.close()

    def statistics(self) -> dict[str, Any]:
        """Counters since the start."""
        stored = self._fetcher.pool
        return {
            "bytes_in_memory": stored.in_use + self.pool.in_use,
            "most_bytes_in_memory": stored.most_in_use + self.pool.most_in_use,
            "bytes_idle": stored.idle + self.pool.idle,
            "decompressed_from": self.bytes_in,
            "decompressed_to": self.bytes_out,
        }

    def _reread(self, url: str) -> None:
        if not self._has_said:
            self._has_said = True
            log.info(
                "%s is compressed, and the stream begins in the middle of it: such shards are "
                "read and decompressed from their beginnings",
                url,
            )

    def _look(self, lane: int) -> None:
        """Called whenever something has landed."""
        if self.feeds[lane].look():
            self._wake.set()

    def _schedule(self, group: asyncio.TaskGroup) -> None:
        waiting = [lane for lane, feed in enumerate(self.feeds) if feed.has_work]
        for lane in sorted(waiting, key=lambda lane: self.feeds[lane].waiting):
            if self._busy == self._most:
                return
            if self._has_memory(self.feeds[lane]):
                self._busy += 1
                self.feeds[lane].busy = True
                group.create_task(self._inflate(lane))

    def _has_memory(self, feed: LaneInflater) -> bool:
        """Set memory aside for the lane's next step, where the budget has some."""
        if feed.open_piece is not None:
            return True
        size = self._allowed_size(feed)
        if size:
            feed.begin_piece(self.pool.acquire(size, self._account))
            feed.size = grown(feed.size, self._plan.range_size)
            self._claim()
        return size > 0

    def _claim(self) -> None:
        """Keep the share of the budget from being filled with ranges."""
        share = self._plan.for_inflated
        self._fetcher.claimed = max(share, self.pool.in_use)
        self.pool.trim(max(0, share - self.pool.in_use))

    def _allowed_size(self, feed: LaneInflater) -> int:
        size = min(feed.size, size_class(feed.likely_size()))
        owed = sum(other.due for other in self.feeds) * self._plan.head
        wanted = self.pool.in_use + size_class(size) + owed
        # Ranges may have taken the share before it was known that shards are compressed.
        both = wanted + self._fetcher.pool.in_use
        if wanted <= self._plan.for_inflated and both <= self._plan.for_ranges:
            return size
        return min(size, self._plan.head) if feed.due else 0

    async def _inflate(self, lane: int) -> None:
        feed = self.feeds[lane]
        stream, source, target = feed.work()
        error, taken, given = None, 0, 0
        try:
            taken, given = await self._loop.run_in_executor(
                self._threads, stream.fill, source.data, target.data
            )
        except DataError as fault:
            error = fault
        finally:
            feed.busy = False
            self._busy -= 1
        self.bytes_in += taken
        self.bytes_out += given
        if error is not None:
            feed.fail(error)
        else:
            feed.worked(taken, given)
        self._wake.set()
        self._fetcher.wake()
        self._fetcher.tell(lane)

    def _released(self) -> None:
        """Called in any thread when memory has come back."""
        if not self._wake.is_set():
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
                self._loop.call_soon_threadsafe(self._wake.set)


_NOTHING = np.empty(0, np.uint8)
