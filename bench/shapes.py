"""Reads datasets of unusual shapes, and from unusual stores, beside a plain download of the same.

::

    python -m bench.shapes --output bench/results

Each shape is one shard that a store on loopback serves many times. *Download* requests the same
objects with aiohttp, in ranges of 8 MiB, and throws them away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from bench.cases import RATE, Case, Comparison, Result, ratio, say
from bench.datasets import LABEL, Dataset, Plain, reading_figures
from bench.harness import Column, Report, Run, benchmark, name_of, tables_of
from bench.machine import title
from bench.services import STORE_KEYS, Served, store
from streamrec.config.machine import automatic_budget
from streamrec.datasets.writer import TFRecordWriter

NAME = "{:07}.tfrecord"
BUCKET = "shape"
DOWNLOAD = "download, {} in flight"
CPU = "client_cpu_seconds_per_gigabyte"
ENGINE_CPU = "engine_cpu_seconds_per_gigabyte"
PEAKS = ("client_peak_megabytes", "engine_peak_megabytes")
FAR = {"latency": 0.03, "bandwidth": 60e6}
"""A store that answers after 30 ms, with 60 MB/s a connection."""
Record = Callable[[int], dict[str, Any]]
"""Makes the record of a number; its label is the number."""


def picture(size: int, number: int) -> dict[str, Any]:
    return {"image": Random(number).randbytes(size), "label": number}


def wide(features: int, number: int) -> dict[str, Any]:
    return {**{name: number + k for k, name in enumerate(names(features))}, "label": number}


def names(features: int) -> list[str]:
    return [f"feature_{number:04}" for number in range(features)]


IMAGE: Plain = {"image": {"shape": [], "dtype": "bytes"}, **LABEL}
WIDE: Plain = {**{name: {"shape": [], "dtype": "int64"} for name in names(1999)}, **LABEL}
PLAIN_WAYS: Mapping[str, dict[str, Any]] = {
    "for": {"loop": None},
    'for, engine="thread"': {"loop": None, "engine": "thread"},
}
ENGINES: Mapping[str, dict[str, Any]] = {
    **PLAIN_WAYS,
    'for, engine="process"': {"loop": None, "engine": "process"},
}
WAYS: Mapping[str, dict[str, Any]] = {**PLAIN_WAYS, "async for": {"loop": "uvloop"}}
SHUFFLED = {
    f"{name}, shuffled": {**way, "settings": {"shuffle": True}} for name, way in WAYS.items()
}


@dataclass(frozen=True)
class Shape:
    """A dataset, the store that it is read from, and the ways to read it.

    Args:
        name: Heading of its table.
        shards: Number of shards that are read.
        records: Records of each.
        record: Makes a record.
        batch_size: Records of a batch.
        features: Features that are parsed.
        store: Limits of the store.
        ways: Arguments of the reader of streams, by the row's name.
        in_flight: Requests that the download has in flight.
    """

    name: str
    shards: int
    records: int
    record: Record
    batch_size: int = 64
    features: Plain = field(default_factory=lambda: IMAGE)
    store: Mapping[str, Any] = field(default_factory=lambda: FAR)
    ways: Mapping[str, dict[str, Any]] = field(default_factory=lambda: PLAIN_WAYS)
    in_flight: int = 64

    def dataset(self, root: Path) -> Dataset:
        """Return the dataset; its one file is written unless an earlier run has."""
        path = root / "shapes" / f"{self.name.replace(' ', '-')}-{self.records}.tfrecord"
        if not path.exists():
            say(f"writing {path.name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            with TFRecordWriter(path) as writer:
                writer.write_many(map(self.record, range(self.records)))
        return Dataset(
            path.parent,
            path.name,
            self.shards,
            self.records * self.shards,
            path.stat().st_size * self.shards,
            sum(range(self.records)) * self.shards,
            self.features,
        )

    def recipe(self, dataset: Dataset) -> dict[str, Any]:
        templates = [str(dataset.root / dataset.name)]
        return {BUCKET: {"templates": templates, "name": NAME, "objects": self.shards}}

    def cases(self, dataset: Dataset, served: Served) -> Iterator[Case]:
        """Yield the download, and the ways to read a stream."""
        download = DOWNLOAD.format(self.in_flight)
        how: dict[str, Any] = {
            "companions": {"store": served.pid},
            "counters": served,
            "comparisons": (Comparison("of download", (f"{self.name}: {download}",)),),
        }
        objects = [f"{served.endpoint}/{BUCKET}/{NAME}", self.shards, dataset.nbytes // self.shards]
        alike = {"alike": objects, "in_flight": self.in_flight, "keep": False}
        yield Case(self.name, download, "readers.downloads download", alike, **how)
        stream = {
            "source": f"s3://{BUCKET}/*.tfrecord",
            "features": self.features,
            "batch_size": self.batch_size,
            "storage_options": {"endpoint_url": served.endpoint, **STORE_KEYS},
            "iterations": 0,
            "beside": None,
        }
        for name, way in self.ways.items():
            yield Case(self.name, name, "readers.streams stream", {**stream, **way}, **how)


LARGE, VOLUME, SMALL = 2_828_000, 140_000_000, 2_000
SHAPES = (
    Shape("110 KB", 8, 1_000, partial(picture, 110_000)),
    Shape(
        "one 2.8 MB record a shard", 256, 1, partial(picture, LARGE), 1, ways={**WAYS, **SHUFFLED}
    ),
    # Two seconds and more of reading, where the start counts for less: 10 to 20 s in all.
    Shape("one 2.8 MB record a shard, long", 1024, 1, partial(picture, LARGE), 1, ways=WAYS),
    Shape("two 140 MB records a shard", 4, 2, partial(picture, VOLUME), 1, ways=ENGINES),
    Shape("one 2 KB record a shard", 8_000, 1, partial(picture, SMALL), 1_000),
    Shape("100 B, batches of 65,536", 8, 393_216, partial(picture, 50), 65_536),
    Shape("one shard", 1, 8_000, partial(picture, 110_000)),
    Shape("2,000 features", 8, 400, partial(wide, 1999), features=WIDE),
    Shape("300 ms", 8, 1_000, partial(picture, 110_000), store={**FAR, "latency": 0.3}),
    Shape(
        "5 ms, fast",
        8,
        1_000,
        partial(picture, 110_000),
        store={"latency": 0.005, "bandwidth": None},
    ),
    Shape(
        "four connections",
        8,
        200,
        partial(picture, 110_000),
        store={**FAR, "caps": {"connections": 4}},
        in_flight=4,
    ),
)


def judge(dataset: Dataset, _: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Check that the reader has read the whole shape, and return its report as figures.

    Raises:
        Failure: It has read something else.
    """
    figures = reading_figures(report, dataset)
    figures["cpu"] = figures[CPU] + figures.get(ENGINE_CPU, 0.0)
    figures["requests"] = report["store"]["requests"]
    if "statistics" in report:
        # An engine process imports about as much as the client has imported before it reads.
        peaks = [figures[name] for name in PEAKS if name in figures]
        used = sum(peaks) - len(peaks) * figures["client_idle_megabytes"]
        figures["memory"] = used * 1e6 / automatic_budget()
        figures["ranges"] = report["statistics"]["most_bytes_in_memory"] / automatic_budget()
    return figures


