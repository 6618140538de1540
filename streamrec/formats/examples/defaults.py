"""The normal form of features' names, of specs' shapes and default values, and of partitions."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.examples.coerce import as_float32
from streamrec.formats.examples.dtypes import HELD_AS, Overflow, narrow, numpy_dtype
from streamrec.kernel.contract import LARGEST_MESSAGE, DataType


@dataclass(frozen=True)
class _KeyPartition:
    key: str

    def __post_init__(self) -> None:
        check_key("a partition's key", self.key)


class RowSplits(_KeyPartition):
    """Row ``i`` is the values from ``key[i]`` to ``key[i + 1]``; the first split is 0."""


class RowLengths(_KeyPartition):
    """Row ``i`` has ``key[i]`` values."""


class RowStarts(_KeyPartition):
    """Row ``i`` begins at value ``key[i]``; the first at 0."""


class RowLimits(_KeyPartition):
    """Row ``i`` ends before value ``key[i]``; the last with the values."""


class ValueRowIds(_KeyPartition):
    """Value ``i`` belongs to row ``key[i]``; the rows go up."""


@dataclass(frozen=True)
class UniformRowLength:
    """Every row has so many values."""

    length: Any

    def __post_init__(self) -> None:
        # To Python a bool is an int.
        is_number = isinstance(self.length, Integral) and not isinstance(self.length, bool)
        if not is_number or not 1 <= self.length <= LARGEST_MESSAGE:
            raise ConfigError(
                f"a uniform row length must be a number from 1 to {LARGEST_MESSAGE}, "
                f"not {self.length!r}"
            )
        object.__setattr__(self, "length", int(self.length))  # also of NumPy


Partition: TypeAlias = (
    RowSplits | RowLengths | RowStarts | RowLimits | ValueRowIds | UniformRowLength
)

PARTITIONS: dict[str, Any] = {
    "row_splits": RowSplits,
    "row_lengths": RowLengths,
    "row_starts": RowStarts,
    "row_limits": RowLimits,
    "value_rowids": ValueRowIds,
    "uniform_row_length": UniformRowLength,
}
"""The classes of partitions by their names in the plain form."""


def check_key(what: str, key: Any) -> None:
    """Refuse a value that is not the name of a feature.

    Raises:
        ConfigError: It is empty, no str, or one that UTF-8 cannot hold.
    """
    if not key or not is_text(key):
        raise ConfigError(f"{what} must be the name of a feature, not {key!r}")


def check_optional_key(what: str, key: Any) -> None:
    """Refuse what is neither ``None`` nor the name of a feature.

    Raises:
        ConfigError: As of :func:`check_key`.
    """
    if key is not None:
        check_key(what, key)


def one_key(key: Any, value_key: Any) -> str | None:
    """Return the feature that two arguments of the same meaning name.

    Raises:
        ConfigError: Both name one, or one is not the name of a feature.
    """
    check_optional_key("key", key)
    check_optional_key("value_key", value_key)
    if key is not None and value_key is not None and key != value_key:
        raise ConfigError(
            f"key={key!r} and value_key={value_key!r} both name the feature of the values; leave "
            "one of them out"
        )
    return key if value_key is None else value_key  # type: ignore[no-any-return]


_MOST = 2**63 - 1
_MOST_DIMENSIONS = 30
"""NumPy 1 allows 32, of which the rows of a batch and the items of a row take one each."""


def normal_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of sizes, if a record can hold so many values.

    Args:
        shape: A sequence of sizes, or one size.

    Raises:
        ConfigError: A size is not a number from 0 up, or there are too many dimensions or values.
    """
    sizes = normal_sizes(shape)
    if len(sizes) > _MOST_DIMENSIONS:
        raise ConfigError(
            f"shape has {len(sizes)} dimensions, but an array has at most {_MOST_DIMENSIONS}; "
            "leave some out"
        )
    # A size of 0 counts as 1 here: NumPy refuses other sizes that are too large even beside a 0.
    if math.prod(size or 1 for size in sizes) > LARGEST_MESSAGE:
        raise ConfigError(
            f"shape {sizes} takes more values than the longest record holds, which has "
            f"{LARGEST_MESSAGE} bytes; correct the sizes"
        )
    return sizes


def normal_sizes(shape: Any) -> tuple[int, ...]:
    """Return the sizes of dimensions as a tuple of ints, each within int64.

    Args:
        shape: A sequence of sizes, or one size.

    Raises:
        ConfigError: A size is not an integer from 0 up.
    """
    sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    for size in sizes:
        is_number = isinstance(size, int | np.integer) and not isinstance(size, bool)
        if not is_number or not 0 <= size <= _MOST:
            raise ConfigError(
                f"shape must be () or sizes from 0 up, not {shape!r}; where the number of values "
                "varies, use VarLenFeature"
            )
    return tuple(int(size) for size in sizes)


