"""TensorFlow's data types: their numbers, NumPy's dtypes, and the message fields of their values.

Sources: tensorflow/core/framework/types.proto and tensor.proto.

``decode_raw`` reads byte strings of such numbers as arrays.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import ConfigError, DataError
from streamrec.formats.examples.dtypes import numpy_dtype
from streamrec.suggestions import did_you_mean
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
        # NumPy's bools must be 0 or 1, and any other byte is true here.
        np.minimum(memory, 1, out=memory)
    if little_endian != (sys.byteorder == "little"):
        # A complex number is two floats, whose bytes are swapped apart.
        part = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
        memory.view(f"u{part}").byteswap(inplace=True)
    return array


def _strings(data: Any) -> tuple[BytesColumn, tuple[int, ...]]:
    """Return all strings in one column, and the shape of the batch."""
    if isinstance(data, BytesColumn):
        return data, (len(data), *data.item_shape)
    if not isinstance(data, bytes | bytearray | memoryview) and hasattr(data, "__array__"):
        array = np.asarray(data, object)
        return _join(array.ravel().tolist()), array.shape
    if isinstance(data, bytes | bytearray | memoryview):
        return _join([data]), ()
    if isinstance(data, Sequence) and not isinstance(data, str):
        return _join(data), (len(data),)
    raise ConfigError(f"data must be bytes or a batch of them, not {type(data).__name__}")


def _join(strings: Sequence[Any]) -> BytesColumn:
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
        # Not a size at all; the check below refuses it.
        sizes = (-2,)
    if min(sizes, default=0) < -1 or sizes.count(-1) > 1:
        raise ConfigError(f"shape must be sizes from 0 up, of which one may be -1, not {shape!r}")
    return sizes


class TensorType(NamedTuple):
    """A type of a tensor's values."""

    name: str
    """TensorFlow's name, which is NumPy's too, save for ``string``."""
    number: int
    """The type's number in ``types.proto``."""
    field: str
    """The field of a ``TensorProto`` that lists its values."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype; strings are objects.

        Raises:
            ConfigError: The dtype is one of ``ml_dtypes``, which is not installed.
        """
        return numpy_dtype(self.name)


_TYPES = (
    TensorType("float32", 1, "float_val"),
    TensorType("float64", 2, "double_val"),
    TensorType("int32", 3, "int_val"),
    TensorType("uint8", 4, "int_val"),
    TensorType("int16", 5, "int_val"),
    TensorType("int8", 6, "int_val"),
    TensorType("string", 7, "string_val"),
    TensorType("complex64", 8, "scomplex_val"),
    TensorType("int64", 9, "int64_val"),
    TensorType("bool", 10, "bool_val"),
    TensorType("bfloat16", 14, "half_val"),
    TensorType("uint16", 17, "int_val"),
    TensorType("complex128", 18, "dcomplex_val"),
    TensorType("float16", 19, "half_val"),
    TensorType("uint32", 22, "uint32_val"),
    TensorType("uint64", 23, "uint64_val"),
    TensorType("float8_e5m2", 24, "float8_val"),
    TensorType("float8_e4m3fn", 25, "float8_val"),
    TensorType("float8_e4m3fnuz", 26, "float8_val"),
    TensorType("float8_e4m3b11fnuz", 27, "float8_val"),
    TensorType("float8_e5m2fnuz", 28, "float8_val"),
)
_BY_NAME = {kind.name: kind for kind in _TYPES}
# Types whose values are not read; they have names for errors alone.
_NAMES = {kind.number: kind.name for kind in _TYPES} | {
    11: "qint8",
    12: "quint8",
    13: "qint32",
    15: "qint16",
    16: "quint16",
    20: "resource",
    21: "variant",
    29: "int4",
    30: "uint4",
    31: "int2",
    32: "uint2",
    33: "float4_e2m1fn",
}
# TensorFlow's meaning of ``float`` is not NumPy's.
_ALIASES = {"float": "float32", "bytes": "string", "str": "string", "object": "string"}
_PYTHON_TYPES = (bool, int, float, bytes, str, object)


def as_tensor_type(out_type: Any) -> TensorType:
    """Return the type that a caller names.

    Args:
        out_type: A dtype's name, a NumPy or Python type, or a ``tf.DType``. ``float`` is float32
            and ``int`` is int64; ``bytes``, ``str`` and ``object`` are strings.

    Raises:
        ConfigError: Tensors have no such type, or NumPy has none for it.
    """
    name = _name(out_type)
    if name in _BY_NAME:
        return _BY_NAME[name]
    hint = did_you_mean(name, _BY_NAME, "name one such as 'float32' or 'string'")
    raise ConfigError(f"out_type {name!r} is not a supported type of a tensor's values; {hint}")


def type_of_dtype(dtype: np.dtype[Any]) -> TensorType | None:
    """Return the type of an array's values; ``None`` where TensorFlow has none."""
    # T is the string of any width that NumPy 2 has.
    return _BY_NAME.get("string" if dtype.kind in "OSTU" else dtype.name)


def name_of_number(number: int) -> str:
    """Return the name of the type with this number in ``types.proto``, for errors."""
    return _NAMES.get(number, f"number {number}")


def _name(out_type: Any) -> str:
    # A tf.DType, known by its class's attribute, so that TensorFlow need not be imported.
    if hasattr(type(out_type), "as_numpy_dtype"):
        return str(out_type.name)
    if isinstance(out_type, type) and out_type in _PYTHON_TYPES:
        out_type = out_type.__name__
    if isinstance(out_type, str) and out_type in _BY_NAME | _ALIASES:
        return _ALIASES.get(out_type, out_type)
    try:
        dtype = np.dtype("" if out_type is None else out_type)  # None would be NumPy's default
    except TypeError:
        return str(out_type)
    # NumPy takes any class for that of objects, such as list.
    if isinstance(out_type, type) and dtype.kind == "O" and out_type is not np.object_:
        return out_type.__name__
    return "string" if dtype.kind in "OSTU" else dtype.name
