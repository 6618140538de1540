"""The cases of :mod:`bench.remote`: streams and other readers of images from stores and nginx."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.cases import Case, Comparison, Failure, ServiceInfo, no_service
from bench.datasets import LABELS, Dataset, Images, reading_figures
from bench.peers import Peers
from bench.services import STORE_KEYS, Served, burner, feeder

BATCH_SIZE = 64
BUCKET = "images"
COUNTED = ("hedges", "hedges_won", "retries", "cut", "concurrency")
"""Statistics of a stream that become quantities, where it has them."""
FAR = (32, 64)
"""Numbers of requests in flight for downloads where there is latency to hide."""
NEAR = (16, 64)
"""Numbers of requests in flight for downloads without latency."""
DOWNLOAD = "download, {} in flight"
CLIENT_RANGES = 64
"""Number of requests in flight for other clients of object stores."""
FEW_BATCHES = 4
"""Number of batches that are taken where only the first one counts."""
STREAM, DOWNLOADS = "readers.streams stream", "readers.downloads download"
CLIENTS = "readers.object_clients"
MOSAIC = "readers.loaders mosaic"
IDLE = "beside an idle trainer"
STEPS = "beside a trainer: 10 ms of Python after each batch"
HELD = "beside a trainer: a thread of Python that never stops"
MATRICES = "beside a trainer: a thread of matrix products and Python"
BURNING = "beside another process that never stops"
ALONE = "trainer without data"
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
GROWTH = "many shards"
COUNTS = (10, 1_000, 100_000)

# -- where the images are --------------------------------------------------------------------------


def of_download(group: str) -> tuple[Comparison, ...]:
    titles = tuple(f"{group}: {DOWNLOAD.format(count)}" for count in {*FAR, *NEAR})
    return (Comparison("of download", titles),)


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
        return {"endpoint_url": self.served.endpoint, **STORE_KEYS}

    def case(
        self,
        name: str,
        program: str,
        arguments: Mapping[str, Any],
        *,
        of: Served | None = None,
        **more: Any,
    ) -> Case:
        """Return a case that reads from the store, or from the one of the peers."""
        served = of or self.served
        how: dict[str, Any] = {
            "environment": self.environment,
            "companions": {"store": served.pid},
            "counters": served,
            "comparisons": of_download(self.group),
        }
        options = {"storage_options": self.storage_options}
        return Case(self.group, name, program, {**arguments, **options}, **{**how, **more})


@dataclass(frozen=True)
class Way:
    """A way to iterate over a stream.

    Args:
        loop: Library whose event loop runs ``async for``; ``None`` for a plain ``for``.
        ahead: True where the engine process starts while the trainer does other things.
    """

    name: str
    loop: str | None
    engine: str | None = None
    ahead: bool = False


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
    found = reading_figures(report, dataset)
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


# -- whole readings --------------------------------------------------------------------------------


def behind_store(images: Images, place: Place) -> list[Case]:
    """Return downloads with several numbers of requests in flight, and streams with defaults."""
    return [
        *(_download(images, place, count) for count in FAR),
        *(
            place.case(way.name, STREAM, stream_arguments(images, images.passes, way))
            for way in WAYS
        ),
    ]


def other_clients(images: Images, place: Place, peers: Peers) -> list[Case]:
    """Return downloads by other clients of object stores, and by our own without a stream."""
    environment = {**place.environment, **_of_s3(place.served)}
    objects = [(BUCKET, key, size) for key, size in images.names(images.passes)]
    arguments = {"objects": objects, "in_flight": CLIENT_RANGES, "passes": images.passes}
    name = f"{{}}, {CLIENT_RANGES} in flight"
    return [
        place.case(name.format("streamrec's store"), f"{CLIENTS} streamrec", arguments),
        *(
            place.case(
                name.format(one),
                f"{CLIENTS} {one}",
                arguments,
                python=peers.python,
                environment=environment,
            )
            for one in peers.clients
        ),
    ]


def first_batches(images: Images, place: Place) -> list[Case]:
    """Return streams that end after a few batches: they take a second, and run many times."""
    return [
        place.case(
            way.name, STREAM, stream_arguments(images, images.passes, way, batches=FEW_BATCHES)
        )
        for way in WAYS
    ]


def with_tail(images: Images, place: Place) -> list[Case]:
    """Return streams from a store where some requests stall, also without hedging or an order."""
    loop, plain, *_ = (stream_arguments(images, images.passes, way) for way in WAYS)
    first = WAYS[0].name
    arguments_of = {
        first: loop,
        FOR.name: plain,
        f"{first}, no hedging": {**loop, "hedging": False},
        f"{first}, ordered=False": {**loop, "ordered": False},
    }
    return [place.case(name, STREAM, arguments) for name, arguments in arguments_of.items()]


def through_feeder(images: Images, place: Place) -> Case:
    """Return a stream of a feeder that reads from the store."""
    features = images.template.features
    settings = {
        "source": f"s3://{BUCKET}/*",
        "batch_size": BATCH_SIZE,
        "storage_options": place.storage_options,
        "features": {name: {"kind": "fixed", **plain} for name, plain in features.items()},
    }

    @contextlib.contextmanager
    def serving() -> Iterator[ServiceInfo]:
        with feeder("images", settings) as (address, pid):
            yield {"address": address}, {"feeder": pid}

    whole = stream_arguments(images, images.passes, FOR)
    return place.case("for, through a feeder", STREAM, whole, service=serving)


def _download(images: Images, place: Place, count: int) -> Case:
    objects = [(BUCKET, key, size) for key, size in images.names(images.passes)]
    arguments = {"objects": objects, "in_flight": count, "keep": True, "passes": images.passes}
    return place.case(DOWNLOAD.format(count), DOWNLOADS, arguments)


def from_files(
    images: Images, group: str, server: tuple[str, int], environment: Mapping[str, str]
) -> list[Case]:
    """Return downloads and streams from a web server: URLs instead of a bucket, and no latency.

    Args:
        images: Images that the server serves.
        group: Heading of the table.
        server: Endpoint of the server, and the id of its process.
        environment: Variables by which clients trust the server.
    """
    endpoint, pid = server
    whole = images.passes
    urls = [(f"{endpoint}/{name}", size) for name, size in images.names(whole)]
    download = {"urls": urls, "keep": True, "passes": whole}
    place = {"source": f"{endpoint}/{images.braces(whole)}", "storage_options": None}
    rows: list[tuple[str, str, dict[str, Any]]] = [
        *((DOWNLOAD.format(n), DOWNLOADS, {**download, "in_flight": n}) for n in NEAR),
        *((way.name, STREAM, stream_arguments(images, whole, way, **place)) for way in WAYS),
    ]
    how: dict[str, Any] = {
        "environment": environment,
        "comparisons": of_download(group),
        "companions": {"store": pid},
    }
    return [Case(group, *row, **how) for row in rows]


def slow_peers(template: Dataset, place: Place, peers: Peers) -> list[Case]:
    """Return cases of other loaders, over one pass of the images, and of a loop over s3fs."""
    assert place.peers is not None
    endpoint = place.peers.endpoint
    environment = {**place.environment, **_of_s3(place.peers)}
    common = {"passes": 1, "batch_size": BATCH_SIZE}
    rows: list[tuple[str, str, dict[str, Any]]] = []
    if peers.has_web_dataset:
        paths = sorted(peers.tars(template).iterdir())
        urls = [f"{endpoint}/{path.parent.name}/{path.name}" for path in paths]
        tars = {**common, "stored_bytes": _nbytes(paths), "urls": urls}
        rows += [
            (
                f"WebDataset over curl, {n} workers",
                "readers.loaders web_dataset",
                {**tars, "workers": n},
            )
            for n in (0, 4)
        ]
    if peers.mds(template).is_dir():
        directory = peers.mds(template)
        stored = _nbytes(list(directory.iterdir()))
        mds = {**common, "stored_bytes": stored, "remote": f"s3://{directory.name}"}
        # With workers it takes minutes now and then.
        rows.append(("MosaicML Streaming, 0 workers", MOSAIC, {**mds, "workers": 0}))
    theirs: dict[str, Any] = {"python": peers.python, "environment": environment}
    s3fs = {"bucket": BUCKET, "shards": template.shards, **common}
    return [
        place.case("s3fs file and loop", "readers.loaders s3fs", s3fs),
        *(place.case(*row, of=place.peers, **theirs) for row in rows),
    ]


def _of_s3(served: Served) -> dict[str, str]:
    """Return the variables by which other readers reach a store."""
    region = dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), "us-east-1")
    return region | {
        "S3_ENDPOINT_URL": served.endpoint,
        "AWS_ENDPOINT_URL": served.endpoint,
        "AWS_ACCESS_KEY_ID": STORE_KEYS["key"],
        "AWS_SECRET_ACCESS_KEY": STORE_KEYS["secret"],
    }


def _nbytes(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


# -- beside busy trainers --------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """A load that a stream runs beside."""

    group: str
    work: Mapping[str, Any] = field(default_factory=dict)
    service: Callable[[], AbstractContextManager[ServiceInfo]] = no_service


def beside_trainers(
    images: Images, place: Place, iterations: int, *, passes: int, few: int
) -> list[Case]:
    """Return a case for each load and each way to iterate, and the trainer without data.

    Args:
        place: Place that they are read from; its group does not matter.
        iterations: Iterations of the trainer's loop in 10 ms.
        passes: Passes that a plain ``for`` reads.
        few: Passes that ``async for`` reads, which shares the trainer's interpreter.
    """
    steps = {"iterations": iterations}
    loads = (
        Load(IDLE),
        Load(STEPS, steps),
        Load(HELD, {"beside": "python"}),
        Load(MATRICES, {"beside": "matrix"}),
        Load(BURNING, service=burner),
    )
    ways = {FOR: passes, WAYS[0]: few}
    rows = [_beside(images, place, load, way, n) for load in loads for way, n in ways.items()]
    counts = images.part(passes)
    alone = {"records": counts.records, "label_sum": counts.label_sum, "batch_size": BATCH_SIZE}
    arguments = {**alone, **steps, "beside": None, "passes": passes}
    rows.insert(2 * len(ways), Case(STEPS, ALONE, "readers.streams trainer", arguments))
    return rows


def _beside(images: Images, place: Place, load: Load, way: Way, passes: int) -> Case:
    of_idle = Comparison("of idle", (f"{IDLE}: {way.name}",))
    of_burning = Comparison("of a machine as busy", (f"{BURNING}: {way.name}",))
    of_alone = Comparison("of no data", (f"{load.group}: {ALONE}",))
    comparisons = {IDLE: (), BURNING: (of_idle,), STEPS: (of_idle, of_alone)}
    return replace(place, group=load.group).case(
        way.name,
        STREAM,
        stream_arguments(images, passes, way, **load.work),
        environment={**place.environment, **ONE_THREAD},
        service=load.service,
        comparisons=comparisons.get(load.group, (of_idle, of_burning)),
    )


# -- more and more shards --------------------------------------------------------------------------


@dataclass(frozen=True)
class Shards:
    """A bucket of shards that the store makes of a dataset's files, which take turns."""

    bucket: str
    template: Dataset
    objects: int

    name = "shard-{:06}.tfrecord"
    """Format of a shard's name, which takes its number."""

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the recipe by which the store makes the shards."""
        paths = [str(path) for path in self.template.paths]
        return {"templates": paths, "name": self.name, "objects": self.objects}

    def arguments(self, way: Way, *, listed: bool) -> dict[str, Any]:
        """Return the reader's arguments: a glob of the shards if ``listed``, else their names."""
        url = f"s3://{self.bucket}/"
        return {
            "source": f"{url}*",
            "names": None if listed else url + self.name,
            "shards": self.objects,
            "templates": self.template.shards,
            "per_template": self.template.records // self.template.shards,
            "labels": LABELS,
            "features": self.template.features,
            "batch_size": BATCH_SIZE,
            "loop": way.loop,
            "engine": way.engine,
        }


def growing(buckets: list[Shards], store: Served) -> Iterator[Case]:
    """Yield cases that take the first batch of more and more shards, listed or named."""
    for way, listed, shards in itertools.product((WAYS[0], FOR), (True, False), buckets):
        place = Place(f"{GROWTH}, {way.name}, {'a glob' if listed else 'a list of names'}", store)
        arguments = shards.arguments(way, listed=listed)
        yield place.case(f"{shards.objects:,}", "readers.streams first", arguments, comparisons=())


def judge_first(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the reader's report as quantities; the reader itself has checked every row.

    Raises:
        Failure: It read less than a batch.
    """
    expected = case.arguments["batch_size"]
    if report["records"] < expected:
        raise Failure(f"read {report['records']} records of {expected}")
    peaks = report["peak_megabytes"]
    return {
        "seconds": report["seconds"],
        "first_batch_seconds": report["first_batch_seconds"],
        "requests": report["store"]["requests"],
        "idle_megabytes": report["idle_megabytes"],
        "client_peak_megabytes": peaks["client"],
        "peak_megabytes": max(peaks["client"], peaks.get("engine", 0.0)),
    }
