"""Times one of the ways in which a reader reads a dataset."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from bench.stopwatch import Stopwatch
from bench.warming import warm_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Arguments = dict[str, Any]


def time_way(
    ways: Mapping[str, Callable[[Arguments], Iterable[Any]]],
    count: Callable[[Any], tuple[int, int]],
    alone: Mapping[str, Callable[[Arguments], Iterable[Any]]] | None = None,
) -> None:
    """Read in the way that the command line's arguments name, and print the report.

    Args:
        ways: Functions that return the batches, by name. All modules they need are imported.
        count: Returns the number of a batch's records and the sum of their labels.
        alone: More ways, whose batches are in memory before the time begins.
    """
    arguments = json.loads(sys.argv[1])
    way = arguments["way"]
    ready = (alone or {}).get(way, _nothing)(arguments)
    watch = Stopwatch(arguments["companions"])
    warm_memory()
    watch.start()
    batches = ways[way](arguments) if way in ways else ready  # kept: its workers run at the stop
    for batch in batches:
        watch.take(*count(batch))
    watch.stop()
    watch.print()


def _nothing(_: Arguments) -> Iterable[Any]:
    return ()
