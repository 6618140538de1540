"""Rows of numbers as a short text: where lanes stand, in a state.

Of each row stand its lowest number and, in as few bits as the largest of them needs, how far each
number is above it: lanes that go side by side differ by little, and what they have in common is
said once. The size follows from the numbers alone.
"""

from __future__ import annotations

from base64 import b85decode, b85encode
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import MalformedPosition

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

__all__ = ["pack", "unpack"]

_NOT_ALL = "the state's 'packed' does not hold the numbers of all lanes"

WIDEST = 56
"""Bits of a lowest number and of what is above it: their sum stays below 2^63."""


def pack(rows: Numbers) -> str:
    """Base 85 of the rows' heads, and then of their bits from the lowest on, number by number.

    A head is a byte with the width of the row's numbers in bits, one with the size of its lowest
    number, and that number in so many bytes.

    Args:
        rows: int64 ``[rows, columns]``, at least one of each; no number below 0 or from 2^56 up.
    """
    lowest = rows.min(axis=1)
    above = rows - lowest[:, None]
    widths = np.array([most.bit_length() for most in above.max(axis=1).tolist()])
    octets = above.astype("<i8").view(np.uint8).reshape(*rows.shape, 8)
    bits = np.unpackbits(octets, axis=2, count=int(widths.max()), bitorder="little")
    told = np.packbits(bits[_told(widths, rows.shape[1])], bitorder="little")
    heads = map(_head, widths.tolist(), lowest.tolist())
    return b85encode(b"".join(heads) + told.tobytes()).decode()


def unpack(text: Any, rows: int, columns: int) -> Numbers:
    """Read what :func:`pack` gave; nothing about it is taken on trust.

    Args:
        text: The rows.
        rows: How many there are.
        columns: How many numbers each has.

    Returns:
        int64 ``[rows, columns]``. Where none of them differ, the text says nothing of the columns:
        how many there are must be known to be little enough.

    Raises:
        MalformedPosition: It is something else.
    """
    widths, lowest, data = _heads(_decoded(text), rows)
    count = columns * int(widths.sum())
    if len(data) != -(-count // 8):
        raise MalformedPosition(_NOT_ALL)
    told = _told(widths, columns)
    bits = np.zeros(told.shape, np.uint8)
    flat = np.frombuffer(data, np.uint8)
    bits[told] = np.unpackbits(flat, count=count, bitorder="little")
    octets = np.zeros((rows, columns, 8), np.uint8)
    octets[..., : -(-told.shape[2] // 8)] = np.packbits(bits, axis=2, bitorder="little")
    return octets.view("<i8")[..., 0].astype(np.int64) + lowest[:, None]


def _head(width: int, lowest: int) -> bytes:
    size = -(-lowest.bit_length() // 8)
    return bytes((width, size)) + lowest.to_bytes(size, "little")


def _heads(data: bytes, rows: int) -> tuple[Numbers, Numbers, bytes]:
    """The widths and lowest numbers of all rows, and what comes after them."""
    heads = np.zeros((2, rows), np.int64)
    at = 0
    for row in range(rows):
        width, size = data[at : at + 2].ljust(2, b"\xff")
        lowest = data[at + 2 : at + 2 + size]
        if width > WIDEST or size > WIDEST // 8 or len(lowest) < size:
            raise MalformedPosition(_NOT_ALL)
        heads[:, row] = width, int.from_bytes(lowest, "little")
        at += 2 + size
    return heads[0], heads[1], data[at:]


def _decoded(text: Any) -> bytes:
    try:
        return b85decode(text) if isinstance(text, str) else b""
    except ValueError:
        return b""


def _told(widths: Numbers, columns: int) -> npt.NDArray[np.bool_]:
    """Which bits of a number stand there, ``[rows, columns, bits of the widest]``."""
    bits = np.arange(int(widths.max()))
    return np.broadcast_to(bits < widths[:, None, None], (len(widths), columns, len(bits)))
