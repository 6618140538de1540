"""The queue of a sublane whose shards may be compressed, and the inflater that works in threads.

Ranges of compressed shards are decompressed in order, while they are received, into pieces of
memory of the same budget. A lane reads the pieces in place of the ranges; those of other shards
stay as they are. A lane's offsets count decompressed bytes, so orders and positions do not depend
on the compression. A lane that begins in the middle of a compressed shard therefore reads it from
its beginning.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from streamrec.errors import DataError, OutOfMemory, StreamrecError, TruncatedShard
from streamrec.flow.cleanup import end_threads
from streamrec.flow.pool import Account, Pool, size_class
from streamrec.formats.shards.compression import HEAD, Decompressor, detect, of_name
from streamrec.masking import masked
from streamrec.pipeline.fetch.range_queue import RangeQueue, RangeRead
from streamrec.pipeline.terms.memory_needs import NO_CEILING, RunCeiling
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.reading.ranges import RangeRequest, grown
from streamrec.surroundings import allowed_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from streamrec.config import Compression
    from streamrec.pipeline.fetch.fetcher import Fetcher
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.plan.reading.ranges import MemoryPlan
    from streamrec.values.columns import ByteArray

    Turn = Callable[[], AbstractContextManager[object]]


log = logging.getLogger("streamrec.pipeline")

MOST_THREADS = 16


@dataclass(eq=False, repr=False)
class Inflater:
    """A decompressor of the lanes' shards, the soonest needed first, within its part of the budget.

    Args:
        fetcher: Reads the ranges; the inflater reserves a part of its budget.
        queues: The fetcher's queues.
        plan: The byte budget.
        ceiling: What a feeder shares among its runs.
        turn: The run's turn on a core, in which a thread works.
    """

    fetcher: Fetcher
    queues: Sequence[InflatingQueue]
    plan: MemoryPlan
    ceiling: RunCeiling = NO_CEILING
    turn: Turn = nullcontext
    bytes_in: int = 0
    bytes_out: int = 0
    _busy: int = 0
    _has_said: bool = False
    _has_threads: bool = False

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake, self._starting = asyncio.Event(), asyncio.Lock()
        for queue in self.queues:
            queue.wake, queue.rereads = self.wake, self._reread
        self._most = min(MOST_THREADS, allowed_cores(), len(self.queues))
        self._threads = self.ceiling.threads("streamrec-inflate", self._most)
        self.pool = Pool(self._schedule_again)
        self._account = Account()
        # With "auto", ranges may have all of it until a shard turns out to be compressed.
        if self.queues[0].setting != "auto":
            self._reserve()

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
        """Schedule again, since a lane may have become due."""
        self._wake.set()

    async def aclose(self) -> None:
        """End the threads after their current steps and release all memory."""
        await end_threads(self._threads, self.pool.close)

    def statistics(self) -> dict[str, Any]:
        """Return counters since the start, and the memory in use."""
        stored = self.fetcher.pool
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
                "%s is compressed, and the stream begins in the middle of it; such shards are "
                "read and decompressed from their beginnings",
                url,
            )

    def _schedule(self, group: asyncio.TaskGroup) -> None:
        waiting = [sublane for sublane, queue in enumerate(self.queues) if queue.has_work]
        # The lane with the fewest decompressed bytes needs more of them soonest.
        for sublane in sorted(waiting, key=lambda sublane: self.queues[sublane].waiting):
            if self._busy == self._most:
                return
            if self._has_memory(sublane, self.queues[sublane]):
                self._busy += 1
                group.create_task(self._inflate(sublane))

    def _has_memory(self, sublane: int, queue: InflatingQueue) -> bool:
        """Allocate memory for the lane's next step, if the budget has some."""
        if queue.open_piece is not None:
            return True
        size = self._allowance(sublane, queue)
        if size:
            try:
                queue.begin_piece(self.pool.acquire(size, self._account))
            except MemoryError as error:
                raise queue.out_of_memory(error) from None
            queue.piece_size = grown(queue.piece_size, self.plan.range_size)
            self._reserve()
        return size > 0

    def _reserve(self) -> None:
        """Reserve the inflater's part of the budget, or what it holds beyond it."""
        share = self.plan.for_inflated
        # What is held beyond the share is taken from the ranges, so that both stay within the
        # budget.
        self.fetcher.reserve(max(share, self.pool.in_use))
        self.pool.trim(max(0, share - self.pool.in_use))

    def _allowance(self, sublane: int, queue: InflatingQueue) -> int:
        """Return the bytes that the lane may have now.

        A lane without any bytes may have a head's whatever the budget says. To go on with a record
        larger than that, the consumer must wait for the lane: otherwise all might overdraw.
        """
        size = min(queue.piece_size, size_class(queue.likely_size()))
        owed = sum(map(self._is_due, range(len(self.queues)))) * self.plan.first_range
        wanted = self.pool.in_use + size_class(size) + owed
        # Ranges may have filled this part of the budget before the compression was known.
        both = wanted + self.fetcher.pool.in_use
        if wanted <= self.plan.for_inflated and both <= self.plan.for_ranges:
            return size
        is_long = queue.straddling > self.plan.first_range
        if not self._is_due(sublane) or (is_long and not self.fetcher.awaits(sublane)):
            return 0
        return min(size, self.plan.first_range)

    def _is_due(self, sublane: int) -> bool:
        """Return whether the lane has no bytes at all, so that memory for its head is kept free."""
        return self.queues[sublane].is_idle and self.fetcher.demand(sublane).is_empty

    async def _inflate(self, sublane: int) -> None:
        began = self._loop.time()
        try:
            await self._start_threads()
            bytes_in, bytes_out = await self.queues[sublane].inflate(self._threads, self.turn)
        finally:
            self._busy -= 1
        if self.fetcher.spans is not None:
            self.fetcher.spans.add("lane", "decompress", began, self._loop.time(), lane=sublane)
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self._wake.set()
        self.fetcher.wake()
        self.fetcher.notify(sublane)

    async def _start_threads(self) -> None:
        """Start the threads, once; most shards are not compressed, and need none."""
        async with self._starting:
            if not self._has_threads:
                await self.ceiling.start(self._threads, self._most)
                self._has_threads = True

    def _schedule_again(self) -> None:
        """Schedule again when memory has come back; called in any thread."""
        if not self._wake.is_set():
            with suppress(RuntimeError):  # the loop is closed: the run is over
                self._loop.call_soon_threadsafe(self._wake.set)


