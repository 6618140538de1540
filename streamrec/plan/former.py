"""Where lanes stand in states of version 1, which had a list for each coordinate.

Those of mixes had a text instead: of each row a byte with a width, and the numbers in so many bytes
each, little-endian.
"""

from __future__ import annotations

from base64 import b85decode
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import MalformedPosition

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

__all__ = ["lists", "texts"]

LARGEST = 1 << 48
WIDEST = 8


def lists(data: Mapping[str, Any], names: tuple[str, ...], owned: int) -> Numbers:
    """Rows of what is not mixed.

    Args:
        data: The state.
        names: Of the coordinates; ``taken`` counts from ``round`` on, ``part`` may be missing.
        owned: How many lanes there are.

    Returns:
        int64 ``[coordinates + 1, owned]``; the last row are the tags: numbers of 32 bits, plus 1.

    Raises:
        MalformedPosition: It is something else.
    """
    (lowest,) = _row({"round": [data.get("round")]}, "round", 1)
    data = {"part": [0] * owned, **data}
    rows = [_row(data, name, owned) for name in names]
    rows[names.index("taken")] = [lowest + number for number in rows[names.index("taken")]]
    tags = data.get("tags")
    if not isinstance(tags, list) or len(tags) != owned:
        raise MalformedPosition(f"the state's 'tags' is not a list of {owned} tags")
    return np.array([*rows, [_tag(tag) for tag in tags]], np.int64)


def texts(data: Mapping[str, Any], names: tuple[str, ...], owned: int, components: int) -> Numbers:
    """Rows of a mix.

    Args:
        data: The state.
        names: Of the coordinates.
        owned: How many lanes there are.
        components: How many each of them mixes.

    Returns:
        int64 ``[coordinates + 4 * components, owned]``: for each component three rows of numbers,
        and then for each a row of tags.

    Raises:
        MalformedPosition: It is something else.
    """
    (lowest,) = _row({"round": [data.get("round")]}, "round", 1)
    text = data.get("packed")
    try:
        packed = b85decode(text) if isinstance(text, str) else b""
    except ValueError:
        packed = b""
    rows = []
    for length in [owned] * len(names) + [owned * components] * 4:
        width = packed[0] if packed else WIDEST + 1
        size = 1 + length * width
        if width > WIDEST or len(packed) < size:
            raise MalformedPosition("the state's 'packed' does not hold the numbers of all lanes")
        rows.append(_unpacked(packed[1:size], length, width).reshape(-1, owned))
        packed = packed[size:]
    whole = np.concatenate(rows)
    if packed or whole.min() < 0:
        raise MalformedPosition("the state's 'packed' holds something else than its numbers")
    whole[names.index("taken")] += lowest
    return whole


def _row(data: Mapping[str, Any], name: str, owned: int) -> list[int]:
    row = data.get(name)
    if not isinstance(row, list) or len(row) != owned:
        raise MalformedPosition(f"the state's {name!r} is not a list of {owned} numbers")
    if not all(type(value) is int and 0 <= value <= LARGEST for value in row):
        raise MalformedPosition(f"the state's {name!r} holds no numbers from 0 to {LARGEST}")
    return row


def _tag(tag: Any) -> int:
    try:
        number = int(tag, 16) if isinstance(tag, str) and len(tag) == 8 else -1
    except ValueError:
        number = -1
    if tag is not None and number < 0:
        raise MalformedPosition("the state's 'tags' holds something else than tags")
    return number + 1


def _unpacked(data: bytes, length: int, width: int) -> Numbers:
    octets = np.zeros((length, WIDEST), np.uint8)
    octets[:, :width] = np.frombuffer(data, np.uint8).reshape(length, width)
    return octets.view("<i8").reshape(length).astype(np.int64)
