"""Conversion of Python, NumPy and tensor values to ``Feature`` messages, or to their wire format.

Source of the wire format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.errors import WrongFeatureType
from streamrec.kernel.messages import MESSAGES
from streamrec.masking import type_of
from streamrec.values.columns import BytesColumn, Ragged, cut

FIRST = b"\x0a"
"""The tag of field 1 with bytes or a message: the field's number times 8, plus 2."""
SECOND = b"\x12"
"""The tag of field 2."""


def frame_bytes(octets: bytes) -> bytes:
    """Prefix bytes with their length as a varint."""
    return varint(len(octets)) + octets


def varint(value: int) -> bytes:
    """Encode an integer from 0 up as a varint."""
    # Seven bits a byte, the lowest first; the top bit says that more bytes follow.
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


EXACT = 1 << 24
"""Up to this one, float32 holds each whole number."""
ONE = (str, bytes, bytearray, memoryview, int, float, Enum)
"""The types of single values; strings and bytes are not sequences of values here."""


def is_message(value: Any, kind: Any) -> bool:
    """Return whether a value is a message of this kind, from this package or from TensorFlow."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    return bool(getattr(descriptor, "full_name", None) == kind.DESCRIPTOR.full_name)


def as_array(value: Any) -> npt.NDArray[Any]:
    """Return the array that a value gives through ``__array__``.

    Raises:
        WrongFeatureType: It is a tensor of a kind that NumPy does not have.
    """
    if _is_torchs(value):  # which refuses with gradients, and on other devices
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError) as error:
        raise WrongFeatureType(
            f"the tensor does not become an array of NumPy ({error}); convert it before, as with "
            "float() or to_dense()"
        ) from None
    except ValueError:  # TensorFlow's scalars of bfloat16 give NumPy's scalars there
        if not hasattr(value, "numpy"):
            raise
        return np.asarray(value.numpy())


def _is_torchs(value: Any) -> bool:
    """Return whether a value is a tensor of torch, which need not be imported."""
    return hasattr(value, "__array__") and hasattr(value, "detach")


MISSING = "a value is missing in it; fill it, or leave the feature out of such records"


def missing_row(value: Any) -> int | None:
    """Return the first row of an array, a series or a column without a value; ``None``: all have.

    Otherwise NumPy would give what stands after a mask, or NaN, for which whole numbers become
    floats.
    """
    is_missing: Any = None
    if isinstance(value, np.ma.MaskedArray):
        is_missing = np.ma.getmaskarray(value)
    elif hasattr(value, "is_null") or hasattr(value, "isna"):  # Arrow and Polars; Pandas
        # In NumPy's floats Pandas takes NaN for missing, where it may be a value.
        is_nan = isinstance(getattr(value, "dtype", None), np.dtype) and value.dtype.kind == "f"
        ask = value.is_null if hasattr(value, "is_null") else value.isna
        is_missing = None if is_nan else np.asarray(ask())
    if is_missing is None or not is_missing.any():
        return None
    return int(np.argwhere(is_missing)[0][0]) if is_missing.ndim else 0


def as_feature(value: Any) -> Any:
    """Convert a value to a ``Feature`` message.

    Raises:
        TypeError, ValueError, OverflowError: The value has no representation.
    """
    if is_message(value, MESSAGES["Feature"]):
        # TensorFlow's class is of another descriptor pool: only its bytes can be taken.
        return MESSAGES["Feature"].FromString(value.SerializeToString())
    if isinstance(value, Ragged):
        first, last = int(value.row_splits[0]), int(value.row_splits[-1])
        return as_feature(cut(value.values, first, last))
    if isinstance(value, BytesColumn):
        return _from_list(BytesColumn(value.values, value.offsets).to_list())
    if isinstance(value, bytes):
        return MESSAGES["Feature"](bytes_list=MESSAGES["BytesList"](value=[value]))
    if hasattr(value, "__array__"):
        if missing_row(value) is not None:
            raise ValueError(MISSING)
        array = as_array(value).ravel()
        return _from_list(array.tolist()) if array.dtype == object else _from_array(array)
    if isinstance(value, ONE):
        return _from_list([value])
    if isinstance(value, Sequence):
        return _from_list(_flatten(value))
    raise _no_value(value)


def _no_value(value: Any) -> TypeError:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return TypeError(f"{value!r} is not a value; leave the feature out where it has no value")
    if hasattr(value, "isoformat"):
        return TypeError(
            "a feature has no type for times; give a number, as by timestamp() or total_seconds(), "
            "or a text, as by isoformat()"
        )
    if isinstance(value, list | tuple | np.ndarray):
        return TypeError(
            "its lists have unequal lengths, which a feature does not keep; write one feature of "
            "all values and one of the lengths, or use encode_sequence_example"
        )
    return TypeError(
        f"{type_of(value)} is not a value of a feature; give numbers, strings or bytes"
    )


def _flatten(values: Sequence[Any]) -> list[Any]:
    values = [as_array(value) if _is_torchs(value) else value for value in values]
    if not any(isinstance(value, list | tuple | np.ndarray) for value in values):
        return values
    # As objects: NumPy's own strings would lose trailing zero bytes. It refuses uneven nesting.
    flat: list[Any] = np.array(values, object).ravel().tolist()
    return flat


def _from_array(array: npt.NDArray[Any]) -> Any:
    if array.dtype.kind in "STU":
        return _from_list(array.tolist())
    if is_integers(array.dtype):
        return _from_ints(array)
    if is_floats(array.dtype):
        return _from_floats(array)
    raise TypeError(
        f"an array of {array.dtype} holds neither integers, floats nor strings; convert it, as by "
        "astype('int64')"
    )


def is_integers(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is of integers, with bools and the small ones of ``ml_dtypes``."""
    # To NumPy the dtypes of ml_dtypes are of kind V; casts tell what they hold.
    return dtype.kind in "biu" or (dtype.kind == "V" and np.can_cast(dtype, np.int64))


