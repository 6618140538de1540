"""The dtypes of features: those that an Example holds, and those its values can be narrowed to."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError
from streamrec.kernel.contract import DataType
from streamrec.suggestions import did_you_mean
from streamrec.values.aligned import empty

if TYPE_CHECKING:
    import numpy.typing as npt

_INTEGERS = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "bfloat16", "float64")
HELD_AS = {
    "int64": DataType.INT64,
    "float32": DataType.FLOAT32,
    "bytes": DataType.BYTES,
    **dict.fromkeys(_INTEGERS, DataType.INT64),
    **dict.fromkeys(_FLOATS, DataType.FLOAT32),
}
"""The type of the Example's list that holds the values of each dtype."""
RAW = (*(name for name in HELD_AS if name != "bytes"), "complex64", "complex128")
"""The dtypes that fixed-size bytes can hold."""

_BY_PYTHON_TYPE: dict[Any, str] = {
    int: "int64",
    float: "float32",
    bytes: "bytes",
    str: "bytes",
    object: "bytes",
}
_ALSO_BYTES = ("string", "str", "object")
_MEANT = {"float": "float32", "int": "int64", "double": "float64"}
"""The dtypes that names without a size most likely mean. NumPy's ``float`` would be float64."""


_USUAL = {
    "bytes": np.dtype(object),
    "string": np.dtype(object),
    **{name: np.dtype(name) for name in HELD_AS if name not in ("bytes", "bfloat16")},
}


def dtype_name(dtype: Any, *, raw: bool = False) -> str:
    """Return the name of the dtype that a spec was given.

    Args:
        dtype: A name, a NumPy or Python type, a ``tf.DType`` or a ``torch.dtype``.
        raw: True for a feature of fixed-size bytes, which can have more dtypes.

    Raises:
        ConfigError: No feature can have the dtype, or it needs a package that is not installed.
    """
    name = _name_of(dtype)
    # NumPy's names of strings hold their bits, as bytes64 and str320.
    if name in _ALSO_BYTES or name.startswith(("bytes", "str")):
        name = "bytes"
    names = RAW if raw else tuple(HELD_AS)
    if name in names:
        # For its error: a missing package should not wait for the first batch.
        numpy_dtype(name)
        return name
    hint = did_you_mean(name, names, f"there are {', '.join(names)}", meant=_MEANT.get(name))
    holds = "bytes decode to numbers" if raw else "an Example holds int64, float32 and bytes"
    raise ConfigError(f"no feature can have the dtype {name!r}, as {holds}; {hint}")


def _name_of(dtype: Any) -> str:
    if isinstance(dtype, type) and dtype in _BY_PYTHON_TYPE:
        return _BY_PYTHON_TYPE[dtype]
    # A tf.DType, by its class: of types that NumPy does not have, the attribute itself fails.
    if hasattr(type(dtype), "as_numpy_dtype"):
        return str(dtype.name)
    if isinstance(dtype, str) or dtype is None:  # NumPy takes None for float64
        return str(dtype)
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        return str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    # NumPy takes any class, such as list, for that of objects.
    is_other = name == "object" and isinstance(dtype, type) and dtype is not np.object_
    return dtype.__name__ if is_other else name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of this name; for strings it is object.

    Raises:
        ConfigError: The dtype is one of ``ml_dtypes``, which is not installed.
    """
    if name in _USUAL:
        return _USUAL[name]
    if not name.startswith(("bfloat", "float8")):
        return np.dtype(name)
    try:
        dtype: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
    except (ImportError, AttributeError):
        raise ConfigError(
            f"dtype {name!r} needs the package ml_dtypes, or a newer version of it; install it by "
            "pip install -U ml_dtypes, or use 'float16' or 'float32'"
        ) from None
    return dtype


class Overflow(Exception):
    """A value is beyond the range of its dtype.

    Args:
        index: The value's place among all values.
        value: The value.
    """

    def __init__(self, index: int, value: Any) -> None:
        super().__init__(index, value)
        self.index = index
        self.value = value


@cache
def range_of(name: str) -> tuple[Any, Any]:
    """Return the least and the greatest finite number of a dtype."""
    if name == "bool":
        return 0, 1
    if HELD_AS[name] is DataType.INT64:
        integers = np.iinfo(name)
        return int(integers.min), int(integers.max)
    greatest = _GREATEST_BFLOAT16 if name == "bfloat16" else float(np.finfo(name).max)
    return -greatest, greatest


# Seven bits of fraction, all set, at float32's exponent; np.finfo lacks this dtype.
_GREATEST_BFLOAT16 = float.fromhex("0x1.fep127")


def narrow(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Convert the numbers of a list to another dtype.

    Args:
        values: int64 or float32, as the list holds them.
        name: The dtype. Floats are rounded to the nearest.

    Raises:
        Overflow: An integer is beyond the dtype's range, or a finite float would become infinite.
    """
    dtype = numpy_dtype(name)
    if values.dtype == dtype:
        return values
    if values.dtype == np.int64:
        return _copy(_narrow_integers(values, name), dtype)
    # What overflows is told below, with its place.
    with np.errstate(over="ignore"):
        narrowed = _copy(values, dtype)
    # float64 holds them all; of the others, a wrong one can only have become infinite.
    if dtype.itemsize < values.dtype.itemsize and not _all_finite(narrowed):
        _refuse(values, np.isfinite(values) & ~np.isfinite(narrowed))
    return narrowed


def _all_finite(values: npt.NDArray[Any]) -> bool:
    # values.all() and values.min() take longer for their checks than for a small batch.
    return bool(np.logical_and.reduce(np.isfinite(values), axis=None))


def _copy(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    # NumPy's own conversion does not give memory that begins at a multiple of 64.
    copy = empty(values.shape, dtype)
    copy[...] = values
    return copy


def _narrow_integers(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    least, greatest = range_of(name)
    if values.size and (
        np.minimum.reduce(values, axis=None) < least
        or np.maximum.reduce(values, axis=None) > greatest
    ):
        # Compared as Python integers, since uint64's greatest is beyond int64.
        _refuse(values, (values < least) | (values > min(greatest, 2**63 - 1)))
    return values


def _refuse(values: npt.NDArray[Any], wrong: npt.NDArray[np.bool_]) -> None:
    if wrong.any():
        index = int(wrong.reshape(-1).argmax())
        raise Overflow(index, values.reshape(-1)[index].item())
