"""Hashes of many byte strings. Pure: no I/O."""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from streamrec.values.columns import BytesColumn


def digests(strings: BytesColumn, words: int) -> npt.NDArray[np.uint64]:
    """Return the BLAKE2b hash of each string.

    Args:
        strings: The strings.
        words: The size of a hash in words of 8 bytes.

    Returns:
        uint64 ``[strings, words]``, read as little-endian.
    """
    size = 8 * words
    joined = b"".join([blake2b(view, digest_size=size).digest() for view in views(strings)])
    return np.frombuffer(joined, "<u8").reshape(-1, words)


def views(column: BytesColumn) -> Iterator[memoryview]:
    """Yield each string without a copy."""
    data = column.values.data
    return (data[first:last] for first, last in pairwise(column.offsets.tolist()))
