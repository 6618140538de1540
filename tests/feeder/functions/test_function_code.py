from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from streamrec.feeder.functions.function_code import is_generator


def named(name: str, module: str) -> Any:
    """Return an object whose class has this name, in a module of this name."""
    return type(name, (), {"__module__": module})()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.random.default_rng(1), True),
        (np.random.RandomState(1), True),
        (np.random.PCG64(1), True),
        (random.Random(1), True),
        (named("Generator", "torch._C"), True),
        (named("Generator", "own.plants"), False),
        (named("Tensor", "torch"), False),
        (named("Generator", "torchless"), False),
        (1, False),
    ],
)
def test_generators_of_libraries_are_known(value: Any, expected: bool) -> None:
    assert is_generator(value) is expected
