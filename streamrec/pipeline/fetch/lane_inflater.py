"""The decompression of one lane's ranges."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import numpy as np

from streamrec.errors import DataError, OutOfMemory, StreamrecError, TruncatedShard
from streamrec.formats.shards.compression import HEAD, Decompressor, detect, of_name
from streamrec.masking import masked
from streamrec.pipeline.fetch.range_queue import RangeRead
from streamrec.plan.order import Extent
from streamrec.plan.ranges import RangeRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from streamrec.config import Compression
    from streamrec.pipeline.fetch.range_queue import RangeQueue, Shards
    from streamrec.values.columns import ByteArray

__all__ = ["LaneInflater"]

USUAL_RATIO = 8
"""Decompressed bytes expected per stored byte, so that small shards get little memory."""


class LaneInflater:
    """The decompression of one lane's ranges to pieces; it leaves plain shards as they are.

    Args:
        queue: The lane's ranges and pieces.
        shards: The shards' names and sizes.
        setting: The compression, or ``"auto"``.
        offset: The byte of the first shard to begin at, decompressed.
        head: The size in bytes of the first piece of memory.
        wake: Called when there is work for a thread.
        rereads: Called with the shard's URL if ``offset`` needs it to be read from its beginning.
    """

    def __init__(
        self,
        queue: RangeQueue,
        shards: Shards,
        setting: Compression | Literal["auto"],
        offset: int,
        head: int,
        wake: Callable[[], None],
        rereads: Callable[[str], None],
    ) -> None:
        self.size = head
        """The size in bytes of the next piece of memory."""
        self._busy = False  # a thread works for the lane
        self._queue, self._pieces = queue, queue.pieces
        self._shards = shards
        self._setting = setting
        self._skip = offset
        self._wake = wake
        self._rereads = rereads
        self._extent = _BEFORE
        self._stream: Decompressor | None = None
        self._failed = False
        queue.subscribe(self.update)

    @property
    def waiting(self) -> int:
        """Decompressed bytes whose records have not been read yet."""
        return sum(piece.filled - piece.scanned for piece in self._pieces)

    @property
    def open_piece(self) -> RangeRead | None:
        """The piece of memory that is being filled."""
        return self._pieces[-1] if self._pieces and not self._pieces[-1].done else None

    @property
    def is_idle(self) -> bool:
        """True while there is work for a thread, and the lane has no piece."""
        return self.has_work and not self._pieces

    @property
    def has_work(self) -> bool:
        """True while there is work for a thread."""
        if self._stream is None or self._busy or self._failed:
            return False
        read = self._queue.stored
        received = read is not None and read.scanned < read.filled
        return self._stream.pending or received

    def update(self) -> None:
        """Take in the ranges that have been received."""
        while (read := self._queue.stored) is not None:
            if read.request.extent is not self._extent and not self._enter(read):
                break
            if self._failed or not self._use_up(read):
                break
        if self.has_work:
            self._wake()

    def begin_piece(self, memory: ByteArray) -> None:
        """Append a piece of memory to be filled next."""
        assert self._stream is not None
        begin = max(self._stream.produced, self._skip)
        request = RangeRequest(self._extent, begin, begin + len(memory))
        self._pieces.append(RangeRead(request, memory, inflated=True))

    def begin(self) -> None:
        """Note that a thread is about to work for the lane."""
        self._busy = True

    async def inflate(self, threads: Executor) -> tuple[int, int]:
        """Decompress once in a thread; return the number of bytes taken and given."""
        read, piece, stream = self._queue.stored, self.open_piece, self._stream
        assert stream is not None
        assert piece is not None
        stored = _NOTHING if read is None else read.unused
        room = piece.memory[piece.filled :]
        missing = self._skip - stream.produced  # skipped bytes are written too, then overwritten
        room = room[:missing] if missing > 0 else room
        loop = asyncio.get_running_loop()
        try:
            taken, given = await loop.run_in_executor(threads, stream.fill, stored.data, room.data)
        except DataError as error:
            self._fail(error)
            return 0, 0
        except MemoryError as error:
            raise self.out_of_memory(error) from None
        finally:
            self._busy = False
        if read is not None:
            read.use(taken)
        if stream.produced > self._skip:
            piece.filled += given
        if piece.filled == len(piece.memory):
            piece.close()
        self.update()
        return taken, given

    def out_of_memory(self, error: MemoryError) -> OutOfMemory:
        """Make the error for a failed allocation."""
        assert self._stream is not None
        return OutOfMemory.of(error, url=self._stream.url, offset=self._stream.consumed)

    def _fail(self, error: StreamrecError) -> None:
        """Put an error behind the bytes that wait."""
        self._last_piece().error = error
        self._failed = True

    def _last_piece(self) -> RangeRead:
        """Return the piece that is being filled, or an empty one behind the others."""
        if self.open_piece is None:
            self.begin_piece(_NOTHING)
        return self._pieces[-1]

    def likely_size(self) -> int:
        """Estimate the decompressed bytes of the current shard."""
        return USUAL_RATIO * self._shards.sizes.get(self._extent.shard, 0)

    def _enter(self, read: RangeRead) -> bool:
        """Begin a shard, unless its compression is still unknown; return whether it was begun."""
        kind = self._kind(read)
        if kind is None:
            return False
        self._skip = self._skip if self._extent is _BEFORE else 0
        self._extent, self._stream, self._failed = read.request.extent, None, False
        if kind == "none":
            self._queue.begin(self._skip, compressed=False)
            return True
        url = masked(self._shards.urls[self._extent.shard])
        if self._skip:
            self._rereads(url)
        self._stream = Decompressor(kind, url=url)
        self._queue.begin(read.request.stop, compressed=True)
        return True

    def _kind(self, read: RangeRead) -> Compression | None:
        if self._setting != "auto":
            return self._setting
        if read.filled < HEAD and not read.done and read.error is None:
            return None
        shard = read.request.extent.shard
        named = of_name(self._shards.urls[shard], self._shards.encodings.get(shard))
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
        is_last = read.request.stop >= self._shards.sizes[read.request.extent.shard]
        if is_last:
            stream.end()
            if stream.pending:
                return False
            self._end_shard(stream)
        self._queue.drop_stored()
        return True

    def _end_shard(self, stream: Decompressor) -> None:
        stream.finish()
        if stream.produced < self._skip:
            raise TruncatedShard(
                f"the shard has {stream.produced} decompressed bytes, and should be read from byte "
                f"{self._skip} on; give the offset of a record, or a state of this very shard",
                url=stream.url,
                offset=stream.consumed,
            )
        piece = self._last_piece()
        piece.shard_size = stream.produced
        piece.close()
        if not stream.produced:
            self._shards.mark_empty(self._extent.shard)
        self._stream = None


_BEFORE = Extent(-1, -1, -1)
"""Stands for the extent before the first one."""
_NOTHING = np.empty(0, np.uint8)
