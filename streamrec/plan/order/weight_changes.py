"""The changes of a mix's weights while it runs: each holds from a step on, until the next one.

Their text is a part of a stream's fingerprint: JSON, as ``[[1200, {"code": 0.5, "web": 0.5}]]``.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import MalformedPosition

if TYPE_CHECKING:
    from collections.abc import Mapping

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
