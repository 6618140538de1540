"""Tensors as serialized ``tf.TensorProto`` messages.

Parsed messages come from outside, so every size is compared with the bytes that are there before
memory is allocated for it. Sources: tensorflow/core/framework/tensor.proto, tensor_shape.proto and
tensor.cc; for strings in ``tensor_content`` tensorflow/core/platform/tensor_coding.cc.

The dtypes of Python's numbers and lists are those that TensorFlow gives them, where the first value
decides. Source: tensorflow/python/lib/core/py_seq_tensor.cc.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError, DataError, UnsupportedFormat, WrongFeatureType
from streamrec.formats.examples.coerce import as_array, varint
from streamrec.formats.tensor_types import TensorType, as_tensor_type, name_of_number, type_of_dtype
from streamrec.kernel.contract import LARGEST_MESSAGE
from streamrec.masking import type_of
from streamrec.values.message_schema import Field, Messages, unreadable

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
    array = _infer(values)
    return array.reshape(shape)


def _is_list(value: Any) -> bool:
    is_array = hasattr(value, "__array__") and not isinstance(value, np.generic)
    return is_array or (isinstance(value, Sequence | memoryview) and not isinstance(value, _STRING))


def _shape_of_values(value: Any) -> tuple[int, ...]:
    if hasattr(value, "__array__"):
        return as_array(value).shape
    if not _is_list(value):
        return ()
    # By the first of each list; _leaves() refuses the others if they differ.
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


def _infer(values: list[Any]) -> npt.NDArray[Any]:
    if not values:
        # TensorFlow takes a list without values for one of float32.
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
    # NumPy's scalars keep their dtype; Python's floats have none.
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
            f"a number is beyond {np.dtype(dtype)}, the type that TensorFlow gives these values; "
            "give numpy.asarray(value, 'float64')"
        )
    return array


LARGEST_REPETITION = 1 << 26
"""The default for the largest tensor, in bytes, whose values are not all in the message: 64 MiB."""

_MOST_DIMENSIONS = 64
"""NumPy's limit. Source: numpy.org/doc, NPY_MAXDIMS."""

_PROTO = Messages(
    "tensorflow",
    {
        "Dim": [Field("int64", "size", 1), Field("string", "name", 2)],
        "TensorShapeProto": [Field("repeated Dim", "dim", 2), Field("bool", "unknown_rank", 3)],
        "TensorProto": [
            Field("int32", "dtype", 1),
            Field("TensorShapeProto", "tensor_shape", 2),
            Field("int32", "version_number", 3),
            Field("bytes", "tensor_content", 4),
            Field("repeated float", "float_val", 5),
            Field("repeated double", "double_val", 6),
            Field("repeated int32", "int_val", 7),
            Field("repeated bytes", "string_val", 8),
            Field("repeated float", "scomplex_val", 9),
            Field("repeated int64", "int64_val", 10),
            Field("repeated bool", "bool_val", 11),
            Field("repeated double", "dcomplex_val", 12),
            Field("repeated int32", "half_val", 13),
            # Messages, which nothing here reads.
            Field("repeated bytes", "resource_handle_val", 14),
            Field("repeated bytes", "variant_val", 15),
            Field("repeated uint32", "uint32_val", 16),
            Field("repeated uint64", "uint64_val", 17),
            Field("bytes", "float8_val", 18),
        ],
    },
)["TensorProto"]
_CONTENT_TAG = b"\x22"
"""The tag of field 4, which holds bytes."""
_DESCRIPTION = {"dtype", "tensor_shape", "version_number"}
_LISTED = {
    "float_val": np.float32,
    "double_val": np.float64,
    "int_val": np.int32,
    "scomplex_val": np.float32,
    "int64_val": np.int64,
    "bool_val": np.bool_,
    "dcomplex_val": np.float64,
    "half_val": np.int32,
    "uint32_val": np.uint32,
    "uint64_val": np.uint64,
}
"""The dtypes in which a message holds the values of each list."""


