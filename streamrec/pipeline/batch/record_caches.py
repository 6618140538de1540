"""The caches of what is made of each record: its decoded pictures, and its mapped columns.

Both are found by content. The key of a picture is a digest of its bytes, of what is made of them
and of the programs that make it; that of mapped columns is one of the record's bytes, of the specs
and of the function with all that it reads. So neither the order of records nor the place or version
of a shard is in a key, and nothing else can come in its place.
"""

from __future__ import annotations

import json
import threading
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import LocalProtocolError, RemoteProtocolError
from streamrec.pipeline.batch import payload
from streamrec.stores.cache.shelves import Piece
from streamrec.values.aligned import empty
from streamrec.version import __version__
from streamrec.wire.frame import ALIGNMENT
from streamrec.wire.messages import BatchMessage

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from streamrec.formats.images.picture import OutputForm
    from streamrec.stores.cache.piece_cache import PieceCache
    from streamrec.values.columns import ByteArray, Column
    from streamrec.values.record_rows import RecordRows


MOST = 1 << 30
"""Bytes of the largest picture that is kept: one system call reads it, Linux ends it at 2 GiB."""


class PictureCache:
    """A cache of decoded pictures, used from several threads at once.

    Args:
        pieces: Keeps the pictures, and removes what was not used for long.
        counts: Counts the pictures that came from the cache, as ``cached_pictures``.
    """

    def __init__(self, pieces: PieceCache, counts: Counter[str]) -> None:
        self._pieces = pieces
        self._counts = counts
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<PictureCache in {self._pieces!r}>"

    def fill(
        self,
        encoded: memoryview,
        wanted: OutputForm,
        target: npt.NDArray[np.uint8],
        make: Callable[[], None],
    ) -> None:
        """Fill an array with a picture from the cache; or have it made, and keep it.

        Args:
            encoded: The picture as its record holds it.
            wanted: The form in which it is decoded, before it is resized to the array's.
            target: uint8 ``[height, width, channels]``, C-contiguous.
            make: Fills the array. What it raises, this call raises.
        """
        piece = Piece(_key(encoded, wanted, target.shape), 0, target.nbytes, target.nbytes)
        view = target.reshape(-1).data
        if self._pieces.load(piece, view):
            # A sum in a Counter is read, then written: without the lock threads would lose some.
            with self._lock:
                self._counts["cached_pictures"] += 1
            return
        make()
        if piece.nbytes <= MOST:
            self._pieces.keep(piece, view)


def _key(encoded: memoryview, wanted: OutputForm, shape: tuple[int, ...]) -> str:
    digest = blake2b(json.dumps([programs(), wanted, shape]).encode(), digest_size=16)
    digest.update(encoded)
    return digest.hexdigest()


@cache
def programs() -> list[str]:
    """Return the versions of what decodes records and pictures: another release may make others."""
    turbo = _version("simplejpeg") or _version("leanjpeg-simple")
    return [__version__, _version("pillow"), turbo]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


LENGTH = 4
"""Bytes of the description's length, with which a piece begins."""


class MappedCache:
    """A cache of mapped records, used from several threads at once.

    Args:
        pieces: Keeps the records, and removes what was not used for long.
        counts: Counts the records that came from the cache, as ``cached_mapped``.
        function: The name of the function and of all that it reads: equal for equal results.
        form: What else decides the columns that the function is given, in plain values.
    """

    def __init__(
        self, pieces: PieceCache, counts: Counter[str], function: str, form: object
    ) -> None:
        self._pieces = pieces
        self._counts = counts
        self._lock = threading.Lock()
        self._stream = json.dumps([programs(), function, form]).encode()

    def __repr__(self) -> str:
        return f"<MappedCache in {self._pieces!r}>"

    def keys(self, rows: RecordRows) -> list[str]:
        """Return the key of each record: 32 hexadecimal digits."""
        begun = blake2b(self._stream, digest_size=16)
        keys: list[str] = []
        steps = [b""] * len(rows)
        if rows.steps is not None:
            # Windows of one episode have its bytes, and are told apart by their first steps.
            steps = [step.to_bytes(8, "little", signed=True) for step in rows.steps.tolist()]
        numbers = rows.buffer_index.tolist(), rows.offsets.tolist(), rows.lengths.tolist()
        for buffer, offset, length, step in zip(*numbers, steps, strict=True):
            # The state after what all records have in common is computed once.
            digest = begun.copy()
            digest.update(rows.buffers[buffer][offset : offset + length])
            digest.update(step)
            keys.append(digest.hexdigest())
        return keys

    def load(self, key: str) -> dict[str, Column] | None:
        """Return a record's columns, of one row each; ``None`` if they are not there."""
        data = self._bytes_of(key)
        try:
            columns = None if data is None else _unpack(data)
        except RemoteProtocolError:
            return None
        if columns is not None:
            with self._lock:
                self._counts["cached_mapped"] += 1
        return columns

    def keep(self, key: str, columns: Mapping[str, Column]) -> None:
        """Keep a record's columns, of one row each; those that cannot travel are made each time."""
        try:
            data = _pack(columns)
        except (LocalProtocolError, MemoryError):
            return
        if len(data) <= MOST:
            self._pieces.keep(Piece(key, 0, len(data), len(data)), data.data)

    def _bytes_of(self, key: str) -> ByteArray | None:
        pieces = self._pieces.find(key, 0, 1)
        piece = next((one for one in pieces if LENGTH < one.nbytes == one.size <= MOST), None)
        if piece is None:
            return None
        try:
            data: ByteArray = empty((piece.nbytes,), np.dtype(np.uint8))
        except MemoryError:
            return None
        return data if self._pieces.load(piece, data.data) else None


def _pack(columns: Mapping[str, Column]) -> ByteArray:
    message = payload.encode_columns(columns, 1)
    length = len(message.metadata)
    head = length.to_bytes(LENGTH, "little") + message.metadata
    # Padded as on the wire, so that the columns can be views of what is read.
    parts: list[Any] = [head, bytes(-len(head) % ALIGNMENT), *message.payload]
    return np.concatenate([np.frombuffer(part, np.uint8) for part in parts])


def _unpack(data: ByteArray) -> dict[str, Column]:
    end = LENGTH + int.from_bytes(data[:LENGTH].tobytes(), "little")
    content = data[end + -end % ALIGNMENT :]
    parts = (content.data,) if len(content) else ()
    return payload.decode_columns(BatchMessage(data[LENGTH:end].tobytes(), parts))