def of_download(figure: str, results: Sequence[Result]) -> Callable[[Result], float | None]:
    """Return a column's function: a figure over that of the same shape's download."""
    return lambda result: ratio(result, result.case.comparisons[0], results, figure)


def columns(results: Sequence[Result]) -> tuple[Column, ...]:
    return (
        Column("", name_of, str),
        Column("MB/s", RATE),
        Column("of download", of_download(RATE, results)),
        Column("first batch, s", "first_batch_seconds"),
        Column("after it, MB/s", f"{RATE}_after_first_batch"),
        Column("CPU, s/GB", "cpu"),
        Column("of download's", of_download("cpu", results)),
        Column("requests", "requests"),
        Column("ranges / budget", "ranges"),
        Column("memory / budget", "memory"),
    )


@benchmark("shapes", repeat=1, only=True, data=True)
def main(run: Run) -> Report:
    for shape in SHAPES:
        if not any(run.selects(case.title) for case in shape.cases(NOTHING, NOWHERE)):
            continue
        dataset = shape.dataset(run.data)
        with store(**shape.store, recipes=shape.recipe(dataset)) as served:
            cases = list(shape.cases(dataset, served))
            run.measure(cases, partial(judge, dataset))
    text = f"{title()}\n\n{tables_of(columns(run.results), run.results)}"
    return Report(text, {"settings": {"rounds": run.repeat}})


NOTHING, NOWHERE = Dataset(Path(), "", 1, 0, 0, 0), Served("", 0)
"""Stand for a dataset and a store where only the titles of cases are asked for."""


if __name__ == "__main__":
    main()
