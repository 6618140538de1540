"""Parsing of Examples beside TensorFlow's, on drawn records and specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError, DataError, WrongFeatureType
from tests.formats.beside_tensorflow import (
    ANY_CONTENT,
    DTYPES,
    IN_ONE_WORKER,
    KEYED,
    VALUES,
    assert_equal,
    batch,
    both,
    drawn,
    example,
    numbers_for,
    refusals,
    tf,
    tf_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [IN_ONE_WORKER, pytest.mark.both_kernels]

NAMES = st.sampled_from("abü")
RECORDS = st.lists(st.dictionaries(NAMES, ANY_CONTENT), max_size=4)


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
    shape = draw(st.sampled_from([(), (2,), (1, 3)]))
    allow = draw(st.sampled_from([True, True, True, False]))
    default = draw(st.none() | VALUES[dtype])
    return tf.io.FixedLenSequenceFeature(shape, tf_dtype(dtype), allow, default)


VARLEN = st.sampled_from(DTYPES).map(lambda dtype: tf.io.VarLenFeature(tf_dtype(dtype)))
RAGGED = st.sampled_from(DTYPES).map(lambda dtype: tf.io.RaggedFeature(tf_dtype(dtype)))
FEATURES = st.dictionaries(NAMES, fixed() | sequence() | VARLEN | RAGGED, min_size=1)


@drawn
@given(records=RECORDS, features=FEATURES)
def test_parse_example(records: list[Any], features: dict[str, Any]) -> None:
    serialized = [example(record) for record in records]
    found = both(
        lambda: tf.io.parse_example(batch(serialized), features),
        lambda: sr.parse_example(serialized, features),
    )
    for name in features if found else ():
        assert_equal(found[1][name], found[0][name])  # type: ignore[index]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("records", [0, 2])
def test_a_sequence_that_no_record_has(dtype: str, shape: tuple[int, ...], records: int) -> None:
    features = {"a": tf.io.FixedLenSequenceFeature(shape, tf_dtype(dtype), allow_missing=True)}
    serialized = [example({})] * records
    expected = tf.io.parse_example(batch(serialized), features)["a"]
    assert expected.shape == (records, 0, *shape)
    assert_equal(sr.parse_example(serialized, features)["a"], expected)
    expected = tf.io.parse_single_example(example({}), features)["a"]
    assert_equal(sr.parse_single_example(example({}), features)["a"], expected)


@drawn
@given(record=st.dictionaries(NAMES, ANY_CONTENT), features=FEATURES)
def test_parse_single_example(record: Any, features: dict[str, Any]) -> None:
    serialized = example(record)
    found = both(
        lambda: tf.io.parse_single_example(serialized, features),
        lambda: sr.parse_single_example(serialized, features),
    )
    for name in features if found else ():
        assert_equal(found[1][name], found[0][name])  # type: ignore[index]


# -- SparseFeature ---------------------------------------------------------------------------------

PLACES = st.lists(st.integers(0, 4), max_size=4, unique=True)


@st.composite
def sparse_record(draw: st.DrawFn, dtype: str) -> dict[str, Any]:
    """Places and values; seldom not as many of one as of the other."""
    places = draw(PLACES)
    others = draw(st.lists(st.integers(0, 2), min_size=len(places), max_size=len(places)))
    count = len(places) if draw(st.integers(0, 5)) else draw(st.integers(0, 4))
    values = draw(st.lists(VALUES[dtype], min_size=count, max_size=count))
    record = {"i": ("int64", places), "j": ("int64", others), "v": (dtype, values)}
    return draw(st.sampled_from([record, record, record, {}]))


@st.composite
def sparse_input(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(DTYPES))
    records = draw(st.lists(sparse_record(dtype), max_size=4))
    keys = draw(st.sampled_from([("i", 5), (["i"], [5]), (["i", "j"], [5, 3])]))
    features = {
        "s": tf.io.SparseFeature(keys[0], "v", tf_dtype(dtype), keys[1], draw(st.booleans()))
    }
    if draw(st.booleans()):
        features["v"] = tf.io.VarLenFeature(tf_dtype(dtype))
    return records, features


def fits(records: list[dict[str, Any]]) -> bool:
    return all(len(record["i"][1]) == len(record["v"][1]) for record in records if record)


@drawn
@given(drawn_input=sparse_input())
def test_sparse(drawn_input: Any) -> None:
    records, features = drawn_input
    serialized = [example(record) for record in records]
    if not fits(records):
        # TensorFlow compares the sums over the batch alone, and mixes the records up if they agree.
        with pytest.raises(WrongFeatureType, match="places for"):
            sr.parse_example(serialized, features)
        return
    expected = tf.io.parse_example(batch(serialized), features)
    got = sr.parse_example(serialized, features)
    for name in features:
        assert_equal(got[name], expected[name])
    for record in serialized[:1]:
        single = tf.io.parse_single_example(record, features)
        ours = sr.parse_single_example(record, features)
        for name in features:
            assert_equal(ours[name], single[name])


@pytest.mark.parametrize("place", [5, -1, 2**40])
def test_sparse_places_beyond_the_size(place: int) -> None:
    # TensorFlow gives a tensor with such a place, which fails, or worse, where it is used.
    features = {"s": tf.io.SparseFeature("i", "v", tf.float32, 5)}
    record = example({"i": ("int64", [place]), "v": ("float32", [1.0])})
    assert tf.io.parse_example(batch([record]), features)["s"].indices.numpy().tolist() == [
        [0, place]
    ]
    with pytest.raises(WrongFeatureType, match="size is 5"):
        sr.parse_example([record], features)


def test_sparse_places_that_repeat() -> None:
    features = {"s": tf.io.SparseFeature("i", "v", tf.int64, 5)}
    record = example({"i": ("int64", [3, 1, 3]), "v": ("int64", [1, 2, 3])})
    assert_equal(
        sr.parse_example([record], features)["s"],
        tf.io.parse_example(batch([record]), features)["s"],
    )


# -- RaggedFeature with partitions -----------------------------------------------------------------


@st.composite
def partitions(draw: st.DrawFn) -> Any:
    """Up to three, from the outermost in, and the records' numbers for them and of values."""
    kinds = draw(st.lists(st.sampled_from([*KEYED, "UniformRowLength"]), max_size=3))
    sizes = [draw(st.integers(1, 2)) for _ in kinds]
    parts = [
        tf.io.RaggedFeature.UniformRowLength(size)
        if kind == "UniformRowLength"
        else getattr(tf.io.RaggedFeature, kind)(f"p{number}")
        for number, (kind, size) in enumerate(zip(kinds, sizes, strict=True))
    ]
    return parts, [draw(partitioned(kinds, sizes)) for _ in range(draw(st.integers(0, 3)))]


