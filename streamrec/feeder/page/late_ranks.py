"""The ranks that hold their jobs back, by what feeders know of their subscriptions."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from streamrec.feeder.page.samples import LATELY
from streamrec.report.late import describe_late, late_rank
from streamrec.report.pace import StreamPace
from streamrec.report.words import clip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST_NAME = 80
"""The most characters of a dataset's name in a sentence."""

log = logging.getLogger("streamrec.feeder")


def late_ranks(subscriptions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence about each job of which one rank waits much longer than the others.

    The ranks of a job read one dataset, and know the same number of ranks.

    Args:
        subscriptions: The subscriptions of a snapshot that has samples, or of several feeders.
    """
    jobs: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for each in subscriptions:
        # Missing: it has just begun, or an older feeder serves it.
        if each.get("lately") is not None:
            jobs.setdefault((each["dataset"], each["world_size"]), {})[each["rank"]] = each
    return [line for ranks in jobs.values() if (line := _describe(ranks)) is not None]


class LateLog:
    """A log of the ranks that hold their jobs back, once in half a minute.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told = -LATELY

    def look(self, snapshot: Mapping[str, Any]) -> None:
        """Log the ranks that are late in a snapshot, unless some were logged just before."""
        now = self._clock()
        lines = late_ranks(snapshot["subscriptions"]) if now >= self._told + LATELY else []
        for line in lines:
            self._told = now
            log.warning("%s", line)


def _describe(ranks: Mapping[int, Mapping[str, Any]]) -> str | None:
    paces = {rank: _pace(each["lately"]) for rank, each in ranks.items()}
    late = late_rank(paces)
    if late is None:
        return None
    dataset = clip(ranks[late]["dataset"], MOST_NAME)
    return f"{dataset}: {describe_late(late, ranks[late]['peer'], paces)}"


def _pace(lately: Mapping[str, Any]) -> StreamPace:
    waits = {stage: spent / lately["seconds"] for stage, spent in lately["waits"].items()}
    return StreamPace(seconds=lately["seconds"], waited=lately["stalled"], waits=waits)
