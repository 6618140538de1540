"""``tf.train.Example``: its protobuf messages, and encoding from plain values.

The messages are wire-compatible with TensorFlow's and live in a descriptor pool of their own, so
both can be used in one process. Sources: tensorflow/core/example/feature.proto, example.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.errors import WrongFeatureType
from streamrec.kernel.messages import MESSAGES

__all__ = [
    "BytesList",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
    "encode_example",
]

BytesList: Any = MESSAGES["BytesList"]
Example: Any = MESSAGES["Example"]
Feature: Any = MESSAGES["Feature"]
FeatureList: Any = MESSAGES["FeatureList"]
FeatureLists: Any = MESSAGES["FeatureLists"]
Features: Any = MESSAGES["Features"]
FloatList: Any = MESSAGES["FloatList"]
Int64List: Any = MESSAGES["Int64List"]
SequenceExample: Any = MESSAGES["SequenceExample"]


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Serialize one ``tf.train.Example``.

    A value is one of these, or a sequence or an array of any shape, which is stored flat:

    - ``bytes`` and the like, ``str`` (as UTF-8): a bytes list;
    - ``bool``, ``int``, NumPy's integers: an int64 list;
    - ``float``, NumPy's floats: a float list, rounded to float32; so are ints beside floats;
    - an ``Enum``: its value;
    - a ``Feature`` message, also TensorFlow's own: as it is.

    Tensors of other libraries are taken through ``__array__``. An empty list without a dtype gives
    a feature without a kind, which readers treat as absent. Features are written in the order of
    their names, so equal values give equal bytes.

    Args:
        features: The values by the features' names.

    Returns:
        The serialized message.

    Raises:
        WrongFeatureType: A value has no representation; the error names the feature.
    """
    example = Example()
    for name, value in features.items():
        if not isinstance(name, str):
            raise WrongFeatureType(f"a feature's name is a str, not {name!r}")
        try:
            example.features.feature[name].CopyFrom(_feature(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise WrongFeatureType(f"cannot be encoded: {error}", feature=name) from None
    return bytes(example.SerializeToString(deterministic=True))


def _feature(value: Any) -> Any:
    descriptor = getattr(value, "DESCRIPTOR", None)
    if getattr(descriptor, "full_name", None) == Feature.DESCRIPTOR.full_name:
        return Feature.FromString(value.SerializeToString())
    if isinstance(value, bytes):
        return Feature(bytes_list=BytesList(value=[value]))
    if hasattr(value, "__array__"):
        array = np.asarray(value).ravel()
        return _from_list(array.tolist()) if array.dtype == object else _from_array(array)
    if isinstance(value, _ONE):
        return _from_list([value])
    if isinstance(value, Sequence):
        return _from_list(_flatten(value))
    raise TypeError(f"a {type(value).__name__} is no value of a feature")


_ONE = (str, bytes, bytearray, memoryview, int, float, Enum)
"""One value, even where it is a sequence of others."""


def _flatten(values: Sequence[Any]) -> list[Any]:
    if not any(isinstance(value, list | tuple | np.ndarray) for value in values):
        return list(values)
    # As objects: NumPy's own strings would lose trailing zero bytes. It refuses uneven nesting.
    flat: list[Any] = np.array(values, object).ravel().tolist()
    return flat


def _from_array(array: npt.NDArray[Any]) -> Any:
    if array.dtype.kind in "biu":
        return _from_ints(array)
    if array.dtype.kind == "f":
        return _from_floats(array)
    if array.dtype.kind in "SU":
        return _from_list(array.tolist())
    raise TypeError(f"an array of {array.dtype} is neither integers, floats nor strings")


def _from_list(values: list[Any]) -> Any:
    values = [_plain(value) for value in values]
    kinds = {_kind(value) for value in values}
    if not kinds:
        return Feature()
    if kinds == {bytes}:
        return Feature(bytes_list=BytesList(value=[_octets(value) for value in values]))
    if bytes in kinds:
        raise TypeError("strings and numbers are mixed in one list")
    return _from_floats(np.array(values, np.float64)) if float in kinds else _from_ints(values)


def _plain(value: Any) -> Any:
    """A scalar as Python's own."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return array.item() if array.ndim == 0 else array
    return value


def _kind(value: Any) -> type:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return bytes
    if isinstance(value, int):
        return int
    if isinstance(value, float):
        return float
    raise TypeError(f"a {type(value).__name__} is no value of a feature")


def _octets(value: str | bytes | bytearray | memoryview) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _from_ints(values: Sequence[int] | npt.NDArray[Any]) -> Any:
    array = np.asarray(values)
    if array.dtype.kind not in "biu" or array.max(initial=0) > np.iinfo(np.int64).max:
        raise OverflowError("an integer is beyond the range of int64")
    return Feature(int64_list=Int64List(value=array.astype(np.int64).tolist()))


def _from_floats(values: npt.NDArray[Any]) -> Any:
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    if np.any(np.isinf(rounded) & np.isfinite(values)):
        raise OverflowError("a number is beyond the range of float32")
    return Feature(float_list=FloatList(value=rounded.tolist()))
