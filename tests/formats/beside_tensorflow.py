"""Helpers of the differential tests: messages, specs and results of TensorFlow and streamrec."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from streamrec.errors import StreamrecError
from streamrec.values.columns import BytesColumn, Ragged, Sparse
from tests.support import Deferred, examples

if find_spec("tensorflow") is None:
    reason = "TensorFlow is not installed: tests/data holds what it gave instead"
    pytest.skip(reason, allow_module_level=True)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


tf: Any = Deferred("tensorflow")
IN_ONE_WORKER = pytest.mark.xdist_group("tensorflow")
"""Mark for the ``pytestmark`` of a module that uses TensorFlow."""

LISTS = {"int64": "int64_list", "float32": "float_list", "bytes": "bytes_list"}
DTYPES = sorted(LISTS)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "bytes": st.binary(max_size=8),
}
drawn = settings(deadline=None, max_examples=examples(60))


def refusals() -> tuple[type[Exception], ...]:
    """Return what TensorFlow raises for a record, or for specs, that it refuses."""
    return (tf.errors.InvalidArgumentError, ValueError, TypeError)


def content(dtype: str, most: int = 4) -> st.SearchStrategy[Any]:
    """Draw the content of a feature: values of this dtype."""
    return st.tuples(st.just(dtype), st.lists(VALUES[dtype], max_size=most))


ANY_CONTENT = st.none() | st.sampled_from(DTYPES).flatmap(content)
"""Also none: a feature of which no list is set."""


def fill(feature: Any, held: Any) -> None:
    """Set a Feature's list."""
    if held is not None:
        values = getattr(feature, LISTS[held[0]])
        values.SetInParent()
        values.value.extend(held[1])


def example(record: dict[str, Any]) -> bytes:
    message = tf.train.Example()
    for name, held in record.items():
        fill(message.features.feature[name], held)
    return bytes(message.SerializeToString())


def sequence_example(context: dict[str, Any], lists: dict[str, list[Any]]) -> bytes:
    message = tf.train.SequenceExample()
    for name, held in context.items():
        fill(message.context.feature[name], held)
    for name, steps in lists.items():
        features = message.feature_lists.feature_list[name].feature
        for held in steps:
            fill(features.add(), held)
    return bytes(message.SerializeToString())


KEYED = ["RowSplits", "RowLengths", "RowStarts", "RowLimits", "ValueRowIds"]
"""The partitions that have a feature of their own."""


def numbers_for(kind: str, lengths: list[int]) -> list[int]:
    """Return a partition's numbers for rows of these lengths."""
    ends = np.cumsum(lengths, dtype=int).tolist()
    numbers: dict[str, list[int]] = {
        "RowSplits": [0, *ends],
        "RowLengths": lengths,
        "RowStarts": [0, *ends][:-1],
        "RowLimits": ends,
        "ValueRowIds": [row for row, length in enumerate(lengths) for _ in range(length)],
    }
    return numbers[kind]


def tf_dtype(dtype: str) -> Any:
    return tf.as_dtype("string" if dtype == "bytes" else dtype)


def batch(records: list[bytes]) -> Any:
    return tf.constant(records, tf.string, [len(records)])


def both(theirs: Any, ours: Any) -> tuple[Any, Any] | None:
    """Return the results of two calls; ``None`` if both refuse. Fail if only one does."""
    try:
        expected = theirs()
    except refusals():
        with pytest.raises(StreamrecError):
            ours()
        return None
    return expected, ours()


def assert_equal(column: Any, tensor: Any) -> None:
    """Check that a column, or one row of one, holds the same as a tensor."""
    if isinstance(tensor, tf.RaggedTensor):
        got = column if isinstance(column, list) else column.to_list()
        assert_lists(got, tensor.to_list())
        while isinstance(column, Ragged):
            column = column.values
        if not isinstance(column, list):
            inner = column.item_shape if isinstance(column, BytesColumn) else column.shape[1:]
            assert inner == tuple(tensor.flat_values.shape[1:])
    elif isinstance(tensor, tf.SparseTensor) and isinstance(column, Sparse):
        assert column.dense_shape == tuple(tensor.dense_shape.numpy())
        assert column.indices.tolist() == tensor.indices.numpy().tolist()
        assert_equal(column.values, tensor.values)
    elif isinstance(tensor, tf.SparseTensor):
        assert_ragged(column, tensor)
    elif isinstance(column, BytesColumn | list):
        if isinstance(column, BytesColumn):
            assert (len(column), *column.item_shape) == tuple(tensor.shape)
        got = column if isinstance(column, list) else column.to_list()
        assert_lists(got, tensor.numpy().tolist())
    elif isinstance(column, bytes):
        assert column == tensor.numpy()
    else:
        assert column.shape == tuple(tensor.shape)
        assert column.dtype == tensor.dtype.as_numpy_dtype
        np.testing.assert_array_equal(column, tensor.numpy())


def assert_lists(got: Any, wanted: Any) -> None:
    """Check that lists of lists are equal; NaN equals NaN."""
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            assert_lists(a, b)
    else:
        assert got == wanted or (np.isnan(got) and np.isnan(wanted))


def assert_ragged(column: Any, tensor: Any) -> None:
    """Check a VarLenFeature, or a row of one, against the sparse tensor of TensorFlow."""
    if not isinstance(column, Ragged):
        assert tensor.indices.numpy().ravel().tolist() == list(range(len(column)))
        return assert_equal(column, tensor.values)
    places = tensor.indices.numpy()
    lengths = np.diff(column.row_splits)
    if not isinstance(column.values, Ragged):
        assert np.bincount(places[:, 0], minlength=len(column)).tolist() == lengths.tolist()
        return assert_equal(column.values, tensor.values)
    inner = np.diff(column.values.row_splits)
    steps = np.concatenate([np.zeros(0, int), *map(np.arange, lengths)])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    assert places[:, :2].tolist() == np.stack([rows, steps], 1).repeat(inner, 0).tolist()
    return assert_equal(column.values.values, tensor.values)
