"""Integers as varints, by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.kernel import _native
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.values.columns import Indices

__all__ = ["varints"]


def varints(values: npt.NDArray[np.int64], splits: Indices) -> BytesColumn:
    """Encode integers as varints, those of a row end to end; negative ones take ten bytes.

    Args:
        values: int64 ``[n]``.
        splits: int64 ``[rows + 1]``: row ``i`` has the values ``splits[i]`` to ``splits[i + 1]``.

    Raises:
        ValueError: The splits do not rise within the values, or values changed meanwhile.
    """
    values, splits = np.ascontiguousarray(values), np.ascontiguousarray(splits, np.int64)
    offsets = np.empty(len(splits), np.int64)
    _native.varint_offsets(values, splits, offsets)
    octets = np.empty(int(offsets[-1]), np.uint8)
    if not _native.put_varints(values, int(splits[0]), int(splits[-1]), octets):
        raise ValueError("the values were changed while they were encoded; encode a copy")
    return BytesColumn(octets, offsets)
