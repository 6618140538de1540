"""Parsing of SequenceExamples beside TensorFlow's, on drawn records and specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError
from tests.formats.beside_tensorflow import (
    ANY_CONTENT,
    DTYPES,
    IN_ONE_WORKER,
    KEYED,
    VALUES,
    assert_equal,
    batch,
    both,
    content,
    drawn,
    numbers_for,
    refusals,
    sequence_example,
    tf,
    tf_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [IN_ONE_WORKER, pytest.mark.both_kernels]

NAMES = st.sampled_from("abü")
CONTEXT = st.dictionaries(NAMES, ANY_CONTENT.filter(lambda held: held is not None))


@st.composite
def steps(draw: st.DrawFn) -> list[Any]:
    """Draw the steps of a feature list, mostly of one dtype and of one length."""
    dtype = draw(st.sampled_from(DTYPES))
    length = draw(st.integers(1, 2))
    same = st.lists(VALUES[dtype], min_size=length, max_size=length).map(lambda v: (dtype, v))
    wild = st.none() | content(dtype) | ANY_CONTENT
    return draw(st.lists(same, max_size=3) | st.lists(same | wild, max_size=3))


RECORD = st.tuples(CONTEXT, st.dictionaries(NAMES, steps()))


@st.composite
def fixed(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (1,), (2,), (1, 3)]))
    count = int(np.prod(shape, dtype=int))
    default = st.lists(VALUES[dtype], min_size=count, max_size=count)
    given = draw(st.none() | default.map(lambda values: np.reshape(values, shape).tolist()))
    return tf.io.FixedLenFeature(shape, tf_dtype(dtype), given)


@st.composite
def sequence(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (2,), (1, 2)]))
    return tf.io.FixedLenSequenceFeature(shape, tf_dtype(dtype), draw(st.booleans()))


VARLEN = st.sampled_from(DTYPES).map(lambda dtype: tf.io.VarLenFeature(tf_dtype(dtype)))
RAGGED = st.sampled_from(DTYPES).map(lambda dtype: tf.io.RaggedFeature(tf_dtype(dtype)))
CONTEXT_FEATURES = st.dictionaries(NAMES, fixed() | VARLEN | RAGGED)
SEQUENCE_FEATURES = st.dictionaries(NAMES, sequence() | VARLEN | RAGGED)


@drawn
@given(
    records=st.lists(RECORD, min_size=1, max_size=3),
    context=CONTEXT_FEATURES,
    sequences=SEQUENCE_FEATURES,
)
def test_parse_sequence_example(records: list[Any], context: Any, sequences: Any) -> None:
    serialized = [sequence_example(*record) for record in records]
    found = both(
        lambda: tf.io.parse_sequence_example(batch(serialized), context, sequences),
        lambda: sr.parse_sequence_example(serialized, context, sequences),
    )
    if found is None:
        return
    theirs, ours = found
    for expected, got in zip(theirs, ours, strict=True):
        assert expected.keys() == got.keys()
        for name in expected:
            assert_equal(got[name], expected[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("lists", [{}, {"a": []}], ids=["missing", "empty"])
def test_a_sequence_that_no_record_has(dtype: str, shape: Any, lists: Any) -> None:
    features = {"a": tf.io.FixedLenSequenceFeature(shape, tf_dtype(dtype), allow_missing=True)}
    record = sequence_example({}, lists)
    theirs = tf.io.parse_sequence_example(batch([record] * 2), None, features)
    ours = sr.parse_sequence_example([record] * 2, None, features)
    assert theirs[1]["a"].shape == (2, 0, *shape)
    assert_equal(ours.sequences["a"], theirs[1]["a"])
    assert_equal(ours.lengths["a"], theirs[2]["a"])
    _, expected = tf.io.parse_single_sequence_example(record, None, features)
    _, got = sr.parse_single_sequence_example(record, None, features)
    assert_equal(got["a"], expected["a"])


@drawn
@given(record=RECORD, context=CONTEXT_FEATURES, sequences=SEQUENCE_FEATURES)
def test_parse_single_sequence_example(record: Any, context: Any, sequences: Any) -> None:
    serialized = sequence_example(*record)
    found = both(
        lambda: tf.io.parse_single_sequence_example(serialized, context, sequences),
        lambda: sr.parse_single_sequence_example(serialized, context, sequences),
    )
    if found is None:
        return
    for expected, got in zip(*found, strict=True):
        assert expected.keys() == got.keys()
        for name in expected:
            assert_equal(got[name], expected[name])


@drawn
@given(
    lengths=st.lists(st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=3), max_size=3),
    kind=st.sampled_from(KEYED),
    uniform=st.booleans(),
)
def test_partitions_of_steps(lengths: list[list[list[int]]], kind: str, uniform: bool) -> None:
    records = []
    for steps_lengths in lengths:
        rows = [with_values_at_the_end(step, kind) for step in steps_lengths]
        values = [("int64", list(range(2 * sum(step)))) for step in rows]
        keys = [step if uniform else [2 * n for n in step] for step in rows]
        numbers = [("int64", numbers_for(kind, step)) for step in keys]
        records.append(sequence_example({}, {"v": values, "p": numbers}))
    kinds = tf.io.RaggedFeature
    parts = [getattr(kinds, kind)("p"), *([kinds.UniformRowLength(2)] if uniform else [])]
    features = {"r": tf.io.RaggedFeature(tf.int64, "v", parts, tf.int64, validate=True)}
    expected = tf.io.parse_sequence_example(batch(records), None, features)[1]["r"]
    assert_equal(sr.parse_sequence_example(records, None, features).sequences["r"], expected)


def with_values_at_the_end(lengths: list[int], kind: str) -> list[int]:
    """ValueRowIds cannot tell of empty rows at the end."""
    if kind != "ValueRowIds" or not lengths:
        return lengths
    return [*lengths[:-1], max(lengths[-1], 1)]


@drawn
@given(
    lengths=st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=3),
    kind=st.sampled_from(KEYED),
)
def test_partitions_of_a_context(lengths: list[list[int]], kind: str) -> None:
    records = []
    for each in lengths:
        rows = with_values_at_the_end(each, kind)
        values, numbers = list(range(sum(rows))), numbers_for(kind, rows)
        records.append(sequence_example({"v": ("int64", values), "p": ("int64", numbers)}, {}))
    partition = getattr(tf.io.RaggedFeature, kind)("p")
    context = {"r": tf.io.RaggedFeature(tf.int64, "v", [partition], tf.int64, validate=True)}
    expected = tf.io.parse_sequence_example(batch(records), context)[0]["r"]
    assert_equal(sr.parse_sequence_example(records, context).context["r"], expected)
    single = tf.io.parse_single_sequence_example(records[0], context)[0]["r"]
    assert_equal(sr.parse_single_sequence_example(records[0], context)[0]["r"], single)


def test_a_context_s_feature_of_which_no_list_is_set() -> None:
    # It is absent, here and in an Example. TensorFlow, too, has it so in an Example, but refuses it
    # in a context.
    context = {"a": tf.io.FixedLenFeature((), tf.int64, 7)}
    record = sequence_example({"a": None}, {})
    assert tf.io.parse_single_example(record, context)["a"].numpy() == 7
    with pytest.raises(refusals()):
        tf.io.parse_single_sequence_example(record, context)
    assert sr.parse_single_sequence_example(record, context) == ({"a": 7}, {})


def test_no_records_at_all() -> None:
    # TensorFlow takes the default of a feature without one for wrong, if there is no record.
    context = {"a": tf.io.FixedLenFeature((), tf.int64)}
    with pytest.raises(refusals()):
        tf.io.parse_sequence_example(batch([]), context)
    got: Any = sr.parse_sequence_example([], context)
    assert got.context["a"].shape == (0,)


def test_steps_that_are_not_aligned() -> None:
    partition = tf.io.RaggedFeature.RowLengths("p")
    features = {"r": tf.io.RaggedFeature(tf.int64, "v", [partition], validate=True)}
    record = sequence_example({}, {"v": [("int64", [1])], "p": []})
    found = both(
        lambda: tf.io.parse_sequence_example(batch([record]), None, features),
        lambda: sr.parse_sequence_example([record], None, features),
    )
    assert found is None


@pytest.mark.parametrize(
    "specs",
    [
        lambda: (None, None),
        lambda: ({}, {}),
        lambda: (None, {"a": tf.io.FixedLenFeature((), tf.int64)}),
        lambda: (None, {"a": tf.io.SparseFeature("i", "v", tf.int64, 5)}),
    ],
)
def test_specs_that_both_refuse(specs: Callable[[], tuple[Any, Any]]) -> None:
    context, sequences = specs()
    record = sequence_example({}, {})
    with pytest.raises(refusals()):
        tf.io.parse_sequence_example(batch([record]), context, sequences)
    with pytest.raises(ConfigError):
        sr.parse_sequence_example([record], context, sequences)


def test_specs_that_tensorflow_alone_refuses() -> None:
    # In a context these mean what they mean in an Example; and what fills up a list of steps may
    # be chosen.
    context = {
        "s": tf.io.SparseFeature("i", "v", tf.int64, 3),
        "l": tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True),
    }
    sequences = {"a": tf.io.FixedLenSequenceFeature((), tf.int64, default_value=-1)}
    records = [
        sequence_example({"i": ("int64", [1]), "v": ("int64", [7])}, {"a": [("int64", [5])]}),
        sequence_example({"l": ("int64", [1, 2])}, {"a": []}),
    ]
    for refused in ((context, None), (None, sequences)):
        with pytest.raises(refusals()):
            tf.io.parse_sequence_example(batch(records), *refused)
    got: Any = sr.parse_sequence_example(records, context, sequences)
    assert got.context["s"].to_dense().tolist() == [[0, 7, 0], [0, 0, 0]]
    assert got.context["l"].tolist() == [[0, 0], [1, 2]]
    assert got.sequences["a"].tolist() == [[5], [-1]]
    assert np.array_equal(got.lengths["a"], [1, 0])
