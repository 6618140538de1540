"""Histograms of the times of requests, as plain numbers that add up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bounds of the buckets in seconds; one more bucket has no bound. A store in the same
region answers in 10 to 100 ms; what takes 30 s has been hedged or cut long before."""

Tree: TypeAlias = Mapping[str, Any]
"""Numbers, lists of numbers of one length, and further trees, by name."""


class Histogram:
    """A histogram of seconds with fixed buckets."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the counts of the buckets, and the sum of the seconds."""
        return {"counts": list(self.counts), "sum": self.total}


class Timings:
    """The times of requests by kind of store and operation (``list`` or ``read``)."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], tuple[Histogram, Histogram]] = {}

    def observe(self, store: str, operation: str, first_byte: float, duration: float) -> None:
        """Count a request that succeeded.

        Args:
            store: The kind of the store: ``s3``, ``gcs``, ``http``, ``file``, ...
            operation: ``"list"`` or ``"read"``.
            first_byte: Seconds from the request to the first byte, or name, of the answer.
            duration: Seconds from the request to the end of the answer.
        """
        key = store, operation
        if key not in self._of:
            self._of[key] = Histogram(), Histogram()
        first, whole = self._of[key]
        first.observe(first_byte)
        whole.observe(duration)

    def to_dict(self) -> dict[str, Any]:
        """Return all histograms: store, operation, ``first_byte`` or ``duration``."""
        tree: dict[str, Any] = {}
        for (store, operation), (first, whole) in list(self._of.items()):
            times = {"first_byte": first.to_dict(), "duration": whole.to_dict()}
            tree.setdefault(store, {})[operation] = times
        return tree


def quantile(counts: Sequence[int], part: float) -> float | None:
    """Return the seconds in which a part of the requests was done; ``None`` without any.

    Args:
        counts: The counts of a histogram's buckets; negative ones count as 0.
        part: 0.5 for the median.
    """
    target = part * sum(max(count, 0) for count in counts)
    if not target:
        return None
    for low, high, count in zip((0.0, *BOUNDS), (*BOUNDS, BOUNDS[-1]), counts, strict=True):
        if count >= target:
            # Within a bucket the times are taken as evenly spread, as Prometheus does.
            return low + (high - low) * target / count
        target -= max(count, 0)
    return BOUNDS[-1]


def first_bytes_of(timings: Mapping[str, Any]) -> list[int]:
    """Return the histogram of the first bytes of reads, over all stores; empty without a read.

    Args:
        timings: The times as :meth:`Timings.to_dict` returns them.
    """
    reads = add_up(store["read"] for store in timings.values() if "read" in store)
    counts: list[int] = reads["first_byte"]["counts"] if reads else []
    return counts


def growth(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the counters that have grown, and by how much."""
    grown = {name: total - before.get(name, 0.0) for name, total in now.items()}
    return {name: rise for name, rise in grown.items() if rise > 0}


def add_up(trees: Iterable[Tree]) -> dict[str, Any]:
    """Add up trees of numbers, name by name and element by element."""
    total: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            # A copy: the sum must not be one of its parts.
            total[name] = _sum(total[name], value) if name in total else _copy(value)
    return total


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return add_up((one, other))
    if isinstance(one, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return one + other


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return add_up((value,))
    return list(value) if isinstance(value, list) else value
