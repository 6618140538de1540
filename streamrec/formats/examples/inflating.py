"""Numbers in byte strings that zlib has compressed, one string for each record."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.examples.faults import ColumnFault
from streamrec.values.columns import BytesColumn, offsets_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.formats.examples.needs import Needs
    from streamrec.values.columns import Indices

ZLIB = "zlib"
"""The value of a spec's ``raw`` for such strings."""


def inflate(strings: BytesColumn, sizes: Indices, name: str, needs: Needs) -> npt.NDArray[np.uint8]:
    """Return the bytes of all records, end to end.

    No more comes out than is expected, so a small record cannot fill the memory.

    Args:
        strings: The compressed strings.
        sizes: int64 ``[rows]``: the bytes that each becomes.
        name: The feature's name, for errors.
        needs: Gives the memory, and takes note of it.

    Raises:
        ColumnFault: A string is damaged, or becomes more or fewer bytes.
    """
    needs.claims.rows(sizes, int(sizes.sum()), 1, name)
    places: list[int] = offsets_of(sizes).tolist()
    octets = needs.allocate(places[-1])
    offsets: list[int] = strings.offsets.tolist()
    for row, size in enumerate(sizes.tolist()):
        held = strings.values.data[offsets[row] : offsets[row + 1]]
        plain = _inflate(held, size, row, name)
        octets[places[row] : places[row + 1]] = np.frombuffer(plain, np.uint8)
    return octets


def _inflate(held: Any, size: int, row: int, name: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte more, so that a longer one is seen to be longer.
        plain = stream.decompress(held, size + 1)
    except zlib.error as error:
        why = f"the record's byte string is not intact zlib ({error}); correct raw, or the record"
        raise ColumnFault(row, name, why) from None
    if len(plain) == size and stream.eof:
        return plain
    what = f"{'more' if len(plain) > size else 'fewer'} than the {size} bytes"
    raise ColumnFault(
        row, name, f"the record's byte string becomes {what} that the spec takes; correct the shape"
    )
