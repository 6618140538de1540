"""What the settings of a mix may say: weights and their schedule, and how it ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Schedule", "check_ends", "check_schedule"]

Schedule: TypeAlias = list[tuple[int, dict[str, float]]]


def check_schedule(weights: Schedule, names: set[str]) -> None:
    """Refuse weights that leave a question open.

    Raises:
        ValueError: What they do not say.
    """
    starts = [start for start, _ in weights]
    if starts[0] or starts != sorted(set(starts)):
        raise ValueError(f"begins at the records {starts}; the first is 0, and each comes later")
    for start, parts in weights:
        if parts.keys() != names:
            raise ValueError(
                f"names {', '.join(sorted(parts)) or 'nothing'} from record {start} on; it should "
                f"be {', '.join(sorted(names))}"
            )
        if not 0 < sum(parts.values()) < math.inf:
            raise ValueError(f"is {parts} from record {start} on; at least one is to be above 0")


def check_ends(choice: str, known: Mapping[str, Any]) -> None:
    """Refuse a mix of which nobody can say where an epoch ends.

    Raises:
        ValueError: What would serve.
    """
    epochs, steps = known.get("epochs", 1), known.get("steps_per_epoch")
    if choice == "repeat" and epochs is not None and steps is None:
        raise ValueError(
            'is "repeat", so the mix has no end by itself: set steps_per_epoch, or epochs to None, '
            'or exhausted to "stop" or "rest"'
        )
    if choice != "repeat" and (epochs != 1 or steps is not None):
        raise ValueError(
            f"is {choice!r}, so a run is one epoch as long as the components are: leave out epochs "
            'and steps_per_epoch, and iterate again for the next, or set exhausted to "repeat"'
        )
    weights: Schedule = known.get("weights") or []
    if choice == "rest" and not all(all(parts.values()) for _, parts in weights):
        raise ValueError('is "rest", and a component of weight 0 would never end: give it some')
