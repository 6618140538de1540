"""The second port of the daemon: health for the orchestrator, metrics for Prometheus, a page.

``/livez`` answers 200 as long as the event loop turns; ``/readyz`` answers 200 while a new client
could be served, else 503 and why not; ``/metrics`` is Prometheus' text format; ``/status.json`` has
all that the metrics are made of, each subscription, and the last minutes; ``/`` shows it to
people.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from streamrec.feeder.access.address import host_and_port
from streamrec.feeder.operate.status_port import StatusPort, host_check
from streamrec.feeder.page.samples import EVERY, LateLog, Samples
from streamrec.feeder.page.view import view_of
from streamrec.flow.cleanup import end, finish
from streamrec.flow.timings import BOUNDS
from streamrec.report.charts import chart_of
from streamrec.report.html import environment, policy, read_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from streamrec.feeder.server.server import Feeder
    from streamrec.feeder.server.statistics import FeederStatistics

    Row = tuple[tuple[str, ...], float]


FEEDER_COUNTERS = (
    ("batches", "batches", "Batches sent."),
    ("records", "records", "Records sent."),
    ("sent_bytes", "bytes", "Bytes of batches sent, as frames."),
)
FETCH_COUNTERS = (
    ("requests", "requests", "Ranged GETs sent to stores, retries and hedges among them."),
    ("retries", "retries", "Requests that failed and were repeated."),
    ("throttled", "throttled", "Answers of stores that asked to slow down (429, 503)."),
    ("cut", "cut", "Connections to stores that were silent and were cut."),
    ("hedges", "hedges", "Slow requests that were sent a second time."),
    ("hedges_won", "hedges_won", "Second requests that were faster than the first."),
    ("read_bytes", "bytes_read", "Bytes received from stores and caches."),
    ("used_bytes", "bytes_used", "Bytes of frames that left in batches."),
    ("cache_hits", "cache_hits", "Ranges that the cache gave whole."),
    ("cache_read_bytes", "cache_bytes", "Bytes that the cache gave."),
    ("cached_batches", "cached_batches", "Batches that came from a cache of batches."),
    ("cached_pictures", "cached_pictures", "Pictures that came decoded from a cache."),
    ("cached_mapped", "cached_mapped", "Records that came mapped from a cache."),
)
GAUGES = (
    ("feeder_subscriptions", "subscriptions", "Clients that read now."),
    ("fetch_in_flight_requests", "in_flight", "Requests to stores under way."),
    ("fetch_concurrency_limit", "concurrency", "Requests to stores that may be under way now."),
    ("fetch_buffer_bytes", "bytes_in_memory", "Bytes of ranges in memory that are in use."),
    ("fetch_idle_buffer_bytes", "bytes_idle", "Bytes of buffers that wait to be used again."),
    ("fetch_buffer_limit_bytes", "bytes_budgeted", "Bytes that buffers of ranges may take."),
    ("queue_batches", "batches_ready", "Batches that are ready and wait to be sent."),
    ("queue_bytes", "bytes_ready", "Bytes of batches that are ready and wait to be sent."),
)
TIMES = (
    ("first_byte_seconds", "first_byte", "Seconds until the first byte of a store's answer."),
    ("request_duration_seconds", "duration", "Seconds until the end of a store's answer."),
)


class SnapshotCollector(Collector):
    """A collector of the metrics of one snapshot, for one scrape.

    Args:
        snapshot: The snapshot of a feeder, or of a daemon of several workers.
    """

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield from self._daemon()
        yield from self._datasets()
        yield from self._stores()

    def _daemon(self) -> Iterator[Metric]:
        now = self._snapshot
        build = InfoMetricFamily(_name("feeder_build"), "The versions that run.")
        build.add_metric([], now["build"])
        yield build
        is_ready = now["obstacle"] is None
        yield _gauge("feeder_ready", "1 while a new client could be served.", is_ready)
        yield _gauge("feeder_start_time_seconds", "Time of the start, since 1970.", now["started"])
        yield _gauge("feeder_workers", "Processes that serve clients.", now["workers"])
        text = "Worker processes that died and were replaced."
        yield CounterMetricFamily(_name("feeder_workers_lost"), text, now["workers_lost"])
        yield _gauge("feeder_connections", "Clients now.", now["connections"])
        text = "Connections that are not yet clients."
        yield _gauge("feeder_handshakes", text, now["handshakes"])
        text = "Connections since the start."
        yield CounterMetricFamily(
            _name("feeder_connections_opened"), text, now["connections_opened"]
        )
        text = "Seconds of CPU time of the feeder's processes."
        yield CounterMetricFamily(_name("feeder_cpu_seconds"), text, now["cpu_seconds"])
        text = "Connections that the feeder ended: it had no room, or got nothing or nonsense."
        yield _counter("feeder_dropped", text, ("reason",), _rows(now["dropped"]))
        yield _counter("feeder_faults", "Errors sent to clients.", ("type",), _rows(now["faults"]))
        yield from _loop(now["loop"])
        text = "Bytes that reading takes now: buffers, and batches that wait."
        yield _gauge("feeder_memory_bytes", text, now["budget"]["used"])
        if "limit" in now["budget"]:
            text = "Bytes that sessions may take now."
            yield _gauge("feeder_memory_lent_bytes", text, now["budget"]["lent"])
            text = "Bytes that all sessions may take together."
            yield _gauge("feeder_memory_limit_bytes", text, now["budget"]["limit"])

    def _datasets(self) -> Iterator[Metric]:
        datasets: Mapping[str, Any] = self._snapshot["datasets"]
        is_open = {name: one["state"] == "open" for name, one in datasets.items()}
        yield _gauges(
            "feeder_dataset_open", "1 while a dataset is open and its store answers.", is_open
        )
        shards = {name: one["shards"] for name, one in datasets.items()}
        yield _gauges("feeder_dataset_shards", "Shards of a dataset.", shards)
        for name, key, text in FEEDER_COUNTERS:
            yield _by_dataset(f"feeder_{name}", text, datasets, "sent", key)
        for name, key, text in FETCH_COUNTERS:
            yield _by_dataset(f"fetch_{name}", text, datasets, "fetch", key)
        for name, key, text in GAUGES:
            yield _gauges(name, text, {n: one["now"].get(key, 0) for n, one in datasets.items()})
        text = "Records that were read, by result."
        yield _counter("feeder_read_records", text, ("dataset", "result"), _results(datasets))
        text = "Seconds of subscriptions, by the stage that held them back."
        waits = _of_each(datasets, "waits")
        yield _counter("feeder_wait_seconds", text, ("dataset", "stage"), waits)
        text = "Seconds for which clients were ready for a batch that had not been sent."
        yield _counter("feeder_client_stall_seconds", text, ("dataset",), _stalls(datasets))

    def _stores(self) -> Iterator[Metric]:
        for name, key, text in TIMES:
            family = HistogramMetricFamily(
                _name(f"store_{name}"), text, labels=("store", "operation")
            )
            for store, operations in self._snapshot["timings"].items():
                for operation, times in operations.items():
                    buckets = _buckets(times[key]["counts"])
                    family.add_metric((store, operation), buckets, times[key]["sum"])
            yield family


def _loop(loop: Mapping[str, Any]) -> Iterator[Metric]:
    text = "Seconds by which event loops were late, measured 20 times a second."
    family = HistogramMetricFamily(_name("feeder_loop_delay_seconds"), text, labels=())
    family.add_metric((), _buckets(loop["delay"]["counts"]), loop["delay"]["sum"])
    yield family
    text = "Seconds of the largest delay of an event loop within the last minute."
    yield _gauge("feeder_loop_delay_recent_seconds", text, loop["recent"])


def _name(name: str) -> str:
    return f"streamrec_{name}"


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_name(name), text, value)


def _gauges(name: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(_name(name), text, labels=("dataset",))
    for dataset, value in values.items():
        family.add_metric((dataset,), value)
    return family


def _counter(
    name: str, text: str, labels: tuple[str, ...], rows: Iterable[Row]
) -> CounterMetricFamily:
    family = CounterMetricFamily(_name(name), text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _by_dataset(
    name: str, text: str, datasets: Mapping[str, Any], part: str, key: str
) -> CounterMetricFamily:
    rows = (((dataset,), one[part].get(key, 0)) for dataset, one in datasets.items())
    return _counter(name, text, ("dataset",), rows)


def _rows(values: Mapping[str, float]) -> Iterator[Row]:
    return (((key,), value) for key, value in values.items())


def _of_each(datasets: Mapping[str, Any], part: str) -> Iterator[Row]:
    for dataset, one in datasets.items():
        for key, value in one[part].items():
            yield (dataset, key), value


def _results(datasets: Mapping[str, Any]) -> Iterator[Row]:
    for dataset, one in datasets.items():
        yield (dataset, "good"), one["sent"]["records"]
        for result, key in (
            ("skipped", "skipped_records"),
            ("quarantined", "quarantined"),
            ("refetched", "refetched"),
        ):
            yield (dataset, result), one["fetch"].get(key, 0)


def _stalls(datasets: Mapping[str, Any]) -> Iterator[Row]:
    for dataset, one in datasets.items():
        stages = (value for stage, value in one["waits"].items() if stage != "client")
        yield (dataset,), sum(stages)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    bounds = (*map(str, BOUNDS), "+Inf")
    return list(zip(bounds, accumulate(counts), strict=True))


log = logging.getLogger("streamrec.feeder")


class _RequestLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log: whatever is not HTTP is counted, and told in a line without a traceback.

    Args:
        statistics: Those of the feeder.
    """

    def __init__(self, statistics: FeederStatistics) -> None:
        super().__init__(log)
        self._statistics = statistics

    def debug(self, msg: object, *args: object, **options: Any) -> None:  # noqa: ARG002
        """Take a message of aiohttp, which knows one kind of garbage."""
        self._note(args, options)

    def exception(self, msg: object, *args: object, **options: Any) -> None:
        """Take the error of a request."""
        if not self._note(args, options):
            super().exception(msg, *args, **options)

    def _note(self, args: tuple[object, ...], options: Mapping[str, Any]) -> bool:
        """Return whether a message is about garbage, which is counted and logged then."""
        # aiohttp logs a request that is not HTTP with this error, at one of two levels.
        if not isinstance(options.get("exc_info"), HttpProcessingError):
            return False
        self._statistics.dropped["garbage"] += 1
        self.warning("the status port got something else than HTTP from %s", *args)
        return True


