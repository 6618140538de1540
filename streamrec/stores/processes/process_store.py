"""The store whose ranges fetch processes read."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamrec.stores.base.protocol import check_range, let_pass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streamrec.stores.base.protocol import (
        BeforeRequest,
        NewObject,
        ObjectInfo,
        RangeBody,
        Store,
    )
    from streamrec.stores.processes.fetch_processes import FetchProcesses


class RemoteProcessStore:
    """A store that has its ranges read by fetch processes, and does all else itself.

    Until one of them is ready, and while none is, it reads ranges itself, too.

    Args:
        store: The same store, in this process.
        processes: The processes.
        before_request: Called before each request that a process sends.
    """

    def __init__(
        self, store: Store, processes: FetchProcesses, before_request: BeforeRequest = let_pass
    ) -> None:
        self.store = store
        self._processes = processes
        self._before_request = before_request

    def __repr__(self) -> str:
        return f"<RemoteProcessStore of {self.store!r}>"

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[RangeBody]:
        """Read a range; see :class:`Store`."""
        check_range(start, stop)
        process = self._processes.process_for(url)
        if process is None:
            async with self.store.open_range(url, start, stop, etag=etag) as own:
                yield own
            return
        self._before_request(stop - start)
        async with process.open_range(url, start, stop, etag) as body:
            yield body

    def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """Yield the objects that the store lists; see :class:`Store`."""
        return self.store.list(prefix, recursive=recursive)

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:
        """Begin an object in the store; see :class:`Store`."""
        return self.store.put(url, make_directory=make_directory, spooled=spooled)

    async def delete(self, url: str) -> None:
        """Delete an object in the store; see :class:`Store`."""
        await self.store.delete(url)

    async def aclose(self) -> None:
        """Close the store; the processes may serve others."""
        await self.store.aclose()
