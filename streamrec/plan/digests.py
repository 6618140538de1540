"""Hashes of many byte strings. Pure: no I/O."""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from streamrec.values.columns import Bytes

__all__ = ["digests"]


def digests(strings: BytesColumn | Iterable[Bytes], words: int) -> npt.NDArray[np.uint64]:
    """Return the BLAKE2b hash of each string.

    Args:
        strings: The strings.
        words: The size of a hash in words of 8 bytes.

    Returns:
        uint64 ``[strings, words]``, read as little-endian.
    """
    views = _views(strings) if isinstance(strings, BytesColumn) else strings
    size = 8 * words
    joined = b"".join([blake2b(view, digest_size=size).digest() for view in views])
    return np.frombuffer(joined, "<u8").reshape(-1, words)


def _views(column: BytesColumn) -> Iterator[memoryview]:
    data = column.values.data
    return (data[first:last] for first, last in pairwise(column.offsets.tolist()))
