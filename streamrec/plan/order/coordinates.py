"""The coordinates of lanes: those of one as a tuple, those of several as an array with fields.

The text for the numbers of a position's lanes is short, since lanes advance side by side.
"""

from __future__ import annotations

from base64 import b85decode, b85encode
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec.errors import MalformedPosition

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

Structured: TypeAlias = "npt.NDArray[np.void]"


class Coordinates(NamedTuple):
    """The coordinates of a lane's next record."""

    extent: int
    """The number of the extent in which the lane's window begins; without shuffle, of that of its
    next record. For a mix or a lane with several shards open: the lane's epoch."""
    offset: int
    """The byte of the shard at which that record begins. For a mix: the number of changes of
    weights that hold; with several shards open: the bytes taken in an open shard's turn."""
    record: int
    """The number of that record in the shard. For a mix: that of its next record in the epoch; with
    several shards open: the turn's number in the epoch."""
    crc: int = 0
    """The stored CRC of the record before that one, by which a copy of the shard is known; at the
    beginning of an extent that of the record itself. 0 where it is not known."""
    window: int = 0
    """The window's number in its epoch."""
    row: int = 0
    """The rows of the window that are done."""
    taken: int = 0
    """All records that the lane has ever delivered; only the batcher counts it on."""
    part: int = 0
    """With packs, the delivered part of what is packed from there on; without, the done rows of the
    window that were damaged and left out."""
    sources: tuple[tuple[int, ...], ...] = ()
    """The point (:data:`POINT`) of each component of a mix, or of each open shard."""

    @property
    def point(self) -> tuple[int, ...]:
        """The first coordinates, which are those of a :data:`POINT`."""
        return self.extent, self.offset, self.record, self.crc

    @property
    def numbers(self) -> list[int]:
        """All coordinates in one list, with those of the sources at its end."""
        *fields, sources = self
        return [*fields, *chain.from_iterable(sources)]


NAMES = Coordinates._fields[:-1]
"""The names of a lane's own coordinates, in the order of a state."""
OWN = len(NAMES)
"""The number of a lane's own coordinates; the points of its sources follow them."""
LANE = np.dtype([(name, np.int64) for name in NAMES])
"""A lane's own coordinates, as an element of an array."""
POINTS = NAMES.index("crc") + 1
"""The number of a point's coordinates, which are a lane's first ones."""
POINT = np.dtype([(name, np.int64) for name in NAMES[:POINTS]])
"""The extent, offset, record and crc of a lane's next record in one of its sources."""


def flat(array: Structured) -> Numbers:
    """Return the fields as rows: int64 ``[fields, ..., lanes]``; the lanes are the first axis."""
    # All fields are int64, so that an element is a row of numbers.
    return array.view(np.int64).reshape(*array.shape, array.dtype.itemsize // 8).T


def structured(rows: Numbers, dtype: np.dtype[np.void]) -> Structured:
    """Return an array of which :func:`flat` gives these rows, in memory of its own."""
    # Copied, as the fields of an element must stand side by side.
    return rows.T.copy().view(dtype)[..., 0]


_NOT_ALL = (
    "the state's 'packed' does not hold the numbers of all lanes; give the state as it was saved"
)

WIDEST = 56
"""The most bits of a lowest number, and of a distance: their sum stays below 2^63."""


def pack(rows: Numbers) -> str:
    """Encode the lanes' positions as a short text: rows of numbers.

    A row is its lowest number and the distance of each number above that, in as many bits as the
    largest distance needs: lanes that advance side by side differ by little. The text, in base 85,
    is the rows' heads and then the bits of all distances, lowest bit first. Its size depends on the
    numbers alone.

    A head is one byte with the bits of the row's distances, one with the bytes of its lowest
    number, and that number, little-endian.

    Args:
        rows: int64 ``[rows, columns]``, at least one of each; no number below 0 or from 2^56 up.
    """
    lowest = rows.min(axis=1)
    above = rows - lowest[:, None]
    # By Python, since a logarithm of floats may be rounded past a power of two.
    widths = np.array([most.bit_length() for most in above.max(axis=1).tolist()])
    octets = above.astype("<i8").view(np.uint8).reshape(*rows.shape, 8)
    bits = np.unpackbits(octets, axis=2, count=int(widths.max()), bitorder="little")
    stored = np.packbits(bits[_bit_mask(widths, rows.shape[1])], bitorder="little")
    heads = map(_head, widths.tolist(), lowest.tolist())
    return b85encode(b"".join(heads) + stored.tobytes()).decode()


def unpack(text: Any, rows: int, columns: int) -> Numbers:
    """Decode the text of :func:`pack`, which is checked as untrusted input.

    Args:
        text: The rows.
        rows: The number of rows.
        columns: The number of columns.

    Returns:
        int64 ``[rows, columns]``. Where the columns do not differ, the text does not bound their
        number: the caller must have checked that it is small enough.

    Raises:
        MalformedPosition: The text is something else.
    """
    widths, lowest, data = _heads(_decode(text), rows)
    count = columns * int(widths.sum())
    if len(data) != -(-count // 8):
        raise MalformedPosition(_NOT_ALL)
    stored = _bit_mask(widths, columns)
    bits = np.zeros(stored.shape, np.uint8)
    flat = np.frombuffer(data, np.uint8)
    bits[stored] = np.unpackbits(flat, count=count, bitorder="little")
    octets = np.zeros((rows, columns, 8), np.uint8)
    octets[..., : -(-stored.shape[2] // 8)] = np.packbits(bits, axis=2, bitorder="little")
    return octets.view("<i8")[..., 0].astype(np.int64) + lowest[:, None]


def _head(width: int, lowest: int) -> bytes:
    size = -(-lowest.bit_length() // 8)
    return bytes((width, size)) + lowest.to_bytes(size, "little")


def _heads(data: bytes, rows: int) -> tuple[Numbers, Numbers, bytes]:
    """Decode the heads: the widths and lowest numbers of all rows, and the rest of the data."""
    heads = np.zeros((2, rows), np.int64)
    at = 0
    for row in range(rows):
        # Where the text has ended, the filling is a width that is refused.
        width, size = data[at : at + 2].ljust(2, b"\xff")
        lowest = data[at + 2 : at + 2 + size]
        if width > WIDEST or size > WIDEST // 8 or len(lowest) < size:
            raise MalformedPosition(_NOT_ALL)
        heads[:, row] = width, int.from_bytes(lowest, "little")
        at += 2 + size
    return heads[0], heads[1], data[at:]


def _decode(text: Any) -> bytes:
    try:
        return b85decode(text) if isinstance(text, str) else b""
    except ValueError:
        return b""


def _bit_mask(widths: Numbers, columns: int) -> npt.NDArray[np.bool_]:
    """Return which bits are stored: ``[rows, columns, bits of the widest row]``."""
    bits = np.arange(int(widths.max()))
    return np.broadcast_to(bits < widths[:, None, None], (len(widths), columns, len(bits)))
