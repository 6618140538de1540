"""The images, the stores that serve them, and the ways to iterate over a stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.measure import Failure, quantities
from bench.services import STORE_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bench.datasets import Dataset
    from bench.measure import Case
    from bench.services import Served

BATCH_SIZE = 64
BUCKET = "images"
NAME = "images-{:05}.tfrecord"
COUNTED = ("hedges", "hedges_won", "retries", "cut", "concurrency")
"""Statistics of a stream that become quantities, where it has them."""


@dataclass(frozen=True)
class Images:
    """Shards of images: those of a dataset, served again and again under other names.

    Args:
        template: Dataset whose shards are served.
        passes: Number of times that each of them is served.
    """

    template: Dataset
    passes: int

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the recipe by which the store makes the shards."""
        templates = [str(path) for path in self.template.paths]
        return {"templates": templates, "name": NAME, "objects": self.template.shards * self.passes}

    def part(self, passes: int) -> Dataset:
        """Return the facts of the first passes as those of a dataset."""
        one = self.template
        return replace(
            one,
            shards=one.shards * passes,
            records=one.records * passes,
            nbytes=one.nbytes * passes,
            label_sum=one.label_sum * passes,
        )

    def names(self, passes: int) -> list[tuple[str, int]]:
        """Return the name and the size in bytes of each shard."""
        sizes = [path.stat().st_size for path in self.template.paths] * passes
        return [(NAME.format(number), size) for number, size in enumerate(sizes)]

    def braces(self, passes: int) -> str:
        """Return the names as one range in braces."""
        last = self.template.shards * passes - 1
        return f"images-{{00000..{last:05}}}.tfrecord"

    def linked(self, root: Path) -> Path:
        """Return a directory of links by all names, for servers that serve files."""
        directory = root / f"{self.template.name}-x{self.passes}"
        if not directory.is_dir():
            unfinished = root / f".{directory.name}.unfinished"
            unfinished.mkdir(parents=True, exist_ok=True)
            paths = self.template.paths * self.passes
            for (name, _), path in zip(self.names(self.passes), paths, strict=True):
                link = unfinished / name
                link.unlink(missing_ok=True)
                link.symlink_to(path)
            unfinished.rename(directory)
        return directory


@dataclass(frozen=True)
class Place:
    """The stores that hold the shards, for one group of the table.

    Args:
        group: Heading of the table.
        served: Store that holds the images.
        environment: Variables by which clients trust the store.
        peers: Store that holds the images in the peers' formats.
    """

    group: str
    served: Served
    environment: Mapping[str, str] = field(default_factory=dict)
    peers: Served | None = None

    @property
    def storage_options(self) -> dict[str, Any]:
        """Return the storage options of the store that holds the images."""
        return {"endpoint_url": self.served.endpoint, **STORE_KEYS}


@dataclass(frozen=True)
class Way:
    """A way to iterate over a stream."""

    name: str
    loop: str | None
    """Library whose event loop runs ``async for``; ``None`` for a plain ``for``."""
    engine: str | None = None
    ahead: bool = False
    """True where the engine process starts while the trainer does other things."""


FOR = Way("for", None)
WAYS = (
    Way("async for", "uvloop"),
    FOR,
    Way("for, engine started ahead", None, ahead=True),
    Way('for, engine="thread"', None, "thread"),
)


def stream_arguments(images: Images, passes: int, way: Way, **more: Any) -> dict[str, Any]:
    """Return the arguments of the stream's reader, beside an idle trainer.

    The source is a glob where all passes are read.
    """
    names = "images-*.tfrecord" if passes == images.passes else images.braces(passes)
    return {
        "source": f"s3://{BUCKET}/{names}",
        "features": images.template.features,
        "batch_size": BATCH_SIZE,
        "passes": passes,
        "loop": way.loop,
        "engine": way.engine,
        "ahead": way.ahead,
        "iterations": 0,
        "beside": None,
        **more,
    }


def judge(case: Case, report: Mapping[str, Any], images: Images) -> dict[str, float]:
    """Check that the reader has read exactly its passes, and return its report as quantities.

    Args:
        case: Case whose arguments hold the number of ``passes`` and, where the format is not
            TFRecord, the number of ``stored_bytes``.
        report: Report that :class:`bench.stopwatch.Stopwatch` prints.
        images: Images that the reader was given.

    Raises:
        Failure: It has read something else.
    """
    dataset = images.part(case.arguments["passes"])
    found = quantities(report, dataset)
    found["gigabytes"] = dataset.nbytes / 1e9
    statistics = report.get("statistics", {})
    found |= {name: float(statistics[name]) for name in COUNTED if name in statistics}
    store = report.get("store")
    if store is not None:
        used = case.arguments.get("stored_bytes", dataset.nbytes)
        if store["bytes_sent"] < used:
            raise Failure(f"the store sent {store['bytes_sent']} bytes, of which {used} were used")
        found["requests"] = store["requests"]
        found["peak_in_flight"] = store["peak_in_flight"]
        found["read_over_used"] = store["bytes_sent"] / used
    return found


def judge_beginning(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Check the number of batches taken, and return the seconds to the first one.

    Raises:
        Failure: It took more, or fewer.
    """
    expected = case.arguments["batches"] * BATCH_SIZE
    if report["records"] != expected:
        raise Failure(f"took {report['records']} records, and not {expected}")
    return {"first_batch_seconds": report["first_batch_seconds"]}
