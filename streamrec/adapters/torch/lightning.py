"""The part of Lightning that concerns a loader: it reads ahead, and it evaluates.

Where a loader's length is not known, Lightning takes one batch more, to see which is the last. A
state of what was taken would leave that batch out. Its loops of validation, tests and predictions
break off where a limit says so, as the sanity check does, and expect the same batches next time.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

from streamrec.flow import callers

__all__ = ["MOST", "Fetcher", "batches_waiting", "fetcher", "is_evaluating"]
PACKAGES = ("lightning.pytorch.loops", "pytorch_lightning.loops")
FETCHERS = ("fetchers._DataFetcher",)
EVALUATIONS = ("evaluation_loop._EvaluationLoop", "prediction_loop._PredictionLoop")
MOST = 9
"""One more than the most batches that are looked back; Lightning takes one ahead."""

Fetcher: TypeAlias = Any
"""Lightning's fetcher, or ``None``."""


def fetcher() -> Fetcher:
    """Find the fetcher of Lightning that calls, in this thread."""
    return _caller(FETCHERS)


def is_evaluating() -> bool:
    """Return whether a loop of Lightning that evaluates calls, in this thread."""
    return _caller(EVALUATIONS) is not None


def _caller(names: tuple[str, ...]) -> Any:
    """Return the nearest caller whose ``self`` is of one of Lightning's classes."""
    places = [f"{package}.{name}".rsplit(".", 1) for package in PACKAGES for name in names]
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in places]
    present = tuple(kind for kind in kinds if kind is not None)
    if not present:
        return None
    return callers.nearest(*present)


def batches_waiting(fetcher: Fetcher) -> int:
    """Return how many batches a fetcher has taken, and not handed on."""
    return len(getattr(fetcher, "batches", ()))
