"""Checks of the settings of a mix: its weights, their schedule, and its end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Schedule", "check_ends", "check_schedule"]

Schedule: TypeAlias = list[tuple[int, dict[str, float]]]


def check_schedule(weights: Schedule, names: set[str]) -> None:
    """Refuse weights that do not say, for every record, how much of each component is read.

    The messages go on after "the setting 'weights' ", as all of :mod:`streamrec.config` do.

    Raises:
        ValueError: The stages do not begin at record 0 and rise, or one of them has other
            components than ``names``, or no finite sum above 0.
    """
    starts = [start for start, _ in weights]
    if starts[0] or starts != sorted(set(starts)):
        raise ValueError(
            f"has stages that begin at the records {starts}; begin the first at 0, and each other "
            "behind the one before it"
        )
    for start, parts in weights:
        if parts.keys() != names:
            raise ValueError(
                f"names {', '.join(sorted(parts)) or 'nothing'} from record {start} on; name every "
                f"component: {', '.join(sorted(names))}"
            )
        if not 0 < sum(parts.values()) < math.inf:
            raise ValueError(
                f"is {parts} from record {start} on, which cannot be divided; give finite weights, "
                "and at least one above 0"
            )


def check_ends(choice: str, known: Mapping[str, Any]) -> None:
    """Refuse a mix whose settings do not say where an epoch ends.

    The messages go on after "the setting 'exhausted' ".

    Raises:
        ValueError: The settings in ``known`` do not go with this ``choice``.
    """
    epochs, steps = known.get("epochs", 1), known.get("steps_per_epoch")
    if choice == "repeat" and epochs is not None and steps is None:
        raise ValueError(
            'is "repeat", so the mix has no end by itself; set steps_per_epoch, or epochs to None, '
            'or exhausted to "stop" or "rest"'
        )
    if choice != "repeat" and (epochs != 1 or steps is not None):
        raise ValueError(
            f"is {choice!r}, so a run is one epoch that ends with the components' records; leave "
            "out epochs and steps_per_epoch and iterate again for the next epoch, or set exhausted "
            'to "repeat"'
        )
    weights: Schedule = known.get("weights") or []
    if choice == "rest" and not all(all(parts.values()) for _, parts in weights):
        raise ValueError(
            'is "rest", but a component of weight 0 would never end; give it a weight above 0, or '
            "leave it out of the mix"
        )
