from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = sr.encode_example({"id": 7})
SPECS = {"id": sr.FixedLenFeature((), "int64")}


@pytest.mark.parametrize("wrong", ["text", 7, None, [RECORD]])
def test_what_is_not_bytes_is_told(wrong: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: sr.parse_example([RECORD, wrong], SPECS),
        lambda: sr.parse_single_example(wrong, SPECS),
        lambda: sr.parse_single_sequence_example(wrong, SPECS),
        lambda: sr.parse_sequence_example([wrong], SPECS),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"serialized must hold bytes, not an? \w+;"):
            call()


def tensor(held: Any) -> Any:
    """As one of TensorFlow."""
    return SimpleNamespace(numpy=lambda: held)


@pytest.mark.parametrize("given", [np.array(RECORD, object), tensor(RECORD), np.bytes_(RECORD)])
def test_one_record(given: Any) -> None:
    assert sr.parse_single_example(given, SPECS) == {"id": 7}


@pytest.mark.parametrize(
    "given", [tensor(np.array([RECORD] * 2, object)), [tensor(RECORD), bytearray(RECORD)]]
)
def test_a_batch(given: Any) -> None:
    assert sr.parse_example(given, SPECS)["id"].tolist() == [7, 7]
