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
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from streamrec.feeder.access.address import host_and_port
from streamrec.feeder.operate.metrics import SnapshotCollector
from streamrec.feeder.operate.status_port import StatusPort, host_check
from streamrec.feeder.page import render
from streamrec.feeder.page.samples import EVERY, Samples
from streamrec.flow.cleanup import end, finish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from streamrec.feeder.server.server import Feeder
    from streamrec.feeder.server.statistics import FeederStatistics

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
        if not isinstance(options.get("exc_info"), HttpProcessingError):
            return False
        self._statistics.dropped["garbage"] += 1
        self.warning("the status port got something else than HTTP from %s", *args)
        return True


def application(feeder: Feeder, samples: Samples) -> web.Application:
    """Return the pages of one feeder.

    Args:
        feeder: The feeder whose state is shown.
        samples: The samples of its last minutes.
    """

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        obstacle = feeder.obstacle
        return web.Response(text=f"{obstacle or 'ok'}\n", status=503 if obstacle else 200)

    async def metrics(_: web.Request) -> web.Response:
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(feeder.snapshot()))
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def status_json(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(json.dumps, samples.add_to(feeder.snapshot()))
        return web.Response(text=text, content_type="application/json")

    async def page(request: web.Request) -> web.Response:
        refreshes = "still" not in request.query
        shown = samples.add_to(feeder.snapshot())
        text = await asyncio.to_thread(render.page, shown, refreshes=refreshes)
        return web.Response(text=text, content_type="text/html", headers=render.headers())

    async def close(_: web.Request, answer: web.StreamResponse) -> None:
        answer.force_close()  # a connection is for one request
        answer.headers["Connection"] = "close"

    host, _ = host_and_port(feeder.settings.status or "127.0.0.1:0")
    app = web.Application(middlewares=[host_check(host, feeder.settings.status_hosts)])
    app.on_response_prepare.append(close)
    app.add_routes(
        [
            web.get("/", page),
            web.get("/livez", live),
            web.get("/readyz", ready),
            web.get("/metrics", metrics),
            web.get("/status.json", status_json),
        ]
    )
    return app


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
    """Take a sample every few seconds while the block runs."""

    async def take() -> None:
        while True:
            samples.take(feeder.snapshot())
            await asyncio.sleep(EVERY)

    task = asyncio.get_running_loop().create_task(take())
    try:
        yield
    finally:
        await finish(end(task))
