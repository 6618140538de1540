"""Arrays from the front of a received payload, and the layout of those that come in each batch.

What is received comes from outside: every size is compared with the payload before an array is
made.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import ConfigError, RemoteProtocolError
from streamrec.formats.examples.dtypes import numpy_dtype
from streamrec.values.message_schema import Field, Messages
from streamrec.wire.frame import ALIGNMENT

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.values.columns import Column


DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""The dtypes that travel; bfloat16, of another package, does too where that is installed."""

VIEWED = {dtype for dtype in DTYPES.values() if dtype.kind in "biuf" and sys.byteorder == "little"}
"""The dtypes whose bytes travel as they are in memory, and that a memoryview knows."""

PROTO = Messages(
    "streamrec.feeder",
    {
        "Array": [Field("string", "dtype", 1), Field("repeated uint64", "shape", 2)],
        "Bytes": [
            Field("uint64", "size", 1),
            Field("uint64", "count", 2),
            Field("repeated uint64", "item_shape", 3),
        ],
        "Values": [
            Field("Array", "array", 1, "kind"),
            Field("Bytes", "bytes", 2, "kind"),
            Field("Ragged", "ragged", 3, "kind"),  # as the values of another Ragged alone
            Field("Arrays", "arrays", 4, "kind"),
        ],
        "Arrays": [
            Field("string", "dtype", 1),
            Field("uint64", "size", 2),
            Field("uint64", "count", 3),
            Field("uint64", "dimensions", 4),
        ],
        "Ragged": [Field("Values", "values", 1)],
        "Sparse": [
            Field("Values", "values", 1),
            Field("uint64", "count", 2),
            Field("repeated uint64", "dense_shape", 3),
        ],
        "Column": [
            Field("string", "name", 1),
            Field("Values", "values", 2, "kind"),
            Field("Ragged", "ragged", 3, "kind"),
            Field("Sparse", "sparse", 4, "kind"),
        ],
        "Position": [
            Field("uint64", "step", 1),
            Field("uint64", "run_epoch", 2),
            Field("uint64", "epoch", 3),
            Field("uint64", "skip", 4),
            Field("repeated uint64", "since", 5),
            Field("uint64", "rows", 6),
            Field("uint64", "origin", 7),
            Field("string", "ends", 8),
        ],
        "Batch": [
            Field("uint64", "rows", 1),
            Field("uint64", "epoch", 2),
            Field("Position", "position", 3),
            Field("bool", "mask", 4),
            Field("repeated Column", "columns", 5),
            Field("repeated string", "component_names", 6),
            Field("repeated uint64", "component_shards", 7),
        ],
    },
)

# The limit of NumPy before version 2, which takes 64.
MOST_DIMENSIONS = 32


class PayloadLayout(NamedTuple):
    """The arrays of a batch's columns."""

    arrays: list[tuple[str, np.dtype[Any], tuple[int, ...], int, int]]
    """Name, dtype, shape, the byte at which it begins, from the first on, and bytes of each."""
    size: int
    """Bytes of all of them where they are end to end."""


@lru_cache(maxsize=16)
def layout(description: bytes) -> PayloadLayout | None:
    """Return the arrays that a batch's metadata describes.

    It is ``None`` unless all columns are arrays that need no look at their values.
    """
    metadata = PROTO["Batch"].FromString(description)
    columns, end = {}, 0
    for column in metadata.columns:
        array = column.values.array
        dtype, shape = DTYPES.get(array.dtype), tuple(map(int, array.shape))
        # Values of a bool must be looked at, as not every byte is one.
        if dtype not in VIEWED or dtype.kind == "b" or not 1 <= len(shape) <= MOST_DIMENSIONS:
            return None
        size, begin = math.prod(shape) * dtype.itemsize, end + -end % ALIGNMENT
        if shape[0] != metadata.rows or not size:
            return None
        columns[column.name] = column.name, dtype, shape, begin, size
        end = begin + size
    if len(columns) != len(metadata.columns):  # a name stands there twice
        return None
    return PayloadLayout(list(columns.values()), end)


def check(valid: bool, message: str, *values: object) -> None:
    """Refuse what is not valid; the values are put into the message's braces."""
    if not valid:
        reason = message.format(*values)
        raise RemoteProtocolError(f"a batch does not fit its description: {reason}")


class PayloadReader:
    """Arrays from the front of a payload; each is whole in one of its buffers.

    Args:
        payload: The buffers.
    """

    def __init__(self, payload: tuple[memoryview, ...]) -> None:
        self._rest = deque(payload)
        self._buffer = memoryview(b"")
        self._begin = 0

    @property
    def left(self) -> int:
        """The bytes that belong to no array so far."""
        return len(self._buffer) - self._begin + sum(map(len, self._rest))

    def array(self, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return the next array, in the machine's own byte order.

        Raises:
            RemoteProtocolError: It cannot be.
        """
        kind = _dtype(dtype)
        check(kind is not None, "there is no dtype {!r}", dtype)
        assert kind is not None
        check(len(shape) <= MOST_DIMENSIONS, "an array has {} dimensions", len(shape))
        size = math.prod(shape) * kind.itemsize
        if not size:
            # NumPy multiplies the sides that are not 0, and refuses an overflow.
            check(
                math.prod(side or 1 for side in shape) * kind.itemsize < 1 << 62,
                "an array has the shape {}",
                shape,
            )
            return np.empty(shape, kind)
        array = self.take(kind, shape, size)
        if kind == np.bool_:
            check(bool((array.view(np.uint8) <= 1).all()), "a bool is neither 0 nor 1")
        if sys.byteorder == "big":  # NumPy's computations want the machine's own order
            array.byteswap(inplace=True)
        return array

    def take(self, kind: np.dtype[Any], shape: tuple[int, ...], size: int) -> npt.NDArray[Any]:
        """Return the next array, which is not empty, as it is in memory."""
        begin = self._seek()
        check(size <= len(self._buffer) - begin, "an array of {} bytes is not there", size)
        self._begin = begin + size
        return np.ndarray(shape, kind, self._buffer, begin)

    def take_all(self, layout: PayloadLayout) -> dict[str, Column]:
        """Return the arrays of a layout, which are the next, by name."""
        first = self._seek()
        buffer = self._buffer
        if layout.size > len(buffer) - first:  # they are in several buffers, or not there
            return {
                name: self.take(kind, shape, size) for name, kind, shape, _, size in layout.arrays
            }
        self._begin = first + layout.size
        return {
            name: np.ndarray(shape, kind, buffer, first + begin)
            for name, kind, shape, begin, _ in layout.arrays
        }

    def _seek(self) -> int:
        """Go to the buffer in which the next array begins, and return where."""
        begin = self._begin + -self._begin % ALIGNMENT
        if begin >= len(self._buffer) and self._rest:
            self._buffer, self._begin = self._rest.popleft(), 0
            return 0
        return begin


def _dtype(name: str) -> np.dtype[Any] | None:
    """Return the dtype of this name; ``None`` if none travels under it."""
    if name != "bfloat16":
        return DTYPES.get(name)
    try:
        return numpy_dtype(name)
    except ConfigError as error:
        raise RemoteProtocolError(f"a batch cannot be received: {error}") from None