USUAL_RATIO = 8
"""Decompressed bytes expected per stored byte, so that small shards get little memory."""

_BEFORE = Extent(-1, -1, -1)
"""Stands for the extent before the first one."""
_NOTHING = np.empty(0, np.uint8)


def _nothing(*_: object) -> None:
    """Do nothing: nobody is notified."""


@dataclass(eq=False, kw_only=True)
class InflatingQueue(RangeQueue):
    """A queue that decompresses its ranges to pieces; those of plain shards stay as they are."""

    shards: Shards
    """The shards' names and sizes."""
    setting: Compression | Literal["auto"]
    """The compression, or ``"auto"``."""
    skip: int
    """The byte of the first shard to begin at, decompressed."""
    piece_size: int
    """The size in bytes of the next piece of memory."""
    wake: Callable[[], None] = _nothing
    """Called when there is work for a thread."""
    rereads: Callable[[str], None] = _nothing
    """Called with the URL of a shard that must be read from its beginning because of ``skip``."""
    _busy: bool = False  # a thread works for the lane
    _extent: Extent = _BEFORE
    _stream: Decompressor | None = None
    _failed: bool = False

    @property
    def first(self) -> RangeRead | None:
        """The range or piece whose records are read next; none before the compression is known."""
        read = super().first
        # Ranges of a shard that is decompressed are never read themselves, only the pieces made of
        # them.
        if self.pieces or read is None or self._stream is not None:
            return read if self.pieces else None
        return read if read.request.extent is self._extent else None

    @property
    def decompresses(self) -> bool:
        """True while bytes that have been received must be decompressed before they can be read."""
        read = self.stored
        if read is None or self._stream is None or read.request.extent is not self._extent:
            return False
        return read.done or read.scanned < read.filled

    @property
    def waiting(self) -> int:
        """Decompressed bytes whose records have not been read yet."""
        return sum(piece.filled - piece.scanned for piece in self.pieces)

    @property
    def open_piece(self) -> RangeRead | None:
        """The piece of memory that is being filled."""
        return self.pieces[-1] if self.pieces and not self.pieces[-1].done else None

    @property
    def is_idle(self) -> bool:
        """True while there is work for a thread, and the lane has no piece."""
        return self.has_work and not self.pieces

    @property
    def has_work(self) -> bool:
        """True while there is work for a thread."""
        if self._stream is None or self._busy or self._failed:
            return False
        read = self.stored
        received = read is not None and read.scanned < read.filled
        return self._stream.pending or received

    def changed(self) -> None:
        """Take in the ranges that have been received."""
        while (read := self.stored) is not None:
            if read.request.extent is not self._extent and not self._enter(read):
                break
            if self._failed or not self._use_up(read):
                break
        if self.has_work:
            self.wake()

    def begin_piece(self, memory: ByteArray) -> None:
        """Append a piece of memory to be filled next."""
        assert self._stream is not None
        # The bytes before `skip` are decompressed as well, and overwritten by those that follow.
        begin = max(self._stream.produced, self.skip)
        request = RangeRequest(self._extent, begin, begin + len(memory))
        self.pieces.append(RangeRead(request, memory, inflated=True))

    async def inflate(self, threads: Executor, turn: Turn = nullcontext) -> tuple[int, int]:
        """Decompress once in a thread, in its turn; return the number of bytes taken and given."""
        read, piece, stream = self.stored, self.open_piece, self._stream
        assert stream is not None
        assert piece is not None
        self._busy = True
        # Without new bytes there may still be output: the decompressor holds back what had no room.
        stored = _NOTHING if read is None else read.unused
        room = piece.memory[piece.filled :]
        missing = self.skip - stream.produced  # skipped bytes are written too, then overwritten
        room = room[:missing] if missing > 0 else room

        def fill(source: memoryview, target: memoryview) -> tuple[int, int]:
            with turn():
                return stream.fill(source, target)

        loop = asyncio.get_running_loop()
        try:
            bytes_in, bytes_out = await loop.run_in_executor(threads, fill, stored.data, room.data)
        except DataError as error:
            self._fail(error)
            return 0, 0
        except MemoryError as error:
            raise self.out_of_memory(error) from None
        finally:
            self._busy = False
        if read is not None:
            read.scanned += bytes_in
        if stream.produced > self.skip:
            piece.filled += bytes_out
        if piece.filled == len(piece.memory):
            piece.close()
        self.changed()
        return bytes_in, bytes_out

    def out_of_memory(self, error: MemoryError) -> OutOfMemory:
        """Make the error for a failed allocation."""
        assert self._stream is not None
        return OutOfMemory.of(error, url=self._stream.url, offset=self._stream.consumed)

    def _fail(self, error: StreamrecError) -> None:
        """Put an error after the bytes that wait."""
        self._last_piece().error = error
        self._failed = True

    def _last_piece(self) -> RangeRead:
        """Return the piece that is being filled, or an empty one after the others."""
        if self.open_piece is None:
            self.begin_piece(_NOTHING)
        return self.pieces[-1]

    def likely_size(self) -> int:
        """Estimate the decompressed bytes of the current shard."""
        return USUAL_RATIO * self.shards.sizes.get(self._extent.shard, 0)

    def _enter(self, read: RangeRead) -> bool:
        """Begin a shard, unless its compression is still unknown; return whether it was begun."""
        kind = self._kind(read)
        if kind is None:
            return False
        # Only the first shard is begun in its middle.
        self.skip = self.skip if self._extent is _BEFORE else 0
        self._extent, self._stream, self._failed = read.request.extent, None, False
        if kind == "none":
            self._begin(self.skip, read, compressed=False)
            return True
        url = masked(self.shards.urls[self._extent.shard])
        if self.skip:
            self.rereads(url)
        self._stream = Decompressor(kind, url=url)
        self._begin(read.request.stop, read, compressed=True)
        return True

    def _begin(self, offset: int, read: RangeRead, *, compressed: bool) -> None:
        """Go on at ``offset`` if only the shard's first bytes were requested, as a probe.

        The probe's range is dropped where its bytes are not needed, and kept if it has an error.
        """
        if self.planner.probes and read.error is None:
            self.planner.go_on(offset)
            if not compressed:
                self.drop_stored()
                self.answered = False  # the head is still to be requested

    def _kind(self, read: RangeRead) -> Compression | None:
        if self.setting != "auto":
            return self.setting
        if read.filled < HEAD and not read.done and read.error is None:
            return None
        shard = read.request.extent.shard
        named = of_name(self.shards.urls[shard], self.shards.encodings.get(shard))
        return detect(read.memory[: min(HEAD, read.filled)].tobytes(), named)

    def _use_up(self, read: RangeRead) -> bool:
        """Drop the first range if all is decompressed; return whether the next one can follow."""
        stream = self._stream
        if stream is None or self._busy or stream.pending or read.scanned < read.filled:
            return False
        try:
            if read.error is not None:
                raise read.error
            return read.done and self._leave(read, stream)
        except StreamrecError as error:
            self._fail(error)
            return False

    def _leave(self, read: RangeRead, stream: Decompressor) -> bool:
        """Drop the first range; the shard's last one only when all is decompressed."""
        is_last = read.request.stop >= self.shards.sizes[read.request.extent.shard]
        if is_last:
            stream.end()
            if stream.pending:
                return False
            self._end_shard(stream)
        self.drop_stored()
        return True

    def _end_shard(self, stream: Decompressor) -> None:
        stream.finish()
        if stream.produced < self.skip:
            raise TruncatedShard(
                f"the shard has {stream.produced} decompressed bytes, but must be read from byte "
                f"{self.skip} on; give the offset of a record, or a state of this very shard",
                url=stream.url,
                offset=stream.consumed,
            )
        piece = self._last_piece()
        piece.shard_size = stream.produced
        piece.close()
        if not stream.produced:
            # Else an endless run over shards of nothing would read them again and again.
            self.shards.sizes[self._extent.shard] = 0
        self._stream = None
