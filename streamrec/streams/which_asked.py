"""The steps and the states that a question about the order names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamrec.config.arguments import count_of, plain_integer
from streamrec.errors import ConfigError, MalformedPosition
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import FIELDS, Beginning, for_rank, read_resume_point

if TYPE_CHECKING:
    from streamrec.plan.state.resume_point import ResumePoint

ENDED = "ended"
"""What a loader's state has beside a stream's."""
MOST_STEPS = 100_000
"""Steps of a call, as all their records are in the memory at once."""


def range_of(steps: object) -> range:
    """Return the steps of a call.

    Raises:
        ConfigError: They are not steps, or too many.
    """
    step = plain_integer(steps)
    found = range(step, step + 1) if isinstance(step, int) else steps
    if not isinstance(found, range) or found.step != 1 or found.start < 0:
        raise ConfigError(
            f"steps are a number from 0 up, or a range of successive ones, not {steps!r}"
        )
    if found.stop < found.start:
        raise ConfigError(f"{found} ends before it begins; give the first step, and the one behind")
    if len(found) > MOST_STEPS:
        raise ConfigError(f"these are {len(found)} steps; give at most {MOST_STEPS} at a time")
    return found


def point_in(state: Any, rank: int, world_size: int) -> ResumePoint:
    """Return the resume point of a rank in a state, or in those of all ranks."""
    if state is None:
        return Beginning()
    try:
        states = list(_states_in(state))
    except RecursionError:
        states = []
    if not states:
        raise MalformedPosition(
            "this is not a state of streamrec, nor is one in it; give what state_dict() returned, "
            "or a list of those of all ranks"
        )
    return for_rank([read_resume_point(one) for one in states], rank, world_size)


def _states_in(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the states in a checkpoint; that of a loader is a text of JSON."""
    if isinstance(data, Mapping):
        if "version" in data and ("fingerprint" in data or data.keys() <= FIELDS | {ENDED}):
            yield {name: value for name, value in data.items() if name != ENDED}
            return
        data = list(data.values())
    elif isinstance(data, str) and data.startswith("{"):
        with suppress(ValueError):
            data = [json.loads(data)]
    # Not any collection: a checkpoint has tensors, of which each number would be looked at.
    if isinstance(data, list | tuple):
        for part in data:
            yield from _states_in(part)


def world_size_of(world_size: object, state: Any) -> int:
    """Return the number of ranks of a call; ``None`` stands for that of the state, or 1.

    Raises:
        ConfigError: It is not a number from 1 up.
    """
    if world_size is not None:
        return count_of(world_size, "world_size", 1)
    try:
        points = [read_resume_point(one) for one in _states_in(state)]
    except RecursionError:
        points = []
    sizes = {point.world_size for point in points if isinstance(point, Position)}
    return sizes.pop() if len(sizes) == 1 else 1
