"""Where TensorFlow does otherwise, as docs/reference/formats.md tells: both sides of each line."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import (
    ConfigError,
    CorruptLength,
    MalformedImage,
    MissingFeature,
    TruncatedShard,
    WrongFeatureType,
)
from streamrec.formats.shards.tfrecord import frame
from tests.formats.beside_tensorflow import IN_ONE_WORKER, refusals, tf
from tests.kernel.wire_bytes import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    bytes_list,
    delimited,
    entry,
    example,
    feature_lists,
    float_list,
    int64_list,
    steps,
    tag,
    varint,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [IN_ONE_WORKER, pytest.mark.both_kernels]

UNKNOWN = tag(2, 0) + varint(5)
"""A field that no list has."""
WITHOUT_LIST = example(entry("a", int64_list(1, 2)), entry("a", b""))
"""The key stands twice, and no list is set in the last one."""


def theirs(record: bytes, dtype: str) -> Any:
    spec = tf.io.RaggedFeature(tf.as_dtype(dtype))
    return tf.io.parse_example([record], {"a": spec})["a"].to_list()[0]


def ours(record: bytes, dtype: str) -> Any:
    columns: Any = sr.parse_example([record], {"a": sr.RaggedFeature(dtype)})
    return columns["a"].to_list()[0]


@pytest.mark.parametrize(
    ("kind", "dtype", "held", "value"),
    [
        (INT64_LIST, "int64", delimited(1, varint(7)), 7),
        (FLOAT_LIST, "float32", delimited(1, np.float32(0.5).tobytes()), 0.5),
        (BYTES_LIST, "string", delimited(1, b"x"), b"x"),
    ],
)
def test_unknown_fields_in_a_list(kind: int, dtype: str, held: bytes, value: Any) -> None:
    before = example(entry("a", delimited(kind, UNKNOWN + held)))
    behind = example(entry("a", delimited(kind, held + UNKNOWN)))
    with pytest.raises(refusals()):
        theirs(before, dtype)
    if kind == BYTES_LIST:
        with pytest.raises(refusals()):
            theirs(behind, dtype)
    else:
        assert theirs(behind, dtype) == [value]
    assert ours(before, dtype) == ours(behind, dtype) == [value]


def test_unknown_fields_in_a_list_of_a_step() -> None:
    step = delimited(INT64_LIST, delimited(1, varint(7)) + UNKNOWN)
    record = feature_lists(entry("a", steps(step)))
    with pytest.raises(refusals()):
        tf.io.parse_sequence_example([record], None, {"a": tf.io.RaggedFeature(tf.int64)})
    got: Any = sr.parse_sequence_example([record], None, {"a": sr.RaggedFeature("int64")})
    assert got.sequences["a"].to_list() == [[[7]]]


@pytest.mark.parametrize(
    ("dtype", "lists", "first", "all_values"),
    [
        ("int64", [int64_list(1, 2), int64_list(3)], [1, 2], [1, 2, 3]),
        ("float32", [float_list(0.5), float_list(2)], [0.5], [0.5, 2]),
        ("string", [bytes_list(b"x"), bytes_list(b"y")], [b"x"], [b"x", b"y"]),
    ],
)
def test_a_list_twice_in_one_feature(
    dtype: str, lists: list[bytes], first: list[Any], all_values: list[Any]
) -> None:
    record = example(entry("a", b"".join(lists)))
    assert theirs(record, dtype) == first
    assert ours(record, dtype) == all_values
    step = feature_lists(entry("a", steps(b"".join(lists))))
    with pytest.raises(refusals()):
        spec = tf.io.RaggedFeature(tf.as_dtype(dtype))
        tf.io.parse_sequence_example([step], None, {"a": spec})
    got: Any = sr.parse_sequence_example([step], None, {"a": sr.RaggedFeature(dtype)})
    assert got.sequences["a"].to_list() == [[all_values]]


def test_lists_of_two_kinds_in_one_feature() -> None:
    record = example(entry("a", int64_list(1, 2) + float_list(0.5)))
    assert theirs(record, "int64") == [1, 2]
    with pytest.raises(refusals()):
        theirs(record, "float32")
    assert ours(record, "float32") == [0.5]
    with pytest.raises(WrongFeatureType):
        ours(record, "int64")


def test_a_key_twice_of_which_the_last_has_an_empty_list() -> None:
    record = example(entry("a", int64_list(1, 2)), entry("a", int64_list()))
    assert theirs(record, "int64") == ours(record, "int64") == []


def test_a_key_twice_of_which_the_last_has_no_list() -> None:
    fixed = tf.io.FixedLenFeature([2], tf.int64)
    sequence = tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    ragged = tf.io.RaggedFeature(tf.int64)
    found = tf.io.parse_example([WITHOUT_LIST], {"a": fixed})["a"].numpy().tolist()
    assert found == [[1, 2]]
    found = tf.io.parse_example([WITHOUT_LIST], {"a": sequence})["a"].numpy().tolist()
    assert found == [[1, 2]]
    assert theirs(WITHOUT_LIST, "int64") == []
    alone = tf.io.parse_single_example(WITHOUT_LIST, {"a": ragged})["a"].numpy().tolist()
    assert alone == [1, 2]  # of the same record

    assert ours(WITHOUT_LIST, "int64") == []
    with pytest.raises(MissingFeature):
        sr.parse_example([WITHOUT_LIST], {"a": fixed})
    got: Any = sr.parse_example([WITHOUT_LIST], {"a": sequence})
    assert got["a"].tolist() == [[]]


@pytest.mark.parametrize("count", [1, 8, 11, 12])
@pytest.mark.parametrize("byte", [b"\0", b"x"])
def test_junk_behind_a_shard(count: int, byte: bytes, tmp_path: Path) -> None:
    path = tmp_path / "junk.tfrecord"
    path.write_bytes(frame(b"one") + byte * count)
    dataset, records = tf.data.TFRecordDataset(str(path)), sr.read_records(path)
    assert next(records) == b"one"
    if count < 12:
        assert list(dataset.as_numpy_iterator()) == [b"one"]
        with pytest.raises(TruncatedShard):
            next(records)
    else:
        with pytest.raises(tf.errors.DataLossError):
            list(dataset.as_numpy_iterator())
        with pytest.raises(CorruptLength):
            next(records)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_numbers_of_a_shape_without_any(shape: tuple[int, ...]) -> None:
    record = example(entry("a", int64_list()))
    spec = tf.io.FixedLenFeature(shape, tf.int64)
    expected = tf.io.parse_example([record], {"a": spec})["a"].numpy()
    got: Any = sr.parse_example([record], {"a": spec})["a"]
    assert got.shape == expected.shape == (1, *shape)
    for other in example(), example(entry("a", int64_list(1))):
        with pytest.raises(refusals()):
            tf.io.parse_example([other], {"a": spec})
        with pytest.raises((MissingFeature, WrongFeatureType)):
            sr.parse_example([other], {"a": spec})


def test_strings_of_a_shape_without_any() -> None:
    record = example(entry("a", bytes_list()))
    spec = tf.io.FixedLenFeature((0,), tf.string)
    assert tf.io.parse_example([record], {"a": spec})["a"].shape == (1, 0)
    with pytest.raises(ConfigError, match="use VarLenFeature"):
        sr.parse_example([record], {"a": spec})


def test_a_default_without_numbers() -> None:
    spec = tf.io.FixedLenFeature((0,), tf.int64, [])
    with pytest.raises(refusals()):
        tf.io.parse_example([example()], {"a": spec})
    got: Any = sr.parse_example([example()], {"a": spec})
    assert got["a"].shape == (1, 0)


DIVIDES_BY_ZERO = """
import tensorflow as tf
spec = tf.io.FixedLenSequenceFeature((0,), tf.int64, allow_missing=True)
tf.io.parse_example([b""], {"a": spec})
"""


@pytest.mark.night
def test_items_without_values_end_tensorflow() -> None:
    died = subprocess.run([sys.executable, "-c", DIVIDES_BY_ZERO], capture_output=True, check=False)
    assert died.returncode == -8, died.stderr  # SIGFPE


def test_items_without_values() -> None:
    with pytest.raises(ConfigError, match="would hold no value"):
        sr.FixedLenSequenceFeature((0,), "int64", allow_missing=True)


@pytest.mark.parametrize("data", [b"\0\1", b"\2\xff\1\0"])
def test_raw_bools(data: bytes) -> None:
    expected = tf.io.decode_raw(data, tf.bool)
    got = sr.decode_raw(data, "bool")
    assert got.tolist() == expected.numpy().tolist()
    assert tf.cast(expected, tf.uint8).numpy().tobytes() == data
    assert got.tobytes() == bytes(min(octet, 1) for octet in data)


def test_a_jpeg_without_its_end_mark() -> None:
    jpeg = sr.encode_jpeg(np.arange(768, dtype=np.uint8).reshape(16, 16, 3))
    for truncated in jpeg[:-2], jpeg[:-1], jpeg[:-2] + b"\0\0":
        with pytest.raises(refusals()):
            tf.io.decode_jpeg(truncated)
        with pytest.raises(MalformedImage):
            sr.decode_jpeg(truncated)


def test_bytes_behind_a_jpeg() -> None:
    jpeg = sr.encode_jpeg(np.arange(768, dtype=np.uint8).reshape(16, 16, 3))
    expected = tf.io.decode_jpeg(jpeg + b"behind").numpy()
    assert (sr.decode_jpeg(jpeg + b"behind") == expected).all()
