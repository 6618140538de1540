"""What is read, from where, and by which ways to iterate."""

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

__all__ = [
    "BATCH_SIZE",
    "BUCKET",
    "FOR",
    "WAYS",
    "Pictures",
    "Place",
    "Way",
    "judge",
    "judge_beginning",
    "stream_order",
]

BATCH_SIZE = 64
BUCKET = "images"
NAME = "images-{:05}.tfrecord"
COUNTED = ("hedges", "hedges_won", "retries", "cut", "concurrency")
"""Of a stream's statistics, where it has them."""


@dataclass(frozen=True)
class Pictures:
    """Shards of *images*: those of a dataset, again and again under other names.

    Args:
        template: What the bytes are of.
        passes: How often it is served.
    """

    template: Dataset
    passes: int

    @property
    def recipe(self) -> dict[str, Any]:
        """For the store."""
        templates = [str(path) for path in self.template.paths]
        return {"templates": templates, "name": NAME, "objects": self.template.shards * self.passes}

    def part(self, passes: int) -> Dataset:
        """The facts of the first so many passes."""
        one = self.template
        return replace(
            one,
            shards=one.shards * passes,
            records=one.records * passes,
            nbytes=one.nbytes * passes,
            label_sum=one.label_sum * passes,
        )

    def names(self, passes: int) -> list[tuple[str, int]]:
        """Name and size in bytes of each shard."""
        sizes = [path.stat().st_size for path in self.template.paths] * passes
        return [(NAME.format(number), size) for number, size in enumerate(sizes)]

    def braces(self, passes: int) -> str:
        """The names as one range."""
        last = self.template.shards * passes - 1
        return f"images-{{00000..{last:05}}}.tfrecord"

    def linked(self, root: Path) -> Path:
        """A directory with all names, for servers that serve files."""
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
    """Where the shards are, for one group of the table.

    Args:
        group: The heading.
        served: The store that holds the images.
        environment: What clients need in it: whom to trust.
        peers: The store that holds them in the peers' formats.
    """

    group: str
    served: Served
    environment: Mapping[str, str] = field(default_factory=dict)
    peers: Served | None = None

    @property
    def storage_options(self) -> dict[str, Any]:
        """Of the images' store."""
        return {"endpoint_url": self.served.endpoint, **STORE_KEYS}


@dataclass(frozen=True)
class Way:
    """One way to iterate over a stream."""

    name: str
    loop: str | None
    """Whose event loop ``async for`` runs in; ``None``: a plain ``for``."""
    engine: str | None = None
    ahead: bool = False
    """Whether the engine process is started while the trainer does other things."""


FOR = Way("for", None)
WAYS = (
    Way("async for", "uvloop"),
    FOR,
    Way("for, engine started ahead", None, ahead=True),
    Way('for, engine="thread"', None, "thread"),
)


def stream_order(pictures: Pictures, passes: int, way: Way, **more: Any) -> dict[str, Any]:
    """For the stream's reader, beside an idle trainer; the source is a glob where all are read."""
    names = "images-*.tfrecord" if passes == pictures.passes else pictures.braces(passes)
    return {
        "source": f"s3://{BUCKET}/{names}",
        "features": pictures.template.features,
        "batch_size": BATCH_SIZE,
        "passes": passes,
        "loop": way.loop,
        "engine": way.engine,
        "ahead": way.ahead,
        "iterations": 0,
        "beside": None,
        **more,
    }


def judge(case: Case, report: Mapping[str, Any], pictures: Pictures) -> dict[str, float]:
    """Quantities by name, once the reader is seen to have read what there is.

    Args:
        case: Its order says how many ``passes`` are read, and, where the format is not TFRecord,
            how many bytes are stored: ``stored_bytes``.
        report: As :class:`bench.stopwatch.Stopwatch` prints it.
        pictures: What there is.

    Raises:
        Failure: It did not read just that.
    """
    dataset = pictures.part(case.order["passes"])
    found = quantities(report, dataset)
    found["gigabytes"] = dataset.nbytes / 1e9
    statistics = report.get("statistics", {})
    found |= {name: float(statistics[name]) for name in COUNTED if name in statistics}
    store = report.get("store")
    if store is not None:
        used = case.order.get("stored_bytes", dataset.nbytes)
        if store["bytes_sent"] < used:
            raise Failure(f"the store sent {store['bytes_sent']} bytes, of which {used} were used")
        found["requests"] = store["requests"]
        found["peak_in_flight"] = store["peak_in_flight"]
        found["read_over_used"] = store["bytes_sent"] / used
    return found


def judge_beginning(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """The first batch, once the reader is seen to have taken as many as its order says.

    Raises:
        Failure: It took more, or fewer.
    """
    wanted = case.order["batches"] * BATCH_SIZE
    if report["records"] != wanted:
        raise Failure(f"took {report['records']} records, and not {wanted}")
    return {"first_batch_seconds": report["first_batch_seconds"]}
