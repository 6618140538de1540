"""The text for the numbers of a position's lanes: short, since lanes advance side by side."""

from __future__ import annotations

from base64 import b85decode, b85encode
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import MalformedPosition

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]


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
