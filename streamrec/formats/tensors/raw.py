"""``decode_raw``, which reads byte strings of numbers as arrays."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError, DataError
from streamrec.formats.tensors.tensor_types import as_tensor_type
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    import numpy.typing as npt


def decode_raw(
    data: Any,
    out_type: Any,
    shape: Any = None,
    little_endian: bool = True,
    fixed_length: int | None = None,
) -> npt.NDArray[Any]:
    """Read byte strings as the memory of arrays, as ``tf.io.decode_raw`` does.

    Args:
        data: ``bytes``; or a batch of them, all of one length: a ``BytesColumn``, a sequence,
            or an array of objects of any shape.
        out_type: The numbers' type: a dtype's name, a NumPy or Python type, or a ``tf.DType``. Of
            bools, every byte but 0 is true.
        shape: The shape of one string's numbers, of which one size may be -1; ``None`` is ``(n,)``.
        little_endian: The byte order in the strings.
        fixed_length: Bytes of every string: longer ones are cut, shorter ones filled with zeros.
            ``None``: they must have one length as they are.

    Returns:
        An array ``[*batch, *shape]`` in memory of its own, writable; ``batch`` is ``()`` for
        ``bytes``.

    Raises:
        ConfigError: An argument is wrong.
        DataError: The strings differ in length, or the length does not fit the type or the shape;
            ``record`` is the string's number.
    """
    kind = as_tensor_type(out_type)
    if kind.name == "string":
        raise ConfigError("out_type must be a type of numbers, as strings have no raw form")
    column, batch = _strings(data)
    octets, size = _one_length(column, math.prod(batch), fixed_length)
    item = _item_shape(shape, size, kind.dtype, bool(len(column.offsets) - 1))
    array = np.empty((*batch, *item), kind.dtype)
    memory = array.reshape(-1).view(np.uint8)
    memory[:] = octets
    if kind.name == "bool":
        np.minimum(memory, 1, out=memory)
    if little_endian != (sys.byteorder == "little"):
        part = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
        memory.view(f"u{part}").byteswap(inplace=True)
    return array


def _strings(data: Any) -> tuple[BytesColumn, tuple[int, ...]]:
    """Return all strings in one column, and the shape of the batch."""
    if isinstance(data, BytesColumn):
        return data, (len(data), *data.item_shape)
    if not isinstance(data, bytes | bytearray | memoryview) and hasattr(data, "__array__"):
        array = np.asarray(data, object)
        return _joined(array.ravel().tolist()), array.shape
    if isinstance(data, bytes | bytearray | memoryview):
        return _joined([data]), ()
    if isinstance(data, Sequence) and not isinstance(data, str):
        return _joined(data), (len(data),)
    raise ConfigError(f"data must be bytes or a batch of them, not {type(data).__name__}")


def _joined(strings: Sequence[Any]) -> BytesColumn:
    for string in strings:
        if not isinstance(string, bytes | bytearray | memoryview):
            raise ConfigError(
                f"data must be bytes or a batch of them, not of {type(string).__name__}"
            )
    return BytesColumn.of([memoryview(string).cast("B") for string in strings])


def _one_length(
    column: BytesColumn, rows: int, fixed_length: int | None
) -> tuple[npt.NDArray[np.uint8], int]:
    """Return the strings end to end, all of one length, and that length in bytes."""
    if fixed_length is not None:
        return _cut_or_filled(column, fixed_length), fixed_length
    lengths = np.diff(column.offsets)
    size = int(lengths[0]) if rows else 0
    other = np.flatnonzero(lengths != size)
    if len(other):
        raise DataError(
            f"the string has {lengths[other[0]]} bytes, but the first one has {size}; "
            "give fixed_length, or decode them one by one",
            record=int(other[0]),
        )
    return column.values[column.offsets[0] : column.offsets[-1]], size


def _cut_or_filled(column: BytesColumn, fixed_length: int) -> npt.NDArray[np.uint8]:
    if fixed_length <= 0:
        raise ConfigError(f"fixed_length must be a number of bytes from 1 up, not {fixed_length}")
    # NumPy's own strings of a length: it cuts, or fills up with zeros.
    strings = BytesColumn(column.values, column.offsets).to_list()
    return np.array(strings, f"S{fixed_length}").view(np.uint8)


def _item_shape(shape: Any, size: int, dtype: np.dtype[Any], known: bool) -> tuple[int, ...]:
    """Return the shape of one string's numbers; where there is no string, any length fits."""
    if size % dtype.itemsize:
        raise DataError(
            f"the string's {size} bytes are not a whole number of {dtype} values, which have "
            f"{dtype.itemsize} each; correct out_type, or give fixed_length"
        )
    count = size // dtype.itemsize
    sizes = _sizes(shape)
    given = math.prod(side for side in sizes if side != -1)
    inferred = count // given if given else 0
    sizes = tuple(inferred if side == -1 else side for side in sizes)
    if known and math.prod(sizes) != count:
        raise DataError(
            f"the string holds {count} numbers, which shape {shape!r} does not take; correct the "
            "shape"
        )
    return sizes


def _sizes(shape: Any) -> tuple[int, ...]:
    if shape is None:
        return (-1,)
    try:
        sizes = tuple(index(size) for size in (shape if isinstance(shape, Iterable) else [shape]))
    except TypeError:
        sizes = (-2,)
    if min(sizes, default=0) < -1 or sizes.count(-1) > 1:
        raise ConfigError(f"shape must be sizes from 0 up, of which one may be -1, not {shape!r}")
    return sizes
