from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from streamrec.errors import ConfigError
from streamrec.pipeline.generators import generator_for, takes_generator

MAP = 2


def test_a_generator_is_philox_by_key_and_counter() -> None:
    """The documentation says how, so that others can make the same one."""
    theirs = np.random.Generator(np.random.Philox(key=[7, MAP], counter=[0, 3, 5, 11]))
    ours = generator_for("map", 7, epoch=3, place=5, part=11)
    assert ours.integers(1 << 62, size=9).tolist() == theirs.integers(1 << 62, size=9).tolist()


def test_each_number_gives_another_sequence() -> None:
    places: list[Any] = [("map", 7, 3, 5, 11), ("filter", 7, 3, 5, 11)]
    places += [("map", 8, 3, 5, 11), ("map", 7, 4, 5, 11), ("map", 7, 3, 6, 11)]
    places += [("map", 7, 3, 5, 12), ("map", 7, 5, 3, 11), ("map", (1 << 63) - 1, 0, -1, -1)]
    draws = [generator_for(*place).integers(1 << 62, size=64).tolist() for place in places]
    assert len({number for draw in draws for number in draw}) == 64 * len(places)


class Jitter:
    def __call__(self, columns: Any, rng: Any) -> Any:
        return columns

    def method(self, columns: Any, *, rng: Any = None) -> Any:
        return columns


def test_a_parameter_named_rng_is_given_a_generator() -> None:
    def bound(columns: Any, strength: float, rng: Any) -> Any:
        return columns

    yes: list[Any] = [lambda c, rng: c, lambda c, rng=None: c, Jitter(), Jitter().method]
    yes += [partial(bound, strength=3.0), lambda c, *, rng: c, lambda *c, rng: c]
    assert [takes_generator("map", function, "f") for function in yes] == [True] * len(yes)


def test_others_are_not() -> None:
    no: list[Any] = [
        lambda c: c,
        dict,
        len,
        lambda c, *rest: c,
        lambda c, k=3: c,
        lambda **rng: rng,
    ]
    no += [partial(Jitter(), rng=np.random.default_rng(3)), lambda rng: rng]
    assert [takes_generator("map", function, "f") for function in no] == [False] * len(no)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda columns, generator: columns, "generator"),
        (lambda rng, columns: columns, "columns"),
        (lambda columns, rng, strength: columns, "strength"),
        (lambda columns, rng, /: columns, "rng"),
    ],
)
def test_a_parameter_that_nothing_is_given_for(function: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'map' is m:f, and nothing is .* parameter '{name}';"):
        takes_generator("map", function, "m:f")