@st.composite
def partitioned(draw: st.DrawFn, kinds: list[str], sizes: list[int]) -> dict[str, Any]:
    """Draw one record: the numbers of rows of the outermost partition, of the next, … of values."""
    record: dict[str, Any] = {}
    count = draw(st.integers(0, 3))
    for number, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        if kind == "UniformRowLength":
            count *= size
            continue
        lengths = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        if kind == "ValueRowIds" and lengths:
            lengths[-1] = max(lengths[-1], 1)  # it cannot tell of empty rows at the end
        record[f"p{number}"] = ("int64", numbers_for(kind, lengths))
        count = sum(lengths)
    record["v"] = ("int64", list(range(count)))
    return record


@drawn
@given(drawn_input=partitions(), validate=st.booleans())
def test_partitions(drawn_input: Any, validate: bool) -> None:
    parts, records = drawn_input
    spec = tf.io.RaggedFeature(tf.int64, "v", parts, tf.int64, validate)
    serialized = [example(record) for record in records]
    expected = tf.io.parse_example(batch(serialized), {"r": spec})["r"]
    got = sr.parse_example(serialized, {"r": spec})["r"]
    assert isinstance(got, sr.Ragged)
    assert_equal(got, expected)
    for record in serialized[:1]:
        single = tf.io.parse_single_example(record, {"r": spec})["r"]
        ours = sr.parse_single_example(record, {"r": spec})["r"]
        wanted = single.to_list() if hasattr(single, "to_list") else single.numpy().tolist()
        assert (ours.tolist() if isinstance(ours, np.ndarray) else ours.to_list()) == wanted


WRONG = {
    "RowSplits": [[0, 1], [1, 2], [0, 3], [0, 2, 1, 2], [0], [-1, 2]],
    "RowLengths": [[1], [3], [-1, 3], [], [1, 2**62, 2**62]],
    "RowStarts": [[1], [0, 3], [1, 0], [0, -1]],
    "RowLimits": [[1], [3], [], [2, 1], [2, 2, 1, 2], [-1, 2]],
    "ValueRowIds": [[0], [0, 0, 0], [1, 0], [-1, 0], []],
}