def is_floats(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is of floats, with bfloat16 and float8 of ``ml_dtypes``."""
    return dtype.kind == "f" or (dtype.kind == "V" and np.can_cast(dtype, np.float32))


def _from_list(values: list[Any]) -> Any:
    values = [_plain(value) for value in values]
    kinds = {_kind(value) for value in values}
    if not kinds:
        return MESSAGES["Feature"]()
    if kinds == {bytes}:
        return MESSAGES["Feature"](
            bytes_list=MESSAGES["BytesList"](value=[_octets(value) for value in values])
        )
    if bytes in kinds:
        raise TypeError("a list mixes strings and numbers; give values of one type")
    if float not in kinds:
        return _from_ints(values)
    for value in values:
        if isinstance(value, int) and abs(value) > EXACT and int(np.float32(value)) != value:
            raise OverflowError(
                f"{value} stands beside a float, and would lose digits as float32; give whole "
                "numbers and floats as two features"
            )
    return _from_floats(np.array(values, np.float64))


def _plain(value: Any) -> Any:
    """Convert an ``Enum`` or an array's scalar to a Python value."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "__array__"):
        array = as_array(value)
        return array.item() if array.ndim == 0 else array
    return value


def _kind(value: Any) -> type:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return bytes
    if isinstance(value, int):
        return int
    if isinstance(value, float):
        return float
    raise _no_value(value)


def _octets(value: str | bytes | bytearray | memoryview) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _from_ints(values: Sequence[int] | npt.NDArray[Any]) -> Any:
    array = np.asarray(values)
    if not is_integers(array.dtype):  # Python's integers beyond NumPy's become objects or floats
        raise OverflowError(_NO_INT64)
    return MESSAGES["Feature"](int64_list=MESSAGES["Int64List"](value=as_int64(array).tolist()))


_NO_INT64 = "an integer is beyond the range of int64; store it as bytes or as floats"


def as_int64(integers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Convert integers to int64, as an Example holds them.

    Raises:
        OverflowError: An integer is beyond the range of int64.
    """
    if integers.dtype == np.uint64 and integers.max(initial=0) > np.iinfo(np.int64).max:
        raise OverflowError(_NO_INT64)
    return integers.astype(np.int64, copy=False)


def _from_floats(values: npt.NDArray[Any]) -> Any:
    octets = as_float32(values).tobytes()
    if not octets:
        return MESSAGES["Feature"](float_list=MESSAGES["FloatList"]())
    # Parsed from bytes, since some NaNs would change on the way through Python's floats.
    packed = FIRST + varint(len(octets)) + octets
    return MESSAGES["Feature"](float_list=MESSAGES["FloatList"].FromString(packed))


def as_float32(floats: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Round floats to little-endian float32, as an Example holds them.

    Raises:
        OverflowError: A finite number is beyond the range of float32.
    """
    # What becomes infinite is told below, as an error with advice instead of a warning.
    with np.errstate(over="ignore"):
        rounded = floats.astype("<f4", copy=False)
    wider = floats.dtype.itemsize > rounded.dtype.itemsize
    if wider and np.any(np.isinf(rounded) & np.isfinite(floats)):
        raise OverflowError(
            "a number is beyond the range of float32; scale it, or store float64 values as bytes"
        )
    return rounded
