"""Rows of numbers as a short text: the state of a mix has several for each lane and component."""

from __future__ import annotations

from base64 import b85decode, b85encode
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import MalformedPosition

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

__all__ = ["pack", "unpack"]

WIDEST = 8


def pack(rows: Sequence[Numbers]) -> str:
    """Base 85 of all rows: of each a byte with a width, and the numbers in so many bytes each.

    Args:
        rows: int64 ``[n]`` each, no number below 0. They stand little-endian, in as few bytes as
            the row's largest needs.
    """
    return b85encode(b"".join(map(_packed, rows))).decode()


def unpack(text: Any, lengths: Sequence[int]) -> list[Numbers]:
    """Read what :func:`pack` gave; nothing about it is taken on trust.

    Args:
        text: The rows.
        lengths: How many numbers each has.

    Raises:
        MalformedPosition: It is something else.
    """
    try:
        data = b85decode(text) if isinstance(text, str) else b""
    except ValueError:
        data = b""
    rows = []
    for length in lengths:
        width = data[0] if data else WIDEST + 1
        size = 1 + length * width
        if width > WIDEST or len(data) < size:
            raise MalformedPosition("the state's 'packed' does not hold the numbers of all lanes")
        rows.append(_unpacked(data[1:size], length, width))
        data = data[size:]
    if data or any((row < 0).any() for row in rows):
        raise MalformedPosition("the state's 'packed' holds something else than its numbers")
    return rows


def _packed(row: Numbers) -> bytes:
    width = -(-int(row.max(initial=0)).bit_length() // 8)
    octets = row.astype("<i8").view(np.uint8).reshape(len(row), WIDEST)
    return bytes([width]) + octets[:, :width].tobytes()


def _unpacked(data: bytes, length: int, width: int) -> Numbers:
    octets = np.zeros((length, WIDEST), np.uint8)
    octets[:, :width] = np.frombuffer(data, np.uint8).reshape(length, width)
    return octets.view("<i8").reshape(length).astype(np.int64)
