"""The coordinates of lanes: those of one as a tuple, those of several as an array with fields."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

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
