"""What one lane reads of compressed shards: its ranges, or what is decompressed of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

import numpy as np

from streamrec.errors import DataError, OutOfMemory, StoreError, TruncatedShard
from streamrec.formats.compression import HEAD, Decompressor, detect, of_name
from streamrec.masking import masked
from streamrec.pipeline.range_queue import Piece
from streamrec.plan.ranges import RangeRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.config import Compression
    from streamrec.pipeline.range_queue import Progress, RangeQueue, RangeRead, Shards
    from streamrec.plan.order import Extent
    from streamrec.types import Octets

__all__ = ["LaneInflater"]

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
        source: RangeQueue,
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
            self.update()

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
        self.update()

    def close(self) -> None:
        """Let go of what waits."""
        self._pieces.clear()

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
    def straddling(self) -> int:
        """Bytes, about, of the record that is being put together."""
        return self._source.straddling

    @property
    def has_work(self) -> bool:
        """Whether there is work for a thread."""
        if self._stream is None or self.busy or self._failed:
            return False
        read = self._source.first
        received = read is not None and read.scanned < read.filled
        return self._stream.pending or received

    @property
    def decompresses(self) -> bool:
        """Whether a thread is what the lane waits for: one at work, or work for one."""
        return self.busy or self.has_work

    def update(self) -> bool:
        """Take notice of what has been received; whether there is work for a thread."""
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
        self.update()

    def fail(self, error: DataError | StoreError) -> None:
        """What waits is all that comes before this error."""
        if self.open_piece is None:
            self.begin_piece(_NOTHING)
        self._pieces[-1].error = error
        self._failed = True

    def out_of_memory(self, error: MemoryError) -> OutOfMemory:
        """The error where there is no memory to go on with."""
        assert self._stream is not None
        return OutOfMemory.of(error, url=self._stream.url, offset=self._stream.consumed)

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
        url = masked(self._shards.urls[self._extent.shard])
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
            self._shards.mark_empty(self._extent.shard)
        self._stream, self._skip = None, 0


_NOTHING = np.empty(0, np.uint8)
