"""The daemon behind ``streamrec serve``: opens the datasets, listens, and drains on SIGTERM.

It also raises its limit of open files.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from streamrec.config.machine import daemon_budget, memory_budget, worker_count
from streamrec.feeder.access.access import Access
from streamrec.feeder.operate import status
from streamrec.feeder.operate.log_format import exporting
from streamrec.feeder.operate.signals import Notifier, dumping, reloading
from streamrec.feeder.operate.status_port import MOST as MOST_STATUS
from streamrec.feeder.server.datasets import ServedDatasets
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.service import SharedBudget
from streamrec.feeder.workers.supervisor import Supervisor
from streamrec.flow.bridge import new_event_loop
from streamrec.flow.timings import watching
from streamrec.pipeline.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from streamrec.config import DatasetSettings
    from streamrec.config.daemon import DaemonSettings
    from streamrec.config.server_settings import ServerSettings
    from streamrec.pipeline.served import Served


log = logging.getLogger("streamrec.feeder")


ENOUGH = 1 << 20
"""Files beyond which no limit is raised; some systems allow a thousand times as many."""
OWN = 1024
"""Files for all but clients and the status port: above all the connections to stores."""


def raise_limit(server: ServerSettings) -> None:
    """Raise this process' soft limit as far as the hard one, and say so where that is not enough.

    With enough files the limits on connections are reached first, so that the status port answers
    and clients are told to go elsewhere.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    needed = server.max_connections + server.max_handshakes + MOST_STATUS + OWN
    if soft != resource.RLIM_INFINITY and soft < needed:
        log.warning(
            "the limit of open files is %d, and so many clients as max_connections allows need %d; "
            "raise the hard limit (ulimit -Hn, LimitNOFILE), or lower max_connections",
            soft,
            needed,
        )


@dataclass(frozen=True)
class Bound:
    """The addresses at which a daemon really listens."""

    feeder: list[str]
    """``tcp://host:port``, ``tls://host:port`` or ``unix:///path``, as in the configuration."""
    status: str | None
    """``host:port``."""
    failing: dict[str, str] = field(default_factory=dict)
    """By name, the datasets whose stores failed when they were to be opened, and why."""


async def serve(
    settings: DaemonSettings,
    *,
    ready: Callable[[Bound], None] | None = None,
    opener: Callable[[DatasetSettings], Awaitable[Served]] = Dataset.open,
    load: Callable[[], DaemonSettings] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal cuts everything at once.

    SIGHUP reloads the configuration, SIGUSR1 logs tasks and statistics.

    Args:
        settings: What to serve, and where.
        ready: Called when clients are welcome: all datasets are open, or their stores have failed,
            and are asked again and again.
        opener: Opens a dataset.
        load: Reads the configuration anew.

    Raises:
        ConfigError: An address cannot be listened at, or a certificate or a token not be read.
        StreamrecError: A dataset cannot be opened, and not because of its store.
    """
    notifier = Notifier.of()
    async with contextlib.AsyncExitStack() as stack:
        # What is entered first is closed last: clients go before the datasets that they read.
        budget = SharedBudget(daemon_budget(settings.server))
        served = ServedDatasets(settings.datasets, opener, partial(_check_memory, budget))
        datasets = await stack.enter_async_context(served)
        traces = await stack.enter_async_context(exporting(settings.server.traces))
        feeder = await stack.enter_async_context(await _feeder(settings, datasets, budget))
        feeder.statistics.tracing = None if traces is None else traces.subscribed
        stack.enter_context(watching(feeder.statistics.loop))
        stop = stack.enter_context(_signals())
        # Listening before the datasets are open: health can be asked for, and early clients wait.
        bound = await _listen(settings, feeder, stack)
        await stack.enter_async_context(notifier.reporting(lambda: _state(feeder)))
        stack.enter_context(dumping(feeder))
        if load is not None:
            await stack.enter_async_context(reloading(load, feeder, datasets, notifier))
        # A signal before anybody was welcome: there is nothing to drain.
        if await _until(stop, _open(feeder, datasets)):
            return
        if ready is not None:
            ready(replace(bound, failing=datasets.troubles))
        notifier.ready()
        await stop.get()
        notifier.stopping()
        await _until(stop, _drain(feeder))


def run(
    settings: DaemonSettings,
    ready: Callable[[Bound], None] | None = None,
    load: Callable[[], DaemonSettings] | None = None,
) -> None:
    """Run :func:`serve` in an event loop of its own, uvloop's where it is installed."""

    def begin(bound: Bound) -> None:
        _keep_objects()
        if ready is not None:
            ready(bound)

    raise_limit(settings.server)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(settings, ready=begin, load=load))


def _keep_objects() -> None:
    """Take what is imported and open by now, which stays, out of the garbage collector.

    To look through 100,000 objects again and again took a fifth of the event loop's time while
    clients came and went, and held up all others for 0.1 s.
    """
    gc.collect()
    gc.freeze()


async def _feeder(
    settings: DaemonSettings, datasets: ServedDatasets, budget: SharedBudget
) -> Feeder:
    """Return a feeder in this process, or the supervisor of several."""
    server = settings.server
    workers = worker_count(server)
    token_files = {name: one.tokens for name, one in settings.datasets.items()}
    # In a thread, as it reads files.
    access = await asyncio.to_thread(Access, server, token_files)
    if workers == 1:
        return Feeder({**datasets}, server, budget=budget, access=access)
    log.info("starts %d worker processes", workers)
    return Supervisor(datasets, server, workers, budget, access)


def _check_memory(budget: SharedBudget, dataset: Served) -> None:
    """Check that a rank of some world size can read a dataset.

    Raises:
        ConfigError: None can.
    """
    dataset.check_memory()
    budgeted = memory_budget(dataset.settings)
    budget.check(min(budgeted, dataset.least_budget(dataset.lanes)))


async def _open(feeder: Feeder, datasets: ServedDatasets) -> None:
    """Return once clients are welcome; see :func:`serve`."""
    await datasets.wait_until_tried()
    if isinstance(feeder, Supervisor):
        await feeder.all_ready()


async def _drain(feeder: Feeder) -> None:
    """Let the clients go elsewhere, and say how that went."""
    grace = feeder.settings.grace
    log.info("drains: %d clients have %g s to go elsewhere", feeder.admission.clients, grace)
    log.info("has drained; %d connections are cut", await feeder.drain(grace))


def _state(feeder: Feeder) -> str:
    return feeder.obstacle or f"serves {feeder.admission.clients} clients"


async def _listen(
    settings: DaemonSettings, feeder: Feeder, stack: contextlib.AsyncExitStack
) -> Bound:
    page = None
    if settings.server.status is not None:
        page = await stack.enter_async_context(status.serving(settings.server.status, feeder))
    bound = Bound([str(await feeder.listen(where)) for where in settings.server.listen], page)
    log.info("listens at %s; status at %s", ", ".join(bound.feeder), page or "none")
    return bound


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Queue[int]]:
    """Collect the signals that ask for the end, as they come."""
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[int] = asyncio.Queue()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, received.put_nowait, number)
    try:
        yield received
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _until(stop: asyncio.Queue[int], work: Awaitable[object]) -> bool:
    """Do some work, unless a signal comes first; return True if one came."""
    signalled = asyncio.ensure_future(stop.get())
    working = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([signalled, working], return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            working.result()
        return working not in done
    finally:
        signalled.cancel()
        working.cancel()
        # Awaited, so that nothing of the work runs on behind the return.
        await asyncio.gather(signalled, working, return_exceptions=True)
