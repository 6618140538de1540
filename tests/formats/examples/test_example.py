from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.example import (
    Example,
    Feature,
    Features,
    SequenceExample,
    encode_example,
)
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.kernel.messages import MESSAGES
from tests.data.expected import SHARDS, decode_feature, shard_bytes

pytestmark = pytest.mark.both_kernels

BytesList, FloatList, Int64List = (MESSAGES[f"{kind}List"] for kind in ("Bytes", "Float", "Int64"))
FeatureList, FeatureLists = MESSAGES["FeatureList"], MESSAGES["FeatureLists"]
EXAMPLE_SHARDS = [name for name in SHARDS if not name.startswith("sizes")]


class Color(enum.Enum):
    RED = 1
    NAME = "red"


class Level(enum.IntEnum):
    HIGH = 3


def encoded(value: Any) -> tuple[str | None, list[Any]]:
    """Return the kind and the values of an encoded feature."""
    feature = Example.FromString(encode_example({"x": value})).features.feature["x"]
    kind = feature.WhichOneof("kind")
    return kind, list(getattr(feature, kind).value) if kind else []


class Tensor:
    """A stand-in for a tensor of another library."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, dtype)


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (b"a\0", [b"a\0"]),
        ("käse", ["käse".encode()]),
        (bytearray(b"x"), [b"x"]),
        (memoryview(b"xyz")[1:], [b"yz"]),
        (["a", b"b", bytearray(b"c")], [b"a", b"b", b"c"]),
        ([[b"a\0", b"b"], [b"c", b"d\0"]], [b"a\0", b"b", b"c", b"d\0"]),
        (np.array(["a", "ü"]), [b"a", "ü".encode()]),
        (np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (np.array([b"a\0", "ü"], object), [b"a\0", "ü".encode()]),
        (np.str_("a"), [b"a"]),
        (Color.NAME, [b"red"]),
        (Tensor([b"a"]), [b"a"]),
    ],
)
def test_strings(value: Any, values: list[bytes]) -> None:
    assert encoded(value) == ("bytes_list", values)


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (3, [3]),
        (True, [1]),
        ([True, 2], [1, 2]),
        (-(2**63), [-(2**63)]),
        ([2**63 - 1, -1], [2**63 - 1, -1]),
        (range(3), [0, 1, 2]),
        ((1, 2), [1, 2]),
        ([[1, 2], [3, 4]], [1, 2, 3, 4]),
        (Color.RED, [1]),
        ([Color.RED, Level.HIGH], [1, 3]),
        (np.uint8(200), [200]),
        ([np.int8(-3), np.uint64(5)], [-3, 5]),
        (np.array([True, False]), [1, 0]),
        (np.arange(6, dtype=np.int16).reshape(2, 3), [0, 1, 2, 3, 4, 5]),
        (np.array([2**63 - 1], np.uint64), [2**63 - 1]),
        (np.array([1, 2, 3, 4])[::2], [1, 3]),
        (np.arange(4).reshape(2, 2).T, [0, 2, 1, 3]),
        (np.array([], np.int32), []),
        (Tensor(7), [7]),
        ([Tensor(7), 8], [7, 8]),
    ],
)
def test_integers(value: Any, values: list[int]) -> None:
    assert encoded(value) == ("int64_list", values)


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (0.5, [0.5]),
        ([1, 2.5], [1.0, 2.5]),
        (np.float16(0.5), [0.5]),
        (np.array([0.25, 0.5], np.float64), [0.25, 0.5]),
        ([float("inf"), -float("inf")], [np.inf, -np.inf]),
        (0.1, [float(np.float32(0.1))]),
        (1e-60, [0.0]),
        (np.array([]), []),
        ([np.float32(1), 2], [1.0, 2.0]),
    ],
)
def test_floats(value: Any, values: list[float]) -> None:
    assert encoded(value) == ("float_list", values)


def test_nan_stays_nan() -> None:
    kind, (value,) = encoded(float("nan"))
    assert kind == "float_list"
    assert value != value


def test_an_empty_list_has_no_kind() -> None:
    assert encoded([]) == (None, [])
    assert encoded(()) == (None, [])
    assert encoded(np.array([], object)) == (None, [])


def test_feature_messages_are_taken_as_they_are() -> None:
    assert encoded(Feature(int64_list=Int64List(value=[5]))) == ("int64_list", [5])
    assert encoded(Feature(bytes_list=BytesList())) == ("bytes_list", [])
    assert encoded(Feature(float_list=FloatList(value=[0.5]))) == ("float_list", [0.5])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "None is not a value; leave the feature out"),
        ([1, None], "None is not a value; leave the feature out"),
        ({"a": 1}, "a dict is not a value"),
        ({1, 2}, "a set is not a value"),
        (iter([1]), "iterator is not a value"),
        (1j, "a complex is not a value"),
        (object(), "an object is not a value"),
        ([1, "a"], "mixes strings and numbers"),
        ([[1, 2], [3]], "."),
        (2**63, "beyond the range of int64"),
        ([1, -(2**63) - 1], "beyond the range of int64"),
        ([2**64, 1], "beyond the range of int64"),
        (np.array([2**63], np.uint64), "beyond the range of int64"),
        (1e39, "beyond the range of float32"),
        (np.array([1.0, -1e39]), "beyond the range of float32"),
        ([10**400, 0.5], "."),
        (np.array([1j]), "an array of complex128"),
        (np.array(["2020-01-01"], "datetime64[D]"), "an array of datetime64"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_refusals_name_the_feature(value: Any, reason: str) -> None:
    with pytest.raises(
        WrongFeatureType, match=f"feature x: the value cannot be encoded: .*{reason}"
    ):
        encode_example({"good": 1, "x": value})


def test_a_name_is_a_str() -> None:
    with pytest.raises(WrongFeatureType, match="a feature's name must be a str, not 3"):
        encode_example({3: 1})  # type: ignore[dict-item]


def test_no_features_are_an_empty_message() -> None:
    assert Example.FromString(encode_example({})) == Example()


VALUES = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1),
    st.lists(st.binary(), min_size=1),
)


@given(features=st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_round_trip(features: dict[str, Any]) -> None:
    message = Example.FromString(encode_example(features)).features.feature
    back = {name: getattr(item, item.WhichOneof("kind")).value for name, item in message.items()}
    assert {name: list(values) for name, values in back.items()} == features


@given(features=st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_equal_values_give_equal_bytes(features: dict[str, Any]) -> None:
    assert encode_example(features) == encode_example(dict(reversed(features.items())))


def records(name: str) -> list[bytes]:
    view = np.frombuffer(shard_bytes(name), np.uint8)
    blocks, _ = FrameScanner(url=name).scan(view, more=False)
    return [
        view[offset : offset + length].tobytes()
        for block in blocks
        for offset, length in zip(block.offsets.tolist(), block.lengths.tolist(), strict=True)
    ]


class TestTensorFlow:
    @pytest.mark.parametrize("name", EXAMPLE_SHARDS)
    def test_messages_read_what_tensorflow_reads(self, name: str) -> None:
        for record, expected in zip(records(name), SHARDS[name], strict=True):
            features = Example.FromString(record).features.feature
            assert sorted(features) == sorted(expected["features"])
            for feature, content in expected["features"].items():
                assert features[feature].WhichOneof("kind") == (next(iter(content or {}), None))

    @pytest.mark.parametrize("name", [name for name in EXAMPLE_SHARDS if "pictures" not in name])
    def test_encodes_the_bytes_that_tensorflow_wrote(self, name: str) -> None:
        for record, expected in zip(records(name), SHARDS[name], strict=True):
            features = {
                name: again(content) if content else Feature()
                for name, content in expected["features"].items()
            }
            assert encode_example(features) == record


def again(content: dict[str, Any]) -> Any:
    """Return a value that encodes to a list; a list without values needs its type."""
    values = decode_feature(content)
    return values if len(values) or isinstance(values, np.ndarray) else Feature(bytes_list={})


def test_sequence_examples_hold_lists_of_features() -> None:
    steps = FeatureList(feature=[Feature(int64_list=Int64List(value=[i])) for i in range(2)])
    message = SequenceExample(
        context=Features(feature={"id": Feature(bytes_list=BytesList(value=[b"x"]))}),
        feature_lists=FeatureLists(feature_list={"steps": steps}),
    )
    assert SequenceExample.FromString(message.SerializeToString()) == message
