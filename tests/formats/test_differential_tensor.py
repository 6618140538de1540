"""Tensors and the encoding of records beside TensorFlow itself, where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.errors import DataError, StreamrecError
from streamrec.formats.examples.encode import encode_examples
from streamrec.formats.examples.example import encode_sequence_example
from streamrec.formats.tensor import parse_tensor, serialize_tensor
from streamrec.formats.tensor_types import decode_raw
from streamrec.values.columns import BytesColumn, Ragged, offsets_of
from tests.formats.beside_tensorflow import IN_ONE_WORKER, tf
from tests.support import Deferred, examples

pytestmark = [IN_ONE_WORKER, pytest.mark.both_kernels]

ml_dtypes: Any = pytest.importorskip("ml_dtypes")  # which TensorFlow needs
tensor_pb2: Any = Deferred("tensorflow.core.framework.tensor_pb2")

drawn = settings(deadline=None, max_examples=examples(100))
NUMBERS = [*"?bhilqBHILQefdFD", ml_dtypes.bfloat16]
FLOAT8 = [
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2fnuz",
]
DECODED = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16"]
DECODED += ["float32", "float64", "complex64", "complex128"]  # what tf.io.decode_raw takes
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def refusals() -> tuple[type[Exception], ...]:
    return (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError)


@st.composite
def arrays(draw: st.DrawFn, dtypes: Any = tuple(NUMBERS)) -> Any:
    dtype, shape = np.dtype(draw(st.sampled_from(dtypes))), draw(SHAPES)
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    octets = draw(st.binary(min_size=size, max_size=size))
    octets = bytes(octet & 1 for octet in octets) if dtype.kind == "b" else octets
    return np.frombuffer(octets, dtype).reshape(shape)


@st.composite
def strings(draw: st.DrawFn) -> Any:
    shape = draw(SHAPES)
    count = int(np.prod(shape, dtype=int))
    array = np.empty(count, object)
    kind = st.binary(max_size=200) | st.text(max_size=5)
    array[:] = draw(st.lists(kind, min_size=count, max_size=count))
    kinds = draw(st.sampled_from(["O", "S", "U"]))
    if kinds == "O":
        return array.reshape(shape)
    words = [value if isinstance(value, str) else value.hex() for value in array]
    plain = np.array([word.encode() for word in words] if kinds == "S" else words, kinds)
    return plain.reshape(shape)


def same(ours: Any, theirs: Any) -> None:
    # A scalar string comes as bytes from TensorFlow.
    theirs = np.asarray(theirs, object if isinstance(theirs, bytes) else None)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if ours.dtype == np.dtype(object):
        assert ours.tolist() == theirs.tolist()
    elif ours.dtype == np.dtype(bool):  # TensorFlow leaves other bytes than 0 and 1 as they are
        assert ours.tolist() == (theirs.view(np.uint8) != 0).tolist()
    else:
        assert ours.tobytes() == theirs.tobytes()


@drawn
@given(array=arrays() | strings())
def test_serialized_tensors_are_the_same_bytes(array: Any) -> None:
    assert serialize_tensor(array) == tf.io.serialize_tensor(array).numpy()


LEAVES = st.sampled_from(
    [
        *(0, 7, -1, 2**31, 2**63, 1.5, -0.0, 1e39, float("inf"), True, False, 2j, "a", b"b", None),
        *(np.float64(1.5), np.float32(2), np.float16(1), np.int64(3), np.uint8(4), np.bool_(True)),
    ]
)
NESTED = LEAVES | st.lists(LEAVES, max_size=3) | st.lists(st.lists(LEAVES, max_size=2), max_size=2)


@drawn
@given(value=NESTED)
def test_numbers_and_lists_are_the_same_bytes(value: Any) -> None:
    try:
        expected = tf.io.serialize_tensor(value).numpy()
    except (tf.errors.InvalidArgumentError, ValueError, TypeError):
        with pytest.raises(StreamrecError):
            serialize_tensor(value)
        return
    # Of [[], [1]] TensorFlow drops the 1.
    if not isinstance(value, list) or not any(isinstance(v, list) and not v for v in value):
        assert serialize_tensor(value) == expected


@drawn
@given(array=arrays() | strings())
def test_each_parses_what_the_other_wrote(array: Any) -> None:
    tensor = tf.constant(array)
    theirs = tf.io.serialize_tensor(tensor)
    same(parse_tensor(theirs.numpy(), tensor.dtype), tensor.numpy())
    same(parse_tensor(theirs, tensor.dtype), tensor.numpy())
    same(parse_tensor(theirs.numpy(), array.dtype), tensor.numpy())
    same(parse_tensor(serialize_tensor(tensor), tensor.dtype), tensor.numpy())
    back = tf.io.parse_tensor(serialize_tensor(array), tensor.dtype)
    same(np.asarray(back.numpy(), tensor.dtype.as_numpy_dtype), tensor.numpy())


# TensorFlow serializes no float8 itself; its Python code makes such messages.
@pytest.mark.parametrize("name", FLOAT8)
def test_float8(name: str) -> None:
    array = np.array([[0.5, -2.0], [1.0, 0.0]]).astype(getattr(ml_dtypes, name))
    data = tf.make_tensor_proto(array).SerializeToString()
    assert serialize_tensor(array) == data
    dtype = tf.as_dtype(array.dtype)
    same(parse_tensor(data, dtype), tf.io.parse_tensor(data, dtype).numpy())


@drawn
@given(array=arrays(tuple(code for code in NUMBERS if code not in ("L", "Q"))) | strings())
def test_the_messages_of_tensorflow_s_python_code(array: Any) -> None:
    values = array.tolist() if array.dtype.kind in "OSU" else array.ravel().tolist()
    dtype = tf.as_dtype(array.dtype)
    proto = tf.make_tensor_proto(values, dtype, shape=array.shape)
    data = proto.SerializeToString()
    same(parse_tensor(data, dtype), tf.io.parse_tensor(data, dtype).numpy())


LISTS = {
    "float32": ("float_val", st.floats(width=32, allow_nan=False)),
    "int8": ("int_val", st.integers(-128, 127)),
    "uint16": ("int_val", st.integers(0, 65535)),
    "int64": ("int64_val", st.integers(-(2**63), 2**63 - 1)),
    "uint64": ("uint64_val", st.integers(0, 2**64 - 1)),
    "float16": ("half_val", st.integers(0, 65535)),
    "bfloat16": ("half_val", st.integers(0, 65535)),
    "bool": ("bool_val", st.booleans()),
    "complex64": ("scomplex_val", st.floats(width=32, allow_nan=False)),
    "string": ("string_val", st.binary(max_size=4)),
}


@drawn
@given(data=st.data(), name=st.sampled_from(sorted(LISTS)))
def test_lists_and_refusals(data: st.DataObject, name: str) -> None:
    # What we refuse alone is what TensorFlow drops in silence.
    field, values = LISTS[name]
    listed = data.draw(st.lists(values, max_size=5))
    shape = data.draw(st.lists(st.integers(-1, 3), max_size=2))
    content = data.draw(st.just(b"") | st.binary(max_size=12))
    proto = tensor_pb2.TensorProto(
        dtype=tf.as_dtype(name).as_datatype_enum, tensor_content=content, **{field: listed}
    )
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    message = proto.SerializeToString()
    try:
        theirs = tf.io.parse_tensor(message, name).numpy()
    except refusals():
        with pytest.raises(DataError):
            parse_tensor(message, name)
        return
    per_value = 2 if name == "complex64" else 1
    count = int(np.prod(shape, dtype=int))
    if (
        (content and (listed or not count))
        or len(listed) > count * per_value
        or len(listed) % per_value
    ):
        with pytest.raises(DataError):
            parse_tensor(message, name)
    else:
        same(parse_tensor(message, name), theirs)


@drawn
@given(junk=st.binary(max_size=30), name=st.sampled_from(sorted(LISTS)))
def test_what_tensorflow_refuses_we_refuse(junk: bytes, name: str) -> None:
    try:
        tf.io.parse_tensor(junk, name)
    except refusals():
        with pytest.raises(DataError):
            parse_tensor(junk, name)


@drawn
@given(
    data=st.data(),
    name=st.sampled_from(DECODED),
    little_endian=st.booleans(),
)
def test_decode_raw(data: st.DataObject, name: str, little_endian: bool) -> None:
    if data.draw(st.booleans()):
        lengths = st.just(data.draw(st.integers(0, 4)) * tf.as_dtype(name).size)
    else:
        lengths = st.integers(0, 20)
    rows = st.lists(
        lengths.flatmap(lambda size: st.binary(min_size=size, max_size=size)), max_size=3
    )
    batch = data.draw(rows)
    try:
        theirs = tf.io.decode_raw(tf.constant(batch, tf.string, [len(batch)]), name, little_endian)
    except refusals():
        with pytest.raises(DataError):
            decode_raw(batch, name, little_endian=little_endian)
        return
    ours = decode_raw(tf.constant(batch, tf.string, [len(batch)]), name, None, little_endian)
    same(ours, theirs.numpy())
    if batch:
        one = tf.io.decode_raw(batch[0], name, little_endian)
        same(decode_raw(batch[0], tf.as_dtype(name), None, little_endian), one.numpy())


@drawn
@given(batch=st.lists(st.binary(max_size=9), max_size=3), count=st.integers(1, 3))
def test_decode_raw_of_a_fixed_length(batch: list[bytes], count: int) -> None:
    tensor = tf.constant(batch, tf.string, [len(batch)])
    theirs = tf.io.decode_raw(tensor, tf.int16, fixed_length=2 * count)
    same(decode_raw(batch, "int16", fixed_length=2 * count), theirs.numpy())


STEP = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3),
    st.lists(st.binary(max_size=9), min_size=1, max_size=3),
)
# Of names where one begins another, protobuf's own order differs by its version.
NAMES = st.sampled_from("abcü")


def feature(values: list[Any]) -> Any:
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def features(values: dict[str, Any]) -> Any:
    return tf.train.Features(feature={name: feature(value) for name, value in values.items()})


@drawn
@given(
    context=st.dictionaries(NAMES, STEP, min_size=1),
    lists=st.dictionaries(NAMES, st.lists(STEP, max_size=3), min_size=1),
)
def test_sequence_examples_are_the_same_bytes(context: Any, lists: Any) -> None:
    steps = {
        name: tf.train.FeatureList(feature=[feature(step) for step in steps])
        for name, steps in lists.items()
    }
    theirs = tf.train.SequenceExample(
        context=features(context), feature_lists=tf.train.FeatureLists(feature_list=steps)
    )
    data = theirs.SerializeToString(deterministic=True)
    assert encode_sequence_example(context, lists) == data
    assert encode_sequence_example(context, steps) == data


def rows_of(values: Any, row: int) -> list[Any]:
    value = values[row]
    return [value] if isinstance(value, bytes) else np.ravel(np.asarray(value)).tolist()


@drawn
@given(data=st.data(), rows=st.integers(1, 3))
def test_encoded_columns_are_tensorflow_s_examples(data: st.DataObject, rows: int) -> None:
    lengths = np.array(data.draw(st.lists(st.integers(1, 3), min_size=rows, max_size=rows)))
    count = int(lengths.sum())
    ints = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count)
    octets = st.lists(st.binary(max_size=9), min_size=rows, max_size=rows)
    floats = st.lists(st.floats(width=32), min_size=rows, max_size=rows)
    columns = {
        "ints": Ragged(np.array(data.draw(ints), np.int64), offsets_of(lengths)),
        "octets": BytesColumn.of(data.draw(octets)),
        "floats": np.array(data.draw(floats), np.float32)[:, None],
    }
    for row, record in enumerate(encode_examples(columns)):
        expected = {name: rows_of(column, row) for name, column in columns.items()}
        example = tf.train.Example(features=features(expected))
        assert tf.train.Example.FromString(record).SerializeToString(deterministic=True) == (
            example.SerializeToString(deterministic=True)
        )


@pytest.mark.parametrize("name", ["bfloat16", *FLOAT8])
def test_small_floats_are_encoded_as_float32(name: str) -> None:
    array = np.array([[0.5, -2.0], [1.0, 0.0]]).astype(getattr(ml_dtypes, name))
    assert encode_examples({"x": array}).to_list() == (
        encode_examples({"x": array.astype(np.float32)}).to_list()
    )
