"""The store of ``memory://``: fsspec's in-memory filesystem, which the whole process shares."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fsspec.implementations.memory import MemoryFileSystem

from streamrec.errors import ObjectNotFound
from streamrec.stores.base import BytesBody, ObjectInfo, check_pin, check_range

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fsspec.implementations.memory import MemoryFile

__all__ = ["MemoryStore"]

SCHEME = "memory://"


class MemoryStore:
    """The store of the objects in this process's ``fsspec.filesystem("memory")``."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = MemoryFileSystem.store

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[BytesBody]:
        """Copy the range, so that a writer may go on; see :class:`Store`."""
        check_range(start, stop)
        file = self._files.get(_path(url))
        if file is None:
            raise ObjectNotFound(
                "there is no such object in this process's memory; write it in this process, since "
                "memory:// is not shared",
                url=url,
            )
        info = _describe(url, file)
        check_pin(url, etag, info.etag)
        yield BytesBody(info, bytes(file.getbuffer()[start:stop]))

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """Yield the objects below a prefix; see :class:`Store`."""
        start = _path(prefix)
        for path, file in list(self._files.items()):
            rest = path[len(start) :]
            if path.startswith(start) and (recursive or "/" not in rest):
                yield _describe(prefix + rest, file)

    async def aclose(self) -> None:
        """Do nothing: the memory belongs to the process."""


def _path(url: str) -> str:
    """Return the key in fsspec's mapping, which begins with exactly one slash."""
    return "/" + url.removeprefix(SCHEME).lstrip("/")


def _describe(url: str, file: MemoryFile) -> ObjectInfo:
    size = file.getbuffer().nbytes
    return ObjectInfo(url, size, f'"{file.created.timestamp()}-{file.modified.timestamp()}-{size}"')
