"""Arrays of Python's numbers and lists, with the dtypes that TensorFlow gives them.

Source: tensorflow/python/lib/core/py_seq_tensor.cc: the first value decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.coerce import as_array
from streamrec.masking import type_of

if TYPE_CHECKING:
    import numpy.typing as npt

_BOOL, _INT, _FLOAT = (bool, np.bool_), (int, np.integer), (float, np.floating)
_COMPLEX, _STRING = (complex, np.complexfloating), (str, bytes)
_FIT: tuple[tuple[tuple[type, ...], tuple[type, ...]], ...] = (
    (_BOOL, _BOOL),
    (_STRING, _STRING),
    (_INT, _INT),
    (_FLOAT, (*_FLOAT, *_INT)),
    (_COMPLEX, (*_COMPLEX, *_FLOAT, *_INT)),
)
"""The types of a first value, and those that may stand beside it; to Python a bool is an int."""
_RECTANGLE = "its lists differ in length or depth; give lists of one length"


def array_of_python(value: Any) -> npt.NDArray[Any]:
    """Return the array of a number, or of a list of numbers, bools, strings or arrays.

    Raises:
        WrongFeatureType: The values differ in type, a number is too large, or the lists make no
            rectangle.
    """
    shape = _shape_of_values(value)
    values = list(_leaves(value, shape))
    array = _typed(values)
    return array.reshape(shape)


def _is_list(value: Any) -> bool:
    is_array = hasattr(value, "__array__") and not isinstance(value, np.generic)
    return is_array or (isinstance(value, Sequence | memoryview) and not isinstance(value, _STRING))


def _shape_of_values(value: Any) -> tuple[int, ...]:
    if hasattr(value, "__array__"):
        return as_array(value).shape
    if not _is_list(value):
        return ()
    return (len(value), *(_shape_of_values(value[0]) if len(value) else ()))


def _leaves(value: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """Yield the values that a list of this shape holds, in their order."""
    if not shape:
        if _is_list(value) and np.ndim(value):
            raise WrongFeatureType(f"a tensor cannot hold this list: {_RECTANGLE}")
        yield as_array(value)[()] if hasattr(value, "__array__") else value
        return
    if hasattr(value, "__array__"):
        value = list(as_array(value)) if np.ndim(value) else None
    if not _is_list(value) or len(value) != shape[0]:
        raise WrongFeatureType(f"a tensor cannot hold this list: {_RECTANGLE}")
    for each in value:
        yield from _leaves(each, shape[1:])


def _typed(values: list[Any]) -> npt.NDArray[Any]:
    if not values:
        return np.empty(0, np.float32)
    first = values[0]
    if type(first) is int and any(isinstance(value, _FLOAT) for value in values):
        first = float(first)  # TensorFlow tries integers first, and then floats
    allowed = next((beside for kinds, beside in _FIT if isinstance(first, kinds)), ())
    odd = [value for value in values if not isinstance(value, allowed)]
    if odd:
        raise WrongFeatureType(
            f"a tensor cannot hold {_words(values[0], odd[0])}; give values of one type, or "
            "numpy.asarray(value, dtype)"
        )
    if isinstance(first, _STRING):
        return np.array(values, object)
    if isinstance(first, _BOOL):
        return np.array(values, np.bool_)
    if isinstance(first, _INT):
        return _integers(values)
    if isinstance(first, _COMPLEX):
        return np.array(values, np.complex128)
    has_own = isinstance(first, np.float64 | np.float16)
    return _floats(values, type(first) if has_own else np.float32)


def _words(first: Any, odd: Any) -> str:
    one = type_of(first)
    return one if odd is first else f"{one} beside {type_of(odd)}"


def _integers(values: list[Any]) -> npt.NDArray[Any]:
    least, most = min(map(int, values)), max(map(int, values))
    for dtype in (np.int32, np.int64):
        if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max:
            return np.array(values, dtype)
    raise WrongFeatureType(
        f"{most if most > 0 else least} is beyond int64; give numpy.asarray(value, 'uint64')"
    )


def _floats(values: list[Any], dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    wide = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    if (np.isinf(array) & np.isfinite(wide)).any():
        raise WrongFeatureType(
            "a number is beyond float32, which TensorFlow gives Python's floats; give "
            "numpy.asarray(value, 'float64')"
        )
    return array