@pytest.mark.parametrize(
    ("kind", "numbers"), [(kind, numbers) for kind in WRONG for numbers in WRONG[kind]]
)
def test_partitions_that_do_not_fit(kind: str, numbers: list[int]) -> None:
    # One record at a time, TensorFlow refuses them if it is asked to validate. Without, and for a
    # batch even with it, values go into rows of other records.
    partition = getattr(tf.io.RaggedFeature, kind)("p")
    spec = tf.io.RaggedFeature(tf.int64, "v", [partition], tf.int64, validate=True)
    record = example({"v": ("int64", [7, 8]), "p": ("int64", numbers)})
    with pytest.raises(refusals()):
        tf.io.parse_single_example(record, {"r": spec})
    for validate in (True, False):
        asked = tf.io.RaggedFeature(tf.int64, "v", [partition], tf.int64, validate)
        with pytest.raises(WrongFeatureType, match="does not partition feature 'v'"):
            sr.parse_example([record], {"r": asked})


# -- specs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "specs",
    [
        lambda: {
            "a": tf.io.VarLenFeature(tf.int64),
            "s": tf.io.SparseFeature("a", "a", tf.float32, 5),
        },
        lambda: {
            "v": tf.io.FixedLenFeature((), tf.int64),
            "s": tf.io.SparseFeature("i", "v", tf.int64, 5),
        },
        lambda: {"v": tf.io.FixedLenFeature((), tf.int64), "r": tf.io.RaggedFeature(tf.int64, "v")},
        lambda: {
            "a": tf.io.RaggedFeature(tf.float32, "v"),
            "b": tf.io.RaggedFeature(tf.int64, "v"),
        },
        lambda: {"a": tf.io.FixedLenSequenceFeature((), tf.int64)},
        lambda: {"s": tf.io.SparseFeature(["i"], "v", tf.int64, 5)},
    ],
)
def test_specs_that_both_refuse(specs: Callable[[], dict[str, Any]]) -> None:
    features, record = specs(), example({})
    with pytest.raises(refusals()):
        tf.io.parse_example(batch([record]), features)
    with pytest.raises(ConfigError):
        sr.parse_example([record], features)


def test_specs_that_tensorflow_alone_refuses() -> None:
    # The values are the same; only TensorFlow's classes for them differ.
    features = {"a": tf.io.VarLenFeature(tf.int64), "r": tf.io.RaggedFeature(tf.int64, "a")}
    record = example({"a": ("int64", [1, 2])})
    with pytest.raises(refusals()):
        tf.io.parse_example(batch([record]), features)
    got = sr.parse_example([record], features)
    assert got["a"].to_list() == got["r"].to_list() == [[1, 2]]


@drawn
@given(junk=st.binary(max_size=30))
def test_junk_is_refused_as_protobuf_refuses_it(junk: bytes) -> None:
    # TensorFlow's own parser takes some of what protobuf refuses, such as a field of number 0.
    error = type(caught_from(tf.train.Example.FromString, b"\xff"))
    assert refuses(parse, junk, DataError) == refuses(tf.train.Example.FromString, junk, error)


def refuses(call: Any, record: bytes, *errors: type[Exception]) -> bool:
    try:
        call(record)
    except errors:
        return True
    return False


def parse(record: bytes) -> None:
    sr.parse_example([record], {"a": tf.io.VarLenFeature(tf.int64)})


def caught_from(call: Any, *args: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        call(*args)
    return caught.value


@drawn
@given(values=st.lists(st.floats(width=32, allow_subnormal=False), max_size=5))  # TensorFlow: 0
def test_half_floats_round_as_tensorflow_s(values: list[float]) -> None:
    record = example({"a": ("float32", values)})
    for dtype in (tf.float16, tf.bfloat16, tf.float64):
        cast = tf.cast(tf.constant(values, tf.float32), dtype).numpy()
        overflow = np.isinf(cast.astype(np.float32)) & np.isfinite(np.array(values, np.float32))
        if overflow.any():
            with pytest.raises(WrongFeatureType):
                sr.parse_single_example(record, {"a": sr.VarLenFeature(dtype)})
        else:
            got = sr.parse_single_example(record, {"a": sr.VarLenFeature(dtype)})["a"]
            assert got.dtype == cast.dtype
            np.testing.assert_array_equal(got.astype(np.float64), cast.astype(np.float64))


RAW_DTYPES = ["uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16"]


@pytest.mark.parametrize("name", [*RAW_DTYPES, "complex64", "uint16"])
def test_raw_bytes_decode_as_tensorflow_s(name: str) -> None:
    dtype = tf.as_dtype(name)
    data = [bytes(range(k, k + 3 * dtype.size)) for k in range(4)]
    records = [example({"a": ("bytes", [each])}) for each in data]
    got: Any = sr.parse_example(records, {"a": sr.FixedLenFeature((3,), dtype, raw=True)})["a"]
    wanted = tf.io.decode_raw(tf.constant(data), dtype)
    assert got.dtype == dtype.as_numpy_dtype
    assert got.tobytes() == wanted.numpy().tobytes()