def normal_sides(shape: Any, rank: Any) -> str | tuple[str | int, ...]:
    """Return a shape that is in a record: the name of its feature, or names and sizes in a tuple.

    Args:
        shape: A feature's name, or a sequence of names and sizes.
        rank: The number of dimensions, which goes with one name.

    Raises:
        ConfigError: The shape names no feature, or a size or the rank is wrong.
    """
    sides = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else ()
    if not isinstance(shape, str) and not any(isinstance(side, str) for side in sides):
        raise ConfigError(
            f"shape must name the features that hold it, as 'shape' or ('height', 'width', 3), not "
            f"{shape!r}; where it is the same in all records, use FixedLenFeature"
        )
    if isinstance(shape, str) is (rank is None):
        raise ConfigError(
            f"rank is {rank!r} beside shape={shape!r}; give the number of dimensions where a "
            "single feature holds the shape, and leave rank out elsewhere"
        )
    if isinstance(shape, str):
        _check_rank(rank)
        return shape
    _check_rank(len(sides))
    # The sizes are checked as a shape; names keep their places between them.
    sizes = iter(normal_shape([side for side in sides if not isinstance(side, str)]))
    return tuple(side if isinstance(side, str) else next(sizes) for side in sides)


def _check_rank(rank: Any) -> None:
    if type(rank) is not int or not 1 <= rank <= _MOST_DIMENSIONS:
        raise ConfigError(
            f"an array can have 1 to {_MOST_DIMENSIONS} dimensions, not {rank!r}; correct the rank"
        )


def normal_default(default: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a default as Python values: one value for shape ``()``, else a flat tuple of them.

    Args:
        default: A value, or a sequence or an array of them, or ``None`` for no default.
        dtype: The name of the feature's dtype.
        shape: The shape that the default fills.

    Raises:
        ConfigError: The number of values does not fit the shape, or a value the dtype.
    """
    if default is None:
        return None
    values = tuple(_value(value, dtype) for value in _flatten(default))
    _check_count(len(values), shape)
    return values if shape else values[0]


def normal_raw(default: Any, dtype: str, shape: tuple[int, ...]) -> bytes | None:
    """Return the default of a ``raw`` feature as its little-endian bytes.

    Raises:
        ConfigError: It has neither as many bytes nor as many numbers as the shape takes.
    """
    if default is None:
        return None
    kind = numpy_dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if is_text(default) or isinstance(default, bytes):
        data = default.encode() if isinstance(default, str) else bytes(default)
        if len(data) != size:
            raise ConfigError(
                f"default_value has {len(data)} bytes, but shape {shape} of {dtype} takes {size}; "
                "correct one of them"
            )
        return data
    values = _flatten(default)
    _check_count(len(values), shape)
    try:
        array = np.array(values, kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"default_value {default!r} is not of type {dtype} ({error}); correct it, or the dtype"
        ) from None
    return array.astype(kind.newbyteorder("<")).tobytes()


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a str that UTF-8 can hold, without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def feature_name(name: Any) -> str:
    """Return a feature's name, if it can be one.

    Raises:
        ConfigError: The name is not a str, or cannot be encoded as UTF-8.
    """
    if not isinstance(name, str):
        raise ConfigError(f"a feature's name must be a str, not {name!r}")
    if not is_text(name):
        raise ConfigError(f"a feature's name must be text that UTF-8 can hold, not {name!r}")
    return name


def _check_count(count: int, shape: tuple[int, ...]) -> None:
    if count != math.prod(shape):
        raise ConfigError(
            f"default_value holds {count} values, but shape {shape} takes {math.prod(shape)}; "
            "correct one of them"
        )


def _flatten(value: Any) -> list[Any]:
    if hasattr(value, "__array__"):
        # Python's values are the same whatever library gave them.
        value = np.asarray(value).tolist()
    if not isinstance(value, list | tuple):
        return [value]
    return [leaf for item in value for leaf in _flatten(item)]


def _value(value: Any, dtype: str) -> Any:
    """Convert one default value to the Python type of the dtype."""
    if dtype == "bytes":
        if is_text(value):
            return value.encode()
        if isinstance(value, bytes):
            return bytes(value)
    elif isinstance(value, int | float) and _fits(value, dtype):
        return _PYTHON_TYPES.get(numpy_dtype(dtype).kind, float)(value)
    raise ConfigError(f"default_value {value!r} is not of type {dtype}; correct it, or the dtype")


_PYTHON_TYPES: dict[str, type] = {"b": bool, "i": int, "u": int}


def _fits(value: float, dtype: str) -> bool:
    integers = HELD_AS[dtype] is DataType.INT64
    if integers and not isinstance(value, int):
        return False
    try:
        narrow(
            np.array([value], np.int64) if integers else as_float32(np.array([value], float)), dtype
        )
    except (Overflow, OverflowError):
        return False
    return True


def as_plain(value: Any) -> Any:
    """Return a default in JSON-able form: bytes as text if they are UTF-8, else as base64."""
    if isinstance(value, tuple):
        return [as_plain(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        # A table, so that no text of a default can be taken for it.
        return {"base64": base64.b64encode(value).decode()}


def from_plain(value: Any) -> Any:
    """Rebuild the default that :func:`as_plain` described.

    Raises:
        ValueError: A mapping holds no base64.
    """
    if isinstance(value, list | tuple):
        return [from_plain(item) for item in value]
    if isinstance(value, Mapping):
        # Without validation, foreign characters would be dropped in silence.
        return base64.b64decode(str(value.get("base64")), validate=True)
    return value