def serialize_tensor(array: Any) -> bytes:
    """Serialize an array, to the bytes that ``tf.io.serialize_tensor`` gives.

    Args:
        array: A NumPy array or scalar of any shape, another library's tensor, ``bytes`` or ``str``.
            Arrays of ``bytes`` and ``str`` (as UTF-8) become tensors of strings; bfloat16 and
            float8 are those of ``ml_dtypes``. Python's numbers, and lists of one type of them, get
            the dtypes that TensorFlow gives them: int32 (int64 if a number is larger), float32,
            bool, complex128.

    Returns:
        The serialized ``tf.TensorProto``.

    Raises:
        WrongFeatureType: The values have no representation, or take 2 GiB and more.
    """
    array = _as_array(array)
    kind = type_of_dtype(array.dtype)
    if kind is None:
        raise WrongFeatureType(
            f"a tensor cannot hold {array.dtype}; convert the array to a dtype that TensorFlow has"
        )
    proto = _PROTO(dtype=kind.number)
    # A scalar's shape has no dimensions; it is written all the same, as TensorFlow does.
    proto.tensor_shape.SetInParent()
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if kind.name == "string":
        proto.string_val.extend(_octets(value) for value in array.ravel().tolist())
        return _check_size(proto.ByteSize(), proto).SerializeToString()  # type: ignore[no-any-return]
    _check_size(array.nbytes, array)
    # Joined by hand, since protobuf would copy large arrays three times.
    parts = [proto.SerializeToString()]
    if array.size:
        # Fields stand in the order of their numbers: those before are 1 and 2, and this is 4.
        parts += [_CONTENT_TAG, varint(array.nbytes), _little_endian(array)]
    return b"".join(parts)


def _as_array(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, bytes | str):
        return np.array(value, object)
    if hasattr(value, "__array__"):
        return as_array(value)
    return array_of_python(value)


