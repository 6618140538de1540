"""The encoding of one mapping by the kernel, beside the encoder for all values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.example import Example, encode_noted
from tests.formats.examples.plain_mappings import MAPPINGS
from tests.kernel.conftest import IMPLEMENTATIONS

KERNELS = st.sampled_from(IMPLEMENTATIONS)
CODES = {"bytes_list": 1, "float_list": 2, "int64_list": 3}


def specified(features: dict[str, Any]) -> tuple[bytes | None, dict[str, str | None]]:
    kinds: dict[str, str | None] = {}
    try:
        return encode_noted(features, kinds.__setitem__), kinds
    except WrongFeatureType:
        return None, kinds


@given(KERNELS, MAPPINGS)
def test_the_bytes_are_those_of_the_encoder_for_all_values(
    kernel: Any, features: dict[str, Any]
) -> None:
    wanted, kinds = specified(features)
    found = kernel.encode_plain(features)
    assert found in (None, wanted)
    if found is None:
        return
    for name, feature in Example.FromString(found).features.feature.items():
        assert feature.WhichOneof("kind") == kinds[name]
    codes = {name: CODES[kind] for name, kind in kinds.items() if kind}
    assert kernel.encode_plain(features, codes) == found
    for name, code in codes.items():
        assert kernel.encode_plain(features, codes | {name: code % 3 + 1}) is None
        assert kernel.encode_plain(features, {n: codes[n] for n in codes if n != name}) is None


PLAIN: list[Any] = [
    b"x", b"", "ü", 3, -1, True, 2.5, float("inf"), [], [1, 2.5], [2**63 - 1, -(2**63)],
    ("a", b"b"), np.arange(5), np.zeros((2, 3), np.float32), np.array(1.5), np.array([], np.int8),
    np.array([200], np.uint8), np.array([-3], np.int16), b"x" * 70_000, [b"y" * 300] * 300,
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: ascii(value)[:20])
def test_plain_values_take_the_fast_way(kernel: Any, value: Any) -> None:
    for features in ({"a": value}, {"a": value, "": 1}):
        found = kernel.encode_plain(features)
        assert found == specified(features)[0] or kernel.__name__.endswith("reference")


@pytest.mark.parametrize(
    "features",
    [
        {"a": None}, {1: 2}, {"a": 2**63}, {"a": 1e39}, {"a": [b"x", 1]}, {"\ud800": 1},
        {"a": "\ud800"}, {"a": np.array([1], ">i4")}, {"a": np.array(["x"])}, {"a": [None]},
        {"a": np.array([2**64 - 1], np.uint64)}, {"a": np.array([1e39])}, {"a": np.ma.array([1])},
        {"a": np.array([object()])}, {"a": np.arange(4)[::2]}, {"a": np.arange(4).reshape(2, 2).T},
        {"a": [2**70, 1.5, 10**400]}, {"a": ["\ud800"]}, {"a": memoryview(b"x")},
    ],
    ids=lambda features: ascii(features)[:16],
)  # fmt: skip
def test_others_are_left_to_the_encoder_for_all_values(
    kernel: Any, features: dict[Any, Any]
) -> None:
    assert kernel.encode_plain(features) is None


def test_many_features(kernel: Any) -> None:
    features = {f"feature {n}": n for n in range(1000)}
    assert kernel.encode_plain(features) in (None, specified(features)[0])
    assert kernel.encode_plain(features, dict.fromkeys(features, 3)) in (
        None,
        specified(features)[0],
    )


def test_no_features(kernel: Any) -> None:
    assert kernel.encode_plain({}) in (None, b"")


def test_codes_that_are_none(kernel: Any) -> None:
    if kernel.__name__.endswith("native"):
        with pytest.raises(TypeError, match="codes must be a dict"):
            kernel.encode_plain({}, [])
