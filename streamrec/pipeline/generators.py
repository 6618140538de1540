"""Random generators for the user's functions, each made from the numbers that name its place.

A Philox generator takes them as they are, as its key and its counter, so that two places never
share a sequence, and none must be saved: a run that is resumed makes the same ones again.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

RNG = "rng"
"""The name of the parameter that is given a generator."""

STREAMS = {"filter": 1, "map": 2, "transform": 3}
"""The number of each setting, so that they draw independently of each other."""
MASK = (1 << 64) - 1


def generator_for(
    setting: str, seed: int, epoch: int, place: int, part: int
) -> np.random.Generator:
    """Make the generator of a place.

    Args:
        setting: The name of the setting whose function gets it.
        seed: The seed of the stream.
        epoch: The epoch.
        place: The number of the shard; for a batch, the step.
        part: The number of the record in its shard; for a batch, the rank.
    """
    # The first word of the counter counts the blocks that are drawn.
    counter = np.array([0, epoch & MASK, place & MASK, part & MASK], np.uint64)
    key = np.array([seed, STREAMS[setting]], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def takes_generator(setting: str, function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter named ``rng`` behind its first one.

    Args:
        setting: The name of the setting, for errors.
        function: The function.
        name: Its name, for errors.

    Raises:
        ConfigError: It needs another argument, which nothing would be given for.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):  # one of C, which does not say
        return False
    if isinstance(function, partial) and RNG in function.keywords:
        return False  # it is bound to a generator of the user's
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    by_name = {one.name for one in parameters if one.kind is not inspect.Parameter.POSITIONAL_ONLY}
    for one in parameters:
        is_needed = one.default is inspect.Parameter.empty and one.kind not in variable
        if is_needed and not (one.name == RNG and RNG in by_name):
            raise ConfigError(
                f"the setting {setting!r} is {name}, and nothing is given for its parameter "
                f"{one.name!r}; if that is a random generator, call it {RNG}, else bind it with "
                "functools.partial"
            )
    return any(one.name == RNG and one.kind not in variable for one in parameters)
