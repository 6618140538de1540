"""The point from which a stream reads on: a saved position, the beginning of an epoch, or a step.

The beginning of an epoch needs no coordinates, so its state is the same for every dataset, rank and
world size: ``{"version": 3, "step": 0, "epoch": 3}``. The same is true of a step from the very
start, ``{"version": 3, "step": 500}``, which only an index can find.

And the changes of a mix's weights while it runs: each holds from a step on, until the next one.
Their text is a part of a stream's fingerprint: JSON, as ``[[1200, {"code": 0.5, "web": 0.5}]]``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamrec.errors import MalformedPosition
from streamrec.plan.state.position import LARGEST, LAST_EPOCH, VERSION, Position, check_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST_STEP = (1 << 48) - 1
MOST_CHANGES = 1000
"""The most changes of a stream: all of them are in each of its states."""


class WeightChange(NamedTuple):
    """Weights that hold from a step on."""

    step: int
    weights: Mapping[str, float]
    """The weight of each component by its name."""


def read_changes(text: Any) -> list[WeightChange]:
    """Read the text of changes, which is checked as untrusted input; an empty one has none.

    Raises:
        MalformedPosition: The text is something else.
    """
    if text == "":
        return []
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = None
    pairs = found if isinstance(found, list) and len(found) <= MOST_CHANGES else [None]
    changes = [_change_of(pair) for pair in pairs]
    steps = [change.step for change in changes]
    if not steps or steps != sorted(set(steps)) or text != _text_of(changes):
        raise _malformed()
    return changes


def change_from(text: str, step: int, weights: Mapping[str, float]) -> str:
    """Return the text of changes with a further one, which takes the place of all later ones.

    Raises:
        MalformedPosition: The text is not one of changes, or has too many of them.
    """
    changes = [change for change in read_changes(text) if change.step < step]
    if len(changes) == MOST_CHANGES:
        raise MalformedPosition(
            f"the weights of this stream have changed {MOST_CHANGES} times, and its state holds "
            "no more changes; begin a new stream with the present weights"
        )
    return _text_of([*changes, _change_of([step, dict(weights)])])


def _text_of(changes: list[WeightChange]) -> str:
    """Return the text of some changes, which is the same for the same changes."""
    return json.dumps([[step, dict(weights)] for step, weights in changes], sort_keys=True)


def _change_of(pair: Any) -> WeightChange:
    step, weights = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
    if type(step) is not int or not 0 <= step <= LARGEST_STEP or not isinstance(weights, dict):
        raise _malformed()
    if not all(map(_is_weight, weights.values())) or not 0 < sum(weights.values()) < math.inf:
        raise _malformed()
    return WeightChange(step, weights)


def _is_weight(number: Any) -> bool:
    return type(number) is float and 0 <= number < math.inf


def _malformed() -> MalformedPosition:
    return MalformedPosition(
        "the changes of weights in the state cannot be read; give the state as it was saved"
    )


FIELDS = {"version", "epoch", "step", "mix_changes"}


@dataclass(frozen=True)
class Beginning:
    """The beginning of an epoch, or a step from the very start, of any dataset and order."""

    epoch: int = 0
    step: int = 0
    """Steps from the very start; 0 beside an epoch, from whose beginning steps then count."""

    mix_changes: str = ""
    """The changes of a mix's weights, as in a fingerprint."""

    def __post_init__(self) -> None:
        read_changes(self.mix_changes)
        named = ("epoch", self.epoch, LAST_EPOCH), ("step", self.step, LARGEST)
        for name, value, most in named:
            # By type(), since True is an int.
            if type(value) is not int or not 0 <= value <= most:
                raise MalformedPosition(
                    f"there is no {name} {value!r}; give a number from 0 to {most}"
                )
        if self.epoch and self.step:
            raise MalformedPosition(
                f"epoch {self.epoch} and step {self.step} are two beginnings; give one, not both"
            )

    def with_changes(self, mix_changes: str) -> Beginning:
        """Return the same place in a stream with other changes of weights."""
        return replace(self, mix_changes=mix_changes)

    @property
    def run_epoch(self) -> int:
        """The epoch at which the run begins, as far as it is known."""
        return self.epoch

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        named = {"epoch": self.epoch, "mix_changes": self.mix_changes}
        # Programs count on from the step of a state, so each state has one.
        more = {name: value for name, value in named.items() if value}
        return {"version": VERSION, "step": self.step, **more}


ResumePoint: TypeAlias = "Position | Beginning"


def read_resume_point(data: Any) -> ResumePoint:
    """Decode the data of ``to_dict``, which is checked as untrusted input.

    Raises:
        OtherVersion: Another version of streamrec saved it.
        MalformedPosition: The data is not a state of streamrec.
    """
    check_version(data)
    if data.keys() <= FIELDS:
        return Beginning(data.get("epoch", 0), data.get("step", 0), data.get("mix_changes", ""))
    return Position.from_dict(data)


def for_rank(resume_points: Sequence[ResumePoint], rank: int, world_size: int) -> ResumePoint:
    """Return the resume point of a rank, from its own or from those of all former ranks.

    Raises:
        MalformedPosition: The points are not those of all ranks at one step.
        ConfigError: The world size does not divide the lanes.
    """
    positions = [point for point in resume_points if isinstance(point, Position)]
    if not positions and len(set(resume_points)) == 1:
        return resume_points[0]
    if len(positions) < len(resume_points):
        raise MalformedPosition(
            "some of the states stand at the beginning of an epoch and others do not; give those "
            "of all ranks, saved after the same step"
        )
    one = positions[0]
    if len(positions) == 1 and (one.rank, one.world_size) == (rank, world_size):
        return one
    return Position.merge(positions, rank=rank, world_size=world_size)
