"""The cache of a run's decoded batches, and their form in it.

A batch is one piece: a frame of the feeder's protocol without its last four bytes, since the shelf
has a checksum of its own. The end of a run is a frame without content.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import ConfigError, RemoteProtocolError
from streamrec.flow.channel import EndOfStream
from streamrec.flow.pool import BatchMemory
from streamrec.masking import masked
from streamrec.pipeline.batch import payload
from streamrec.pipeline.cache.batch_keys import BatchKeys
from streamrec.stores.cache.pieces import Piece
from streamrec.stores.versions import is_strong
from streamrec.wire.frame import HEADER, TRAILER, Header
from streamrec.wire.messages import BatchMessage, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.plan.state.position import Position
    from streamrec.stores.base import ObjectInfo
    from streamrec.stores.cache.piece_cache import PieceCache
    from streamrec.values.columns import ByteArray

MOST = 1 << 30
"""Bytes of the largest batch that is kept: one system call reads it, and Linux ends it at 2 GiB."""


class BatchCache:
    """A cache of one run's batches by the positions before them.

    Its methods block, and may be called from several threads. Batches that it gives have memory of
    their own.

    Args:
        plan: The plan of the run.
        pieces: Keeps the batches, and removes what was not used for long.
        versions: The keys of the shards' versions, in the shards' order.
    """

    def __init__(self, plan: RunPlan, pieces: PieceCache, versions: Sequence[str]) -> None:
        self._keys = BatchKeys(plan, versions)
        self.threads = pieces.threads
        """Threads in which batches can be loaded."""
        self._pieces = pieces
        self._memory = BatchMemory()

    def __repr__(self) -> str:
        return f"<BatchCache in {self._pieces!r}>"

    def load(self, before: Position) -> Batch | None:
        """Return the batch behind a position; ``None`` if there is none, or it cannot be read.

        Raises:
            EndOfStream: The run ends there.
        """
        memory = self._bytes_of(self._keys.key(before))
        try:
            return None if memory is None else self._read(memory, before)
        except RemoteProtocolError:
            return None

    def keep(self, batch: Batch, before: Position) -> None:
        """Keep the batch behind a position; without memory for that, do nothing."""
        key = self._keys.key(before)
        if self._bytes_of(key) is not None:  # reading it has removed it, if it was damaged
            return
        message = payload.encode(self._keys.kept(batch))
        header = Header(Kind.BATCH, len(message.metadata), message.payload_size)
        if _size(header) > MOST:
            return
        with contextlib.suppress(MemoryError):
            self._save(key, header, message)

    def keep_end(self, before: Position) -> None:
        """Keep that the run ends at a position."""
        self._save(self._keys.key(before), Header(Kind.END, 0, 0), BatchMessage(b""))

    def close(self) -> None:
        """Keep no memory for further batches; existing batches are not affected."""
        self._memory.close()

    def _bytes_of(self, key: str) -> ByteArray | None:
        found = self._pieces.find(key, 0, 1)
        piece = next((piece for piece in found if piece.begin == 0 and _is_whole(piece)), None)
        if piece is None:
            return None
        try:
            memory = self._memory.allocate(piece.nbytes)
        except MemoryError:
            return None
        return memory if self._pieces.load(piece, 0, memory.data) else None

    def _read(self, memory: ByteArray, before: Position) -> Batch:
        header = Header.unpack(memory[:HEADER].tobytes())
        if len(memory) != _size(header):
            raise RemoteProtocolError("a kept batch has another size than its header says")
        if header.kind is Kind.END:
            raise EndOfStream
        begin = HEADER + header.metadata_size
        metadata, content = memory[HEADER:begin].tobytes(), memory[begin + header.padding :].data
        message = BatchMessage(metadata, (content,) if len(content) else ())
        batch = payload.decode(message, before.fingerprint, before.rank, before.world_size)
        return self._keys.restored(batch, before)

    def _save(self, key: str, header: Header, message: BatchMessage) -> None:
        memory = self._memory.allocate(_size(header))
        head = header.pack() + message.metadata + bytes(header.padding)
        parts = memoryview(head), *message.payload
        # Unlike a join of bytes, it lets go of the interpreter.
        np.concatenate([np.frombuffer(part, np.uint8) for part in parts], out=memory)
        self._pieces.keep(Piece(key, 0, len(memory), len(memory)), memory.data)


def versions_of(objects: Sequence[ObjectInfo], pieces: PieceCache) -> list[str]:
    """Return the keys of objects' versions.

    Raises:
        ConfigError: One has no strong version, so nothing would tell that it has changed.
    """
    for found in objects:
        if found.etag is None or not is_strong(found.etag):
            raise ConfigError(
                f"a cache of batches knows shards by their versions, and {masked(found.url)} was "
                "found without a strong one; name the shards by a glob, whose listing tells "
                "versions, or set cache to keep ranges"
            )
    return [pieces.key_of(found.url, found.etag or "") for found in objects]


def _size(header: Header) -> int:
    return header.size - TRAILER


def _is_whole(piece: Piece) -> bool:
    return HEADER <= piece.nbytes == piece.size <= MOST
