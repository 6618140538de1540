"""Streams over more and more shards, and their memory over settings and shards of all sizes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.datasets import LABELS
from bench.fetching.scene import BATCH_SIZE, FOR, WAYS
from bench.measure import Case, Failure
from bench.services import STORE_KEYS
from streamrec.config import DatasetSettings, validate
from streamrec.config.memory_budget import memory_budget

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.datasets import Dataset
    from bench.fetching.scene import Way
    from bench.services import Served

__all__ = ["COUNTS", "GROWTH", "MEMORY", "Shards", "footprints", "growing", "judge_footprint"]

GROWTH = "many shards"
MEMORY = "memory"
COUNTS = (10, 1_000, 100_000)
WINDOWS = {"64MiB": "8MiB", "256MiB": "32MiB", "1GiB": "128MiB"}
"""The shuffle window for each budget."""
LANES = (1, 48, 192)
TIMES_BUDGET = 4
"""A stream reads so many times its budget while its memory is watched."""


@dataclass(frozen=True)
class Shards:
    """A bucket of made shards.

    Args:
        bucket: Its name.
        template: What the bytes are of.
        objects: How many shards.
        copies: How often a file of the template stands in each; more than once: only the first.
    """

    bucket: str
    template: Dataset
    objects: int
    copies: int = 1

    @property
    def name(self) -> str:
        """Of each shard, to be formatted with its number."""
        return "shard-{:06}.tfrecord"

    @property
    def templates(self) -> int:
        """How many of the template's files are used."""
        return self.template.shards if self.copies == 1 else 1

    @property
    def shard_bytes(self) -> int:
        """Of one."""
        return self.template.nbytes // self.template.shards * self.copies

    @property
    def per_template(self) -> int:
        """Records of a file of the template."""
        return self.template.records // self.template.shards

    @property
    def records(self) -> int:
        """Of all shards."""
        return self.per_template * self.copies * self.objects

    @property
    def recipe(self) -> dict[str, Any]:
        """For the store."""
        paths = [str(path) for path in self.template.paths[: self.templates]]
        name = {"name": self.name, "objects": self.objects, "copies": self.copies}
        return {"templates": paths, **name}

    def order(self, way: Way, most_records: int | None, *, listed: bool) -> dict[str, Any]:
        """For the reader; ``listed``: by a glob, or else by their names."""
        url = f"s3://{self.bucket}/"
        return {
            "source": f"{url}*",
            "names": None if listed else url + self.name,
            "shards": self.objects,
            "templates": self.templates,
            "per_template": self.per_template,
            "labels": LABELS,
            "most_records": most_records,
            "features": self.template.features,
            "batch_size": BATCH_SIZE,
            "loop": way.loop,
            "engine": way.engine,
            "settings": {},
        }


def growing(buckets: list[Shards], store: Served) -> Iterator[Case]:
    """The first batch of ever more shards, found by listing or named."""
    for way, listed, shards in itertools.product((WAYS[0], FOR), (True, False), buckets):
        order = shards.order(way, 1, listed=listed)
        group = f"{GROWTH}, {way.name}, {'a glob' if listed else 'a list of names'}"
        yield _case(group, f"{shards.objects:,}", order, store)


def footprints(buckets: list[Shards], store: Served, most_bytes: float) -> Iterator[Case]:
    """All budgets, lanes and sizes of shards, shuffled and not; and the defaults, with ``for``."""
    for shards in buckets:
        for budget, lanes, shuffle in itertools.product(WINDOWS, LANES, (False, True)):
            settings = {"memory_budget": budget, "lanes": lanes, "shuffle": shuffle}
            settings["shuffle_window"] = WINDOWS[budget]
            yield _footprint(shards, WAYS[0], settings, store, most_bytes)
        yield _footprint(shards, FOR, {}, store, most_bytes)


def _footprint(
    shards: Shards, way: Way, settings: dict[str, Any], store: Served, most_bytes: float
) -> Case:
    budget = settings.get("memory_budget", "default")
    lanes = settings.get("lanes", "auto")
    shuffled = ", shuffled" if settings.get("shuffle") else ""
    looped = "" if settings else ", for"
    size = f"{shards.shard_bytes / 1e6:,.0f} MB"
    name = f"{budget} budget, {lanes} lanes, shards of {size}{shuffled}{looped}"
    plain = memory_budget(validate(DatasetSettings, {"source": "s3://x", **settings}))
    most_bytes = min(most_bytes, TIMES_BUDGET * plain)
    most = round(most_bytes / shards.shard_bytes * shards.per_template * shards.copies)
    order = shards.order(way, min(most, shards.records), listed=True)
    order = {**order, "settings": settings, "budget": plain}
    return _case(MEMORY, name, order, store)


def _case(group: str, name: str, order: Mapping[str, Any], store: Served) -> Case:
    options = {"endpoint_url": store.endpoint, **STORE_KEYS}
    return Case(
        group,
        name,
        "bench.readers.footprint",
        {**order, "storage_options": options},
        companions={"store": store.pid},
        ledger=_WithRanges(store),
    )


@dataclass(frozen=True)
class _WithRanges:
    """Counts like the store, and finds the largest range that was asked for."""

    store: Served

    def clear(self) -> None:
        self.store.clear()

    def statistics(self) -> dict[str, Any]:
        ranges = [request["range"] for request in self.store.requests() if request["range"]]
        return {**self.store.statistics(), "largest_range": max(map(_size, ranges), default=0)}


def _size(header: str) -> int:
    start, _, last = header.removeprefix("bytes=").partition("-")
    return int(last) - int(start) + 1 if start and last else 0


def judge_footprint(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Quantities by name; the reader itself has checked every row.

    Raises:
        Failure: It read less than it should.
    """
    order = case.order
    wanted = BATCH_SIZE if order["most_records"] == 1 else order["most_records"]
    if report["records"] < wanted:
        raise Failure(f"read {report['records']} records of {wanted}")
    peaks = report["peak_megabytes"]
    client = max(peaks["client"], peaks.get("engine", 0.0))
    found = {
        "seconds": report["seconds"],
        "first_batch_seconds": report["first_batch_seconds"],
        "requests": report["store"]["requests"],
        "largest_range_mebibytes": report["store"]["largest_range"] / (1 << 20),
        "idle_megabytes": report["idle_megabytes"],
        "client_peak_megabytes": peaks["client"],
        "peak_megabytes": client,
    }
    if "budget" in order:
        found["beyond_budget_megabytes"] = client - order["budget"] / 1e6
    return found
