"""A store whose answers a test decides: real bytes, with the faults and waits of a script."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamrec.errors import StoreError
from streamrec.stores.base.protocol import ObjectInfo
from tests.read_only import ReadOnly
from tests.stores.piecewise_body import PiecewiseBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from streamrec.formats.shards.index import Index


@dataclass
class Body(PiecewiseBody):
    """A part of an object, handed out in pieces, perhaps broken off."""

    info: ObjectInfo
    data: memoryview
    piece: int
    fails_after: int | None = None
    failure: StoreError | None = None

    async def readinto(self, view: memoryview) -> int:
        await asyncio.sleep(0)
        if self.fails_after == 0 and self.failure is not None:
            raise self.failure
        count = min(len(view), len(self.data), self.piece)
        if self.fails_after is not None:
            count = min(count, self.fails_after)
            self.fails_after -= count
        view[:count] = self.data[:count]
        self.data = self.data[count:]
        return count


@dataclass
class ScriptedStore(ReadOnly):
    """A store of the objects in a mapping.

    ``faults`` are used up, one a request: an error before the answer, or (bytes, error) for a body
    that breaks off after so many bytes, or ``None`` for no fault.
    """

    objects: Mapping[str, bytes]
    piece: int = 1 << 20
    faults: deque[StoreError | tuple[int, StoreError] | None] = field(default_factory=deque)
    etags: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, int, int, str | None]] = field(default_factory=list)
    indexes: dict[str, Index] = field(default_factory=dict)
    open_bodies: int = 0
    most_open: int = 0
    cache: None = None
    gate: asyncio.Event | None = None
    """Event that answers wait for, if there is one."""

    def share_memory(self, size: int) -> None:
        pass

    def store_for(self, url: str) -> ScriptedStore:
        return self

    def are_local(self, urls: Iterable[str]) -> bool:
        return False

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        for url, data in self.objects.items():
            yield ObjectInfo(url, len(data), self.etags.get(url))

    async def aclose(self) -> None:
        pass

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[Body]:
        self.asked.append((url, start, stop, etag))
        self.open_bodies += 1
        self.most_open = max(self.most_open, self.open_bodies)
        try:
            if self.gate is not None:
                await self.gate.wait()
            fault = self.faults.popleft() if self.faults else None
            if isinstance(fault, StoreError):
                raise fault
            data = self.objects[url]
            info = ObjectInfo(url, len(data), self.etags.get(url, '"v1"'))
            after, failure = fault or (None, None)
            yield Body(info, memoryview(data)[start:stop], self.piece, after, failure)
        finally:
            self.open_bodies -= 1
