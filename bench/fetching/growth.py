"""The cases of more and more shards, and of memory over settings and sizes of shards."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.datasets import LABELS
from bench.fetching.images import BATCH_SIZE, FOR, WAYS
from bench.measure import Case, Failure
from bench.services import STORE_KEYS
from streamrec.config import DatasetSettings, validate
from streamrec.config.memory_budget import memory_budget

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.datasets import Dataset
    from bench.fetching.images import Way
    from bench.services import Served

GROWTH = "many shards"
MEMORY = "memory"
COUNTS = (10, 1_000, 100_000)
WINDOWS = {"64MiB": "8MiB", "256MiB": "32MiB", "1GiB": "128MiB"}
"""Shuffle window for each memory budget."""
LANES = (1, 48, 192)
TIMES_BUDGET = 4
"""Number of times its budget that a stream reads at most while its memory is measured."""


@dataclass(frozen=True)
class Shards:
    """A bucket of shards that the store makes.

    Args:
        bucket: Name of the bucket.
        template: Dataset whose files the shards are made of.
        objects: Number of shards.
        copies: Copies of a file of the template in each shard; where more than one, of the first.
    """

    bucket: str
    template: Dataset
    objects: int
    copies: int = 1

    @property
    def name(self) -> str:
        """Return the format of a shard's name, which takes its number."""
        return "shard-{:06}.tfrecord"

    @property
    def templates(self) -> int:
        """Return the number of the template's files that are used."""
        return self.template.shards if self.copies == 1 else 1

    @property
    def shard_bytes(self) -> int:
        """Return the size of a shard."""
        return self.template.nbytes // self.template.shards * self.copies

    @property
    def per_template(self) -> int:
        """Return the number of records in a file of the template."""
        return self.template.records // self.template.shards

    @property
    def records(self) -> int:
        """Return the number of records in all shards."""
        return self.per_template * self.copies * self.objects

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the recipe by which the store makes the shards."""
        paths = [str(path) for path in self.template.paths[: self.templates]]
        name = {"name": self.name, "objects": self.objects, "copies": self.copies}
        return {"templates": paths, **name}

    def arguments(self, way: Way, most_records: int | None, *, listed: bool) -> dict[str, Any]:
        """Return the reader's arguments: a glob of the shards if ``listed``, else their names."""
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
    """Yield cases that take the first batch of more and more shards, listed or named."""
    for way, listed, shards in itertools.product((WAYS[0], FOR), (True, False), buckets):
        arguments = shards.arguments(way, 1, listed=listed)
        group = f"{GROWTH}, {way.name}, {'a glob' if listed else 'a list of names'}"
        yield _case(group, f"{shards.objects:,}", arguments, store)


def footprints(buckets: list[Shards], store: Served, most_bytes: float) -> Iterator[Case]:
    """Yield all budgets, lanes and sizes of shards, shuffled and not, and defaults with ``for``."""
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
    arguments = shards.arguments(way, min(most, shards.records), listed=True)
    arguments = {**arguments, "settings": settings, "budget": plain}
    return _case(MEMORY, name, arguments, store)


def _case(group: str, name: str, arguments: Mapping[str, Any], store: Served) -> Case:
    options = {"endpoint_url": store.endpoint, **STORE_KEYS}
    return Case(
        group,
        name,
        "bench.readers.footprint",
        {**arguments, "storage_options": options},
        companions={"store": store.pid},
        counters=_CountersWithRanges(store),
    )


@dataclass(frozen=True)
class _CountersWithRanges:
    """The counters of a store, with the largest range that was requested."""

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
    """Return the reader's report as quantities; the reader itself has checked every row.

    Raises:
        Failure: It read less than it should.
    """
    arguments = case.arguments
    expected = BATCH_SIZE if arguments["most_records"] == 1 else arguments["most_records"]
    if report["records"] < expected:
        raise Failure(f"read {report['records']} records of {expected}")
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
    if "budget" in arguments:
        found["beyond_budget_megabytes"] = client - arguments["budget"] / 1e6
    return found