def _octets(value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
    except UnicodeEncodeError as error:
        raise WrongFeatureType(f"a string has no UTF-8 form ({error}); give it as bytes") from None
    if isinstance(value, bytes):
        return value
    raise WrongFeatureType(
        f"a tensor of objects holds bytes and str, not {type(value).__name__}; "
        "convert the array to a dtype of numbers"
    )


def _check_size(size: int, value: Any) -> Any:
    if size > LARGEST_MESSAGE - 1024:  # The tensor's description takes less than 1 KiB.
        raise WrongFeatureType(
            f"the tensor takes {size} bytes, more than a message can hold; serialize it in parts"
        )
    return value


def _little_endian(array: npt.NDArray[Any]) -> memoryview:
    order = array.dtype.byteorder
    array = np.ascontiguousarray(array)
    if order == ">" or (order == "=" and sys.byteorder == "big"):
        array = array.byteswap()
    return array.reshape(-1).view(np.uint8).data


def parse_tensor(
    data: Any, out_type: Any, *, max_repeated_bytes: int = LARGEST_REPETITION
) -> npt.NDArray[Any]:
    """Parse a serialized ``tf.TensorProto``, as ``tf.io.parse_tensor`` does.

    The values are in ``tensor_content``, or in the list of their type. If that list is too short,
    its last value is repeated; an empty list means zeros or empty strings. Values that TensorFlow
    would drop or wrap in silence are refused: values in the list of another type, more values than
    the shape needs, integers beyond the dtype, an unknown rank.

    Args:
        data: The message.
        out_type: The tensor's type: a dtype's name, a NumPy or Python type, or a ``tf.DType``.
        max_repeated_bytes: The size, in bytes, of the largest tensor whose values are not all in
            the message.

    Returns:
        An array of the tensor's shape in memory of its own, writable; strings are ``bytes`` in an
        array of objects.

    Raises:
        ConfigError: There is no such type, or ``data`` is not bytes.
        WrongFeatureType: The tensor is of another type.
        DataError: The bytes are not such a message, it contradicts itself, or it repeats its
            values to more than ``max_repeated_bytes``.
    """
    kind = as_tensor_type(out_type)
    proto = _read(data)
    if proto.dtype != kind.number:
        raise WrongFeatureType(
            f"the tensor holds {name_of_number(proto.dtype)}, but out_type says {kind.name}; "
            "give the out_type with which it was written"
        )
    field = "tensor_content" if proto.tensor_content else kind.field
    others = {descriptor.name for descriptor, _ in proto.ListFields()} - _DESCRIPTION - {field}
    if others:
        raise _broken(f"it holds {kind.name} in {field}, but also values in {min(others)}")
    shape = _shape(proto.tensor_shape)
    if proto.tensor_content:
        return _from_content(proto.tensor_content, kind, shape)
    return _from_list(_list_values(getattr(proto, kind.field), kind), shape, max_repeated_bytes)


def _broken(what: str) -> DataError:
    return DataError(f"the tensor cannot be parsed: {what}; check what wrote it")


def _read(data: Any) -> Any:
    if hasattr(data, "__array__"):
        data = np.asarray(data)[()]
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ConfigError(
            f"data must be one serialized tensor, as bytes, not {type(data).__name__}"
        )
    try:
        return _PROTO.FromString(bytes(data))
    except unreadable():
        raise _broken("it is not a serialized tf.TensorProto") from None


def _shape(proto: Any) -> tuple[int, ...]:
    if proto.unknown_rank:
        raise _broken("its number of dimensions is unknown")
    if len(proto.dim) > _MOST_DIMENSIONS:  # Checked before the sizes are multiplied.
        raise UnsupportedFormat(
            f"the tensor has {len(proto.dim)} dimensions, but NumPy allows at most 64; write it "
            "with fewer"
        )
    sizes = tuple(int(dim.size) for dim in proto.dim)
    if min(sizes, default=0) < 0:
        raise _broken(f"its shape {sizes} has unknown dimensions")
    return sizes


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        return np.empty(shape, dtype)
    except ValueError:  # NumPy multiplies the sizes that are not 0, and refuses an overflow.
        raise _broken(f"there is no array of the shape {shape}") from None


def _from_content(content: bytes, kind: TensorType, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    count = math.prod(shape)
    if kind.name == "string":
        return _from_list(_as_objects(_strings(content, count)), shape, 0)
    size = count * kind.dtype.itemsize
    # Before memory is allocated: a shape may claim any size.
    if size != len(content):
        raise _broken(
            f"its shape {shape} of {kind.name} takes {size} bytes, but it has {len(content)}"
        )
    array = _empty(shape, kind.dtype)
    octets = np.frombuffer(content, np.uint8)
    if kind.name == "bool" and octets.max() > 1:
        raise _broken("a bool is neither 0 nor 1")
    array.reshape(-1).view(np.uint8)[:] = octets
    return array.byteswap(inplace=True) if sys.byteorder == "big" else array


def _strings(content: bytes, count: int) -> list[bytes]:
    """Split content into strings: it has their lengths as varints, then the strings end to end."""
    # Each string takes a byte for its length, so the list below cannot outgrow the message.
    if count > len(content):
        raise _broken(f"its {len(content)} bytes cannot hold {count} strings")
    lengths, place = [], 0
    for _ in range(count):
        length, place = _length(content, place)
        lengths.append(length)
    if sum(lengths) != len(content) - place:
        raise _broken(
            f"its {count} strings should have {sum(lengths)} bytes, but there are "
            f"{len(content) - place}"
        )
    strings = []
    for length in lengths:
        strings.append(content[place : place + length])
        place += length
    return strings


def _length(content: bytes, place: int) -> tuple[int, int]:
    """Read one varint of at most 32 bits; return it and the place after it."""
    value = 0
    for shift, octet in enumerate(content[place : place + 5]):
        # Seven bits a byte, the lowest first; the eighth says that more follow.
        value |= (octet & 0x7F) << (7 * shift)
        if octet < 0x80:
            # Five bytes have 35 bits, of which TensorFlow drops the upper three.
            return value & 0xFFFFFFFF, place + shift + 1
    raise _broken("a string's length does not end")


def _as_objects(strings: Any) -> npt.NDArray[np.object_]:
    array = np.empty(len(strings), object)
    array[:] = strings
    return array


def _list_values(values: Any, kind: TensorType) -> npt.NDArray[Any]:
    """Return the values that a message's list holds, as an array of the tensor's type."""
    if kind.field == "string_val":
        return _as_objects(list(values))
    if kind.field == "float8_val":
        return np.frombuffer(values, np.uint8).view(kind.dtype)
    given: npt.NDArray[Any] = np.fromiter(values, _LISTED[kind.field], len(values))
    if kind.name.startswith("complex"):
        # Real and imaginary parts stand in turn.
        if len(given) % 2:
            raise _broken("the last complex number has no imaginary part")
        return given.view(kind.dtype)
    # Half-precision numbers are listed by their bits, each in an integer.
    stored = given.astype(np.uint16 if kind.field == "half_val" else kind.dtype)
    if kind.field in ("int_val", "half_val") and (stored != given).any():
        raise _broken(f"a value in {kind.field} is beyond the range of {kind.name}")
    return stored.view(kind.dtype)


def _from_list(given: npt.NDArray[Any], shape: tuple[int, ...], limit: int) -> npt.NDArray[Any]:
    count, size = math.prod(shape), math.prod(shape) * given.dtype.itemsize
    if len(given) > count:
        raise _broken(f"its shape {shape} takes {count} values, but it has {len(given)}")
    if len(given) < count and size > limit:
        raise DataError(
            f"the tensor's {len(given)} values would be repeated to {size} bytes, more than "
            f"max_repeated_bytes={limit}; raise that if the tensor comes from a source you trust"
        )
    array = _empty(shape, given.dtype)
    flat = array.reshape(-1)
    flat[: len(given)] = given
    flat[len(given) :] = given[-1:] if len(given) else _nothing(given.dtype)
    return array


def _nothing(dtype: np.dtype[Any]) -> Any:
    return b"" if dtype.kind == "O" else np.zeros((), dtype)
