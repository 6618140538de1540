"""The queue of a sublane whose shards may be compressed."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from streamrec.errors import DataError, OutOfMemory, StreamrecError, TruncatedShard
from streamrec.formats.shards.compression import HEAD, Decompressor, detect, of_name
from streamrec.masking import masked
from streamrec.pipeline.fetch.range_queue import RangeQueue, RangeRead
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.reading.ranges import RangeRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from streamrec.config import Compression
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.values.columns import ByteArray

    Turn = Callable[[], AbstractContextManager[object]]

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
        begin = max(self._stream.produced, self.skip)
        request = RangeRequest(self._extent, begin, begin + len(memory))
        self.pieces.append(RangeRead(request, memory, inflated=True))

    async def inflate(self, threads: Executor, turn: Turn = nullcontext) -> tuple[int, int]:
        """Decompress once in a thread, in its turn; return the number of bytes taken and given."""
        read, piece, stream = self.stored, self.open_piece, self._stream
        assert stream is not None
        assert piece is not None
        self._busy = True
        stored = _NOTHING if read is None else read.unused
        room = piece.memory[piece.filled :]
        missing = self.skip - stream.produced  # skipped bytes are written too, then overwritten
        room = room[:missing] if missing > 0 else room

        def fill(source: memoryview, target: memoryview) -> tuple[int, int]:
            with turn():
                return stream.fill(source, target)

        loop = asyncio.get_running_loop()
        try:
            taken, given = await loop.run_in_executor(threads, fill, stored.data, room.data)
        except DataError as error:
            self._fail(error)
            return 0, 0
        except MemoryError as error:
            raise self.out_of_memory(error) from None
        finally:
            self._busy = False
        if read is not None:
            read.scanned += taken
        if stream.produced > self.skip:
            piece.filled += given
        if piece.filled == len(piece.memory):
            piece.close()
        self.changed()
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
        return self.pieces[-1]

    def likely_size(self) -> int:
        """Estimate the decompressed bytes of the current shard."""
        return USUAL_RATIO * self.shards.sizes.get(self._extent.shard, 0)

    def _enter(self, read: RangeRead) -> bool:
        """Begin a shard, unless its compression is still unknown; return whether it was begun."""
        kind = self._kind(read)
        if kind is None:
            return False
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
            self.shards.sizes[self._extent.shard] = 0
        self._stream = None
