"""The division of records into splits, such as train and validation, by a key. Pure: no I/O.

A record's split depends on its key and on the fractions alone, so that it stays the same when
records are added, in any order and on any machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Self

import numpy as np

from streamrec.errors import ConfigError
from streamrec.plan.digests import digests
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from streamrec.values.columns import Bytes, Indices

__all__ = ["Splits", "text_keys"]

PLACE = "{split}"
"""The place of the split's name in a template."""
ROUNDING = 1e-6
"""The most by which the fractions' sum may differ from 1."""


class Splits:
    """Splits with their names and fractions.

    The first 8 bytes of a key's BLAKE2b hash are a number below 2**64. The first split has the
    numbers from 0 up to its fraction of 2**64, the next one those that follow.

    Args:
        fractions: The fraction of each split by name; their sum is 1.

    Raises:
        ConfigError: A fraction or a name is wrong.
    """

    def __init__(self, fractions: Mapping[str, float]) -> None:
        self.fractions = dict(fractions)
        self.names = tuple(fractions)
        """The splits' names, in the order given."""
        if wrong := [name for name in self.names if not re.fullmatch(r"[\w.-]+", name)]:
            raise ConfigError(
                f"a split has the name {wrong[0]!r}; give one of letters, digits, - and _"
            )
        parts = list(fractions.values())
        if not all(0 < part <= 1 for part in parts) or abs(sum(parts) - 1) > ROUNDING:
            raise ConfigError(
                f"the splits' fractions are {', '.join(map(str, parts))}; give positive ones whose "
                "sum is 1, as in train=0.9,validation=0.1"
            )
        ends = np.cumsum(parts)[:-1]
        self._ends = np.array([min(int(end * 2.0**64), 2**64 - 1) for end in ends], np.uint64)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``train=0.9,validation=0.1``.

        Raises:
            ConfigError: It has another form.
        """
        fractions: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.strip().partition("=")
            try:
                fraction = float(number)
            except ValueError:
                raise ConfigError(
                    f"the split {part!r} has no fraction; give NAME=FRACTION, as in "
                    "train=0.9,validation=0.1"
                ) from None
            if name in fractions:
                raise ConfigError(f"the split {name!r} is named twice; give each a name of its own")
            fractions[name] = fraction
        return cls(fractions)

    def of(self, keys: BytesColumn | Iterable[Bytes]) -> Indices:
        """Return the number of each key's split, as in ``names``."""
        return np.searchsorted(self._ends, digests(keys, 1)[:, 0], "right")

    def templates(self, template: str) -> dict[str, str]:
        """Return the template of each split's shards by its name.

        Args:
            template: One with ``{split}`` for the name, such as ``gs://bucket/{split}.tfrecord``.

        Raises:
            ConfigError: It has none.
        """
        if PLACE not in template:
            raise ConfigError(
                f"{template!r} names one dataset, but there are splits; put {PLACE} where the "
                f"name of each belongs, as in 'pets-{PLACE}.tfrecord'"
            )
        return {name: template.replace(PLACE, name) for name in self.names}


def text_keys(name: str, column: BytesColumn | npt.NDArray[np.generic]) -> BytesColumn:
    """Return a feature's values, one a record, as keys: bytes as they are, integers as decimals.

    Raises:
        ConfigError: They are of another type.
    """
    if isinstance(column, BytesColumn):
        return column
    if column.dtype.kind not in "iu":
        raise ConfigError(
            f"feature {name} is {column.dtype}, and divides no records; name one of bytes or "
            "integers"
        )
    return BytesColumn.of([b"%d" % value for value in column.tolist()])