class _StatusPages:
    """The answers of one feeder's status port."""

    def __init__(self, feeder: Feeder, samples: Samples) -> None:
        self._feeder = feeder
        self._samples = samples

    async def live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.Response:
        obstacle = self._feeder.obstacle
        return web.Response(text=f"{obstacle or 'ok'}\n", status=503 if obstacle else 200)

    # Text is made in threads: of hundreds of subscriptions it takes a while, and the loop serves.

    async def metrics(self, _: web.Request) -> web.Response:
        # Not the library's own registry: that is global, and has what others put there.
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(self._feeder.snapshot()))
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def status_json(self, _: web.Request) -> web.Response:
        text = await asyncio.to_thread(json.dumps, self._samples.add_to(self._feeder.snapshot()))
        return web.Response(text=text, content_type="application/json")

    async def page(self, request: web.Request) -> web.Response:
        refreshes = "still" not in request.query
        snapshot = self._samples.add_to(self._feeder.snapshot())
        text = await asyncio.to_thread(page, snapshot, refreshes=refreshes)
        return web.Response(text=text, content_type="text/html", headers=headers())


def application(feeder: Feeder, samples: Samples) -> web.Application:
    """Return the pages of one feeder.

    Args:
        feeder: The feeder whose state is shown.
        samples: The samples of its last minutes.
    """
    host, _ = host_and_port(feeder.settings.status or "127.0.0.1:0")
    app = web.Application(middlewares=[host_check(host, feeder.settings.status_hosts)])
    app.on_response_prepare.append(_close)
    pages = _StatusPages(feeder, samples)
    app.add_routes(
        [
            web.get("/", pages.page),
            web.get("/livez", pages.live),
            web.get("/readyz", pages.ready),
            web.get("/metrics", pages.metrics),
            web.get("/status.json", pages.status_json),
        ]
    )
    return app


