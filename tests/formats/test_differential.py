"""streamrec beside TensorFlow itself, on drawn input, where TensorFlow is installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.errors import DataError
from streamrec.formats.example import Example, SequenceExample, encode_example
from streamrec.formats.features import parse_example
from streamrec.formats.tfrecord import FrameScanner, frame
from streamrec.types import BytesColumn, Ragged

if TYPE_CHECKING:
    from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf: Any = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed: tests/data holds what it gave instead"
)

KINDS = {"int64": "int64_list", "float32": "float_list", "bytes": "bytes_list"}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "bytes": st.binary(max_size=8),
}
FEATURE = st.sampled_from(sorted(VALUES)).flatmap(
    lambda dtype: st.tuples(st.just(dtype), st.lists(VALUES[dtype], max_size=4))
)
RECORD = st.dictionaries(st.sampled_from("abcü"), st.none() | FEATURE)
SPEC = st.tuples(st.sampled_from([None, (), (2,), (1, 3)]), st.sampled_from(sorted(VALUES)))
drawn = settings(deadline=None, max_examples=60)


def tensorflow_example(record: dict[str, Any]) -> Any:
    message = tf.train.Example()
    for name, content in record.items():
        feature = message.features.feature[name]
        if content is not None:
            values = getattr(feature, KINDS[content[0]])
            values.SetInParent()
            values.value.extend(content[1])
    return message


def tensorflow_spec(shape: Any, dtype: str) -> Any:
    dtype = tf.as_dtype("string" if dtype == "bytes" else dtype)
    if shape is None:
        return tf.io.VarLenFeature(dtype)
    return tf.io.FixedLenFeature(shape, dtype)


def assert_equal(column: Any, tensor: Any) -> None:
    if isinstance(column, Ragged):
        lengths = np.bincount(tensor.indices.numpy()[:, 0], minlength=len(column))
        assert np.diff(column.row_splits).tolist() == lengths.tolist()
        column, tensor = column.values, tensor.values
    if isinstance(column, BytesColumn):
        assert column.to_list() == tensor.numpy().tolist()
    else:
        assert column.shape == tuple(tensor.shape)
        assert column.dtype == tensor.dtype.as_numpy_dtype
        np.testing.assert_array_equal(column, tensor.numpy())


@drawn
@given(
    records=st.lists(RECORD, max_size=4),
    specs=st.dictionaries(st.sampled_from("abcü"), SPEC, min_size=1),
)
def test_parse_example(records: list[Any], specs: dict[str, Any]) -> None:
    serialized = [tensorflow_example(record).SerializeToString() for record in records]
    features = {name: tensorflow_spec(*spec) for name, spec in specs.items()}
    try:
        expected = tf.io.parse_example(tf.constant(serialized, tf.string, [len(records)]), features)
    except tf.errors.InvalidArgumentError:
        with pytest.raises(DataError):
            parse_example(serialized, features)
        return
    for name, column in parse_example(serialized, features).items():
        assert_equal(column, expected[name])


def refuses(call: Any, record: bytes, *errors: type[Exception]) -> bool:
    try:
        call(record)
    except errors:
        return True
    return False


def parse(record: bytes) -> None:
    parse_example([record], {"a": tf.io.VarLenFeature(tf.int64)})


@drawn
@given(junk=st.binary(max_size=30))
def test_junk_is_refused_as_protobuf_refuses_it(junk: bytes) -> None:
    # TensorFlow's own parser takes some of what protobuf refuses, such as a field of number 0.
    error = type(caught_from(tf.train.Example.FromString, b"\xff"))
    assert refuses(parse, junk, DataError) == refuses(tf.train.Example.FromString, junk, error)


def caught_from(call: Any, *args: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        call(*args)
    return caught.value


@drawn
@given(record=RECORD)
def test_messages_are_the_same_on_the_wire(record: dict[str, Any]) -> None:
    theirs = tensorflow_example(record)
    ours = Example.FromString(theirs.SerializeToString())
    wire = ours.SerializeToString(deterministic=True)
    assert wire == theirs.SerializeToString(deterministic=True)
    assert encode_example(dict(theirs.features.feature)) == wire


def test_sequence_examples_are_the_same_on_the_wire() -> None:
    theirs = tf.train.SequenceExample()
    theirs.context.feature["id"].int64_list.value.append(3)
    theirs.feature_lists.feature_list["x"].feature.add().float_list.value.append(0.5)
    ours = SequenceExample.FromString(theirs.SerializeToString())
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize(
    "value", [3, -1, [1, 2], True, 0.5, [0.5, 2], b"x", "ü", np.arange(3), np.float64(0.1)]
)
def test_tensors_encode_as_their_values(value: Any) -> None:
    assert encode_example({"x": tf.constant(value)}) == encode_example({"x": value})


@drawn
@given(records=st.lists(st.binary(max_size=50), max_size=6))
def test_tensorflow_reads_our_frames_and_we_its(
    records: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory: Path = tmp_path_factory.mktemp("frames")
    ours, theirs = directory / "ours", directory / "theirs"
    ours.write_bytes(b"".join(map(frame, records)))
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in records:
            writer.write(record)
    assert ours.read_bytes() == theirs.read_bytes()
    assert list(tf.data.TFRecordDataset(str(ours)).as_numpy_iterator()) == records
    scanner = FrameScanner(url=str(theirs))
    blocks, _ = scanner.scan(np.frombuffer(theirs.read_bytes(), np.uint8), more=False)
    scanner.finish()
    assert sum(map(len, blocks)) == len(records)
