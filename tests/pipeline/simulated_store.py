"""A store with latency, bandwidth and faults in simulated time, in which hours pass at once."""

from __future__ import annotations

import asyncio
import copy
import functools
import selectors
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from streamrec.errors import StoreError, StoreUnavailable
from streamrec.flow import cleanup
from streamrec.pipeline.terms import memory_needs
from streamrec.stores.base.protocol import ObjectInfo
from tests.read_only import ReadOnly
from tests.stores.piecewise_body import PiecewiseBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping

    import pytest


class _Selector(selectors.DefaultSelector):
    """A selector that jumps to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0 if timeout is not None else None)
        if not events and timeout:
            self.now += timeout
        return events


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is simulated."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a plain test of a coroutine function; it has an hour of simulated time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(3600):
                await test(*args, **kwargs)

        at_once = SimpleNamespace(start_new_thread=lambda _, arguments: arguments[0].run())
        with (
            patch.object(cleanup, "_thread", at_once),  # simulated time does not wait for threads
            asyncio.Runner(loop_factory=SimulatedLoop) as runner,
        ):
            runner.run(bounded())

    return run


class InlineExecutor(Executor):
    """An executor that runs its work at once, since simulated time does not wait for threads."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is handed on
            future.set_exception(error)
        return future


def set_executors(
    monkeypatch: pytest.MonkeyPatch,
    others: Callable[[int, str], Executor] = InlineExecutor,
    *,
    inflating: Callable[[int, str], Executor] = InlineExecutor,
) -> None:
    """Set what runs the work of runs: of decompressing, and of all else."""

    def made(most: int, name: str, *_: object) -> Executor:
        if name == "streamrec-inflate":
            return inflating(most, name)
        return others(most, name)

    monkeypatch.setattr(memory_needs, "ThreadPoolExecutor", made)


@dataclass(frozen=True)
class Trouble:
    """The faults of one request."""

    refused: StoreError | None = None
    """Instead of an answer."""
    breaks_after: int | None = None
    """Bytes of the body, then a broken connection."""
    stalls_after: int | None = None
    """Bytes of the body, then nothing for ``stall`` seconds."""
    stall: float = 1e6
    slowness: float = 1.0
    """The bandwidth is so many times less."""
    flips: int | None = None
    """This byte of the object comes wrong."""


NO_TROUBLE = Trouble()


@dataclass
class SimulatedStore(ReadOnly):
    """A store of the objects in a mapping."""

    objects: Mapping[str, bytes]
    latency: float = 0.05
    bandwidth: float = 60e6
    piece: int = 256 << 10
    trouble: Callable[[int, str, int, int], Trouble] = lambda *_: NO_TROUBLE
    """Function that returns the trouble of a request, given its number, URL, start and stop."""
    etags: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    open_bodies: int = 0
    most_open: int = 0
    cache: None = None

    def share_memory(self, size: int) -> None:
        pass

    def store_for(self, url: str) -> SimulatedStore:
        return self

    def are_local(self, urls: Iterable[str]) -> bool:
        return False

    async def aclose(self) -> None:
        assert self.open_bodies == 0

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        for url in self.objects:
            yield self.info(url)

    def info(self, url: str) -> ObjectInfo:
        return ObjectInfo(url, len(self.objects[url]), self.etags.get(url, '"v1"'))

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[SimulatedBody]:
        trouble = self.trouble(len(self.asked), url, start, stop)
        self.asked.append((url, start, stop))
        self.open_bodies += 1
        self.most_open = max(self.most_open, self.open_bodies)
        try:
            await asyncio.sleep(self.latency)
            if trouble.refused is not None:
                raise copy.copy(trouble.refused)
            data = memoryview(self.objects[url])[start:stop]
            if trouble.flips is not None and start <= trouble.flips < stop:
                wrong = bytearray(data)
                wrong[trouble.flips - start] ^= 0xFF
                data = memoryview(wrong)
            yield SimulatedBody(self, self.info(url), data, trouble)
        finally:
            self.open_bodies -= 1


class SimulatedBody(PiecewiseBody):
    """A body that comes at the connection's pace."""

    def __init__(
        self, store: SimulatedStore, info: ObjectInfo, data: memoryview, trouble: Trouble
    ) -> None:
        self.info = info
        self._store = store
        self._data = data
        self._sent = 0
        self._trouble = trouble

    async def readinto(self, view: memoryview) -> int:
        store, trouble = self._store, self._trouble
        count = min(len(view), len(self._data) - self._sent, store.piece)
        for place in (trouble.breaks_after, trouble.stalls_after):
            if place is not None and self._sent < place:
                count = min(count, place - self._sent)
        if self._sent == trouble.breaks_after:
            raise StoreUnavailable("the connection broke")
        if self._sent == trouble.stalls_after:
            await asyncio.sleep(trouble.stall)
        await asyncio.sleep(count / store.bandwidth * trouble.slowness)
        view[:count] = self._data[self._sent : self._sent + count]
        self._sent += count
        return count
