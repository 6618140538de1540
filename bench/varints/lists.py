"""The lists that are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = ["Lists", "all_lists", "zipf"]

VALUES = 1 << 16
"""In all lists of one kind: half a megabyte decoded, which a second-level cache holds."""
LIST = 512
"""Values in a list, as a sequence of tokens has them."""
VOCABULARY = 50_000


class Lists(NamedTuple):
    """Packed lists end to end."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    """``[lists + 1]``."""


def all_lists(seed: int = 0) -> dict[str, tuple[Lists, npt.NDArray[np.int64]]]:
    """Encoded lists and their values by what they hold."""
    random = np.random.default_rng(seed)
    draws = {
        "1 byte": (random.integers(0, 128, VALUES), LIST),
        "tokens, Zipf, 1-3 bytes": (zipf(random, VALUES), LIST),
        "tokens, uniform, 2-3 bytes": (random.integers(128, VOCABULARY, VALUES), LIST),
        "hashes, 5 bytes": (random.integers(1 << 28, 1 << 32, VALUES), LIST),
        "mixed, 1-9 bytes": (_mixed(random), LIST),
        "negative, 10 bytes": (random.integers(-(1 << 63), 0, VALUES), LIST),
        "26 a list, 1-3 bytes": (random.integers(0, 100_000, VALUES // 26 * 26), 26),
        "1 a list, 1-3 bytes": (random.integers(0, 100_000, VALUES), 1),
    }
    return {
        name: (encoded(values.reshape(-1, each)), values) for name, (values, each) in draws.items()
    }


def zipf(random: np.random.Generator, count: int, ids: int = VOCABULARY) -> npt.NDArray[np.int64]:
    """Ids of which each is drawn as often as its rank's inverse says, as words are."""
    shares = np.cumsum(1 / np.arange(1, ids + 1))
    drawn: npt.NDArray[np.int64] = np.searchsorted(shares, random.random(count) * shares[-1])
    return drawn


def _mixed(random: np.random.Generator) -> npt.NDArray[np.int64]:
    return (1 << 62) >> random.integers(0, 63, VALUES)


def encoded(rows: npt.NDArray[np.int64]) -> Lists:
    """Each row as a packed list."""
    packed = [b"".join(map(_varint, row)) for row in rows.tolist()]
    sizes = np.fromiter(map(len, packed), np.int64, len(packed))
    return Lists(np.frombuffer(b"".join(packed), np.uint8), np.concatenate([[0], np.cumsum(sizes)]))


def _varint(value: int) -> bytes:
    return bytes(_groups(value & (1 << 64) - 1))


def _groups(value: int) -> Iterable[int]:
    """Seven bits a byte, the lowest first."""
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
