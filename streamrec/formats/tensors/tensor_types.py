"""TensorFlow's data types: their numbers, NumPy's dtypes, and the message fields of their values.

Sources: tensorflow/core/framework/types.proto and tensor.proto.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.examples.dtypes import numpy_dtype
from streamrec.suggestions import did_you_mean


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
    return _BY_NAME.get("string" if dtype.kind in "OSTU" else dtype.name)


def name_of_number(number: int) -> str:
    """Return the name of the type with this number in ``types.proto``, for errors."""
    return _NAMES.get(number, f"number {number}")


def _name(out_type: Any) -> str:
    if hasattr(out_type, "as_numpy_dtype"):
        return str(out_type.name)
    if isinstance(out_type, type) and out_type in _PYTHON_TYPES:
        out_type = out_type.__name__
    if isinstance(out_type, str) and out_type in _BY_NAME | _ALIASES:
        return _ALIASES.get(out_type, out_type)
    try:
        dtype = np.dtype("" if out_type is None else out_type)  # None would be NumPy's default
    except TypeError:
        return str(out_type)
    return "string" if dtype.kind in "OSTU" else dtype.name
