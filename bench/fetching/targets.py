"""The aims of streams from object stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.aims import Target
from bench.fetching.busy import HELD, MATRICES, STEPS
from bench.fetching.growth import MEMORY
from bench.measure import ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Result

STORE = "store at 50 ms and 60 MB/s a connection"
FIRST = "first batches behind the store"
NGINX = "nginx on loopback"
TAIL = "1 % of requests stall for 10 s"
STREAMS = ("async for", "for")
AHEAD = "for, engine started ahead"


def targets(results: Sequence[Result]) -> list[Target]:
    """Return the aims that could be measured."""
    found = [
        *_rates(results, STORE, 0.9),
        *_rates(results, NGINX, 0.7),
        *_first_batches(results),
        *_waste(results),
        *_busy(results),
        *_tail(results),
        *_memory(results),
    ]
    return [target for target in found if target is not None]


def _members(results: Sequence[Result], group: str, names: Sequence[str]) -> list[Result]:
    return [
        one
        for one in results
        if one.case.group.startswith(group) and one.case.name in names and one.measurements
    ]


def _rates(results: Sequence[Result], group: str, aim: float) -> list[Target | None]:
    ways = (*STREAMS, AHEAD)
    return [_share(one, "of download", aim, results) for one in _members(results, group, ways)]


def _share(one: Result, label: str, aim: float, results: Sequence[Result]) -> Target | None:
    comparison = next(held for held in one.case.comparisons if held.label == label)
    found = ratio(one, comparison, results)
    name = f"{one.case.title}: rate, {label}"
    return None if found is None else Target(name, "times", aim, found)


def _first_batches(results: Sequence[Result]) -> list[Target | None]:
    return [
        _at_most(one, "first_batch_seconds", "first batch", "s", 0.25)
        for group in (STORE, FIRST)
        for one in _members(results, f"{group}, plain", (*STREAMS, AHEAD))
    ]


def _at_most(one: Result, quantity: str, what: str, unit: str, aim: float) -> Target | None:
    found = one.median(quantity)
    name = f"{one.case.title}: {what}"
    return None if found is None else Target(name, unit, aim, found, least=False)


def _waste(results: Sequence[Result]) -> list[Target | None]:
    """Return aims for the bytes read over those used, without hedges of the mean size."""
    found: list[Target | None] = []
    for one in _members(results, STORE, STREAMS):
        read, requests = one.median("read_over_used"), one.median("requests")
        if read is not None and requests is not None:
            hedged = (one.median("hedges") or 0.0) / requests
            name = f"{one.case.title}: bytes read besides hedges, of those used"
            found.append(Target(name, "times", 1.02, read * (1 - hedged), least=False))
    return found


def _busy(results: Sequence[Result]) -> list[Target | None]:
    """Return aims for rates beside trainers, of the idle rate or of the trainer without data."""
    return [
        _share(one, label, 0.7, results)
        for group, label in ((HELD, "of idle"), (MATRICES, "of idle"), (STEPS, "of no data"))
        for one in _members(results, group, ("for",))
    ]


def _tail(results: Sequence[Result]) -> list[Target | None]:
    return [
        _at_most(one, "longest_wait_seconds", "longest wait between batches", "s", 1.0)
        for one in _members(results, TAIL, STREAMS)
    ]


def _memory(results: Sequence[Result]) -> list[Target | None]:
    measured = [one for one in results if one.case.group == MEMORY and one.measurements]
    if not measured:
        return []
    worst = max(measured, key=lambda one: one.median("beyond_budget_megabytes") or 0.0)
    return [_at_most(worst, "beyond_budget_megabytes", "beyond the budget, at most", "MB", 200)]
