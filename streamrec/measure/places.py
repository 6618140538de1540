"""Random places of ranges in a dataset's shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.stores.base import ObjectInfo


class Place(NamedTuple):
    """A range of one shard."""

    url: str
    start: int
    stop: int
    etag: str | None


class Places:
    """Ranges of one size, each equally likely, in the shards that are large enough.

    Args:
        shards: The shards; those of an unknown size are left out.
        size: Bytes of a range; where it is larger than all shards, that of the largest shard.
        seed: The seed of the choice.

    Raises:
        ConfigError: No shard has a known size and a byte.
    """

    def __init__(self, shards: Sequence[ObjectInfo], size: int, seed: int = 0) -> None:
        self.size = min(size, largest_of(shards))
        self._shards = [one for one in shards if (one.size or 0) >= self.size]
        self._ends = np.cumsum([(one.size or 0) // self.size for one in self._shards])
        self._random = np.random.default_rng(seed)

    def next(self) -> Place:
        """Return another place, at a multiple of the size."""
        number = int(self._random.integers(self._ends[-1]))
        index = int(np.searchsorted(self._ends, number, "right"))
        start = (number - (int(self._ends[index - 1]) if index else 0)) * self.size
        shard = self._shards[index]
        return Place(shard.url, start, start + self.size, shard.etag)


def largest_of(shards: Sequence[ObjectInfo]) -> int:
    """Return the size of the largest shard.

    Raises:
        ConfigError: No shard has a known size and a byte.
    """
    largest = max((one.size or 0 for one in shards), default=0)
    if not largest:
        raise ConfigError("all shards are empty, so nothing can be measured; name other shards")
    return largest