async def _close(_: web.Request, answer: web.StreamResponse) -> None:
    answer.force_close()  # a connection is for one request
    answer.headers["Connection"] = "close"


@asynccontextmanager
async def serving(where: str, feeder: Feeder) -> AsyncIterator[str]:
    """Serve the pages while the block runs.

    Args:
        where: ``host:port``; port 0 picks a free one.
        feeder: The feeder whose state is shown.

    Yields:
        The ``host:port`` with the port that was picked.

    Raises:
        ConfigError: It cannot be listened at.
    """
    host, port = host_and_port(where)
    samples = Samples()
    pages = application(feeder, samples)
    runner = web.AppRunner(
        pages, access_log=None, shutdown_timeout=1.0, logger=_RequestLog(feeder.statistics)
    )
    await runner.setup()
    assert runner.server is not None

    def count() -> None:
        feeder.statistics.dropped["status"] += 1

    try:
        opened = await StatusPort.open(host, port, runner.server, count)
        try:
            async with sampling(feeder, samples):
                yield str(opened.address).removeprefix("tcp://")
        finally:
            await finish(opened.aclose())
    finally:
        await finish(runner.cleanup())


@asynccontextmanager
async def sampling(feeder: Feeder, samples: Samples) -> AsyncIterator[None]:
    """Take a sample every few seconds while the block runs, and log which ranks are late."""
    late = LateLog()

    async def take() -> None:
        while True:
            snapshot = feeder.snapshot()
            samples.take(snapshot)
            late.look(samples.add_to(snapshot))
            await asyncio.sleep(EVERY)

    task = asyncio.get_running_loop().create_task(take())
    try:
        yield
    finally:
        await finish(end(task))


PACKAGE = "streamrec.feeder.page"


def page(snapshot: Mapping[str, Any], *, refreshes: bool = True) -> str:
    """Return the page of a snapshot that has samples.

    Args:
        snapshot: The snapshot; all text in it is escaped and bounded.
        refreshes: True: the browser loads the page again every few seconds.
    """
    view = view_of(snapshot)
    template = environment(PACKAGE).get_template("page.html")
    return template.render(
        view=view,
        lines=[(line, chart_of(line.values)) for line in view.series],
        style=read_text("page.css"),
        refresh=int(EVERY) if refreshes else None,
    )


@cache
def headers() -> dict[str, str]:
    """Return the headers that let a browser load nothing but the page, and keep nothing of it."""
    return {
        "Content-Security-Policy": (
            f"{policy(style=read_text('page.css'))}; frame-ancestors 'none'"
        ),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
