"""The daemon behind ``streamrec serve``: opens the datasets, listens, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrec.config.memory_budget import daemon_budget
from streamrec.feeder import status
from streamrec.feeder.budget import Budget
from streamrec.feeder.datasets import opened
from streamrec.feeder.server import Feeder
from streamrec.flow.bridge import new_event_loop
from streamrec.pipeline.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from streamrec.config import DaemonSettings, DatasetSettings

__all__ = ["Bound", "run", "serve"]


@dataclass(frozen=True)
class Bound:
    """The addresses at which a daemon really listens."""

    feeder: list[str]
    """``tcp://host:port`` or ``unix:///path``, in the order of the configuration."""
    status: str | None
    """``host:port``."""


async def serve(
    settings: DaemonSettings,
    *,
    ready: Callable[[Bound], None] | None = None,
    opener: Callable[[DatasetSettings], Awaitable[Dataset]] = Dataset.open,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal cuts everything at once.

    Args:
        settings: What to serve, and where.
        ready: Called when all datasets are open and clients are welcome.
        opener: Opens a dataset.

    Raises:
        ConfigError: An address cannot be listened at.
        StreamrecError: A dataset cannot be opened.
    """
    async with contextlib.AsyncExitStack() as stack:
        datasets = {name: opener(dataset) for name, dataset in settings.datasets.items()}
        opening = await stack.enter_async_context(opened(datasets))
        budget = Budget(daemon_budget(settings.server))
        feeder = Feeder(dict(opening), settings.server, budget=budget)
        await stack.enter_async_context(feeder)
        stop = stack.enter_context(_signals())
        bound = await _listen(settings, feeder, stack)
        if await _until(stop, asyncio.gather(*opening.values())):
            return
        if ready is not None:
            ready(bound)
        await stop.get()
        await _until(stop, feeder.drain(settings.server.grace))


def run(settings: DaemonSettings, ready: Callable[[Bound], None] | None = None) -> None:
    """Run :func:`serve` in an event loop of its own, uvloop's where it is installed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(settings, ready=ready))


async def _listen(
    settings: DaemonSettings, feeder: Feeder, stack: contextlib.AsyncExitStack
) -> Bound:
    page = None
    if settings.server.status is not None:
        page = await stack.enter_async_context(status.serving(settings.server.status, feeder))
    return Bound([str(await feeder.listen(where)) for where in settings.server.listen], page)


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
        await asyncio.gather(signalled, working, return_exceptions=True)
