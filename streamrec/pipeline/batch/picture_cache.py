"""The cache of decoded pictures.

A picture is found by its content: a digest of its bytes as they stand in the record, of what is
made of them, and of the programs that make it. So neither the order of records nor the place or
version of a shard is in its key, and no other picture can come in its place.
"""

from __future__ import annotations

import json
import threading
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from streamrec.stores.cache.pieces import Piece

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from streamrec.formats.images.picture import OutputForm
    from streamrec.stores.cache.piece_cache import PieceCache

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
        if self._pieces.load(piece, 0, view):
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
    from streamrec import __version__  # it imports this module

    return [__version__, *map(_version, ("pillow", "simplejpeg"))]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
