"""The division of records over splits by a hash of each record's key, and the splits' shards."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from streamrec.errors import ConfigError
from streamrec.plan.order.shard_names import ShardNames

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt


_HASHES = 1 << 64


@dataclass(frozen=True)
class Splits:
    """The splits of a dataset, such as train and test, and the fraction of the records in each.

    A key's hash is the number that the first eight bytes of its SHA-256 give, big-endian. The
    hashes are cut into one range for each split, in the order of the splits. So a record's split
    follows from its key and the fractions alone, whatever other records there are.
    """

    fractions: dict[str, Fraction]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``train=0.9,test=0.1``.

        Raises:
            ConfigError: It has another form, or the fractions do not add up to 1.
        """
        fractions: dict[str, Fraction] = {}
        for part in text.split(","):
            name, _, fraction = (piece.strip() for piece in part.partition("="))
            try:
                value = Fraction(fraction)
            except (ValueError, ZeroDivisionError):
                # Refused below, with whatever else is wrong with the part.
                value = Fraction(0)
            if not name.replace("_", "").isalnum() or name in fractions or value <= 0:
                raise ConfigError(
                    f"--split: {part.strip()!r} must be a new name and a fraction above 0; give "
                    "them as in train=0.9,validation=0.05,test=0.05"
                )
            fractions[name] = value
        if sum(fractions.values()) != 1:
            total = float(sum(fractions.values()))
            raise ConfigError(f"--split: the fractions add up to {total:g}; make it 1")
        return cls(fractions)

    @property
    def names(self) -> list[str]:
        """The splits' names, in their order."""
        return list(self.fractions)

    def to_dict(self) -> dict[str, str]:
        """Return the fractions as plain data."""
        return {name: str(fraction) for name, fraction in self.fractions.items()}

    def of(self, keys: Iterable[bytes | memoryview]) -> npt.NDArray[np.uint8]:
        """Return the number of each key's split."""
        ends, end = [], Fraction(0)
        for fraction in self.fractions.values():
            end += fraction
            # Exact: a last end below 2^64 would leave the highest hashes without a split.
            ends.append(int(end * _HASHES))
        return np.array([bisect_right(ends, hash_of(key)) for key in keys], np.uint8)


def hash_of(key: bytes | memoryview) -> int:
    """Return a key's hash, from 0 to 2**64 - 1."""
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")


class SplitShards(NamedTuple):
    """The shards of one split."""

    name: str | None
    """``None``: the dataset has no splits."""
    template: str
    """As for ``ShardedWriter``."""
    shards: int | None


def split_shards(
    template: str, splits: Splits | None, shards: int | None, tasks: int
) -> list[SplitShards]:
    """Return the shards of each split, or of the one dataset.

    Args:
        template: The shards' template; or a directory, with a slash at the end. A split's name is
            put after the template's stem.
        splits: The splits; ``None``: there are none.
        shards: The number of shards of all splits together; ``None``: by size. Each split has its
            fraction of them, and one for each task at least.
        tasks: The number of tasks that write them.

    Raises:
        ConfigError: The template gives the shards no name.
    """
    if splits is None:
        whole = template + ("data.tfrecord" if template.endswith("/") else "")
        ShardNames.parse(whole)
        return [SplitShards(None, whole, shards)]
    return [
        SplitShards(
            name,
            _template_of(template, name),
            None if shards is None else max(tasks, round(shards * fraction)),
        )
        for name, fraction in splits.fractions.items()
    ]


def _template_of(template: str, split: str) -> str:
    if template.endswith("/"):
        return f"{template}{split}.tfrecord"
    names = ShardNames.parse(template)
    return f"{names.directory}{names.stem}-{split}{names.suffix}"
