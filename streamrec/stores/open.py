"""From a source, as a user writes it, to objects and the stores that hold them."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError, ObjectNotFound, StoreUnavailable
from streamrec.flow.cleanup import finish
from streamrec.formats.index import SUFFIX
from streamrec.masking import masked
from streamrec.stores.base import ObjectInfo
from streamrec.stores.sources import (
    FAMILIES,
    expand,
    fixed_prefix,
    is_glob,
    matcher,
    scheme_of,
    split_chain,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from streamrec.stores.base import Store

__all__ = ["Stores", "expand", "import_store"]

READ_BY_OBSTORE = frozenset({"abfs", "abfss", "az", "gs", "http", "s3"})

_MODULES = {"file": "local", "gcs": "gcs", "http": "http", "memory": "memory", "s3": "s3"}

PROGRESS_NAMES = 100
"""Names of a listing: so many are progress."""

LOCAL_SCHEMES = frozenset({"file", "memory"})
"""A mounted network's file system among them: its milliseconds are hidden by a few ranges, too."""


class Stores:
    """The stores of one dataset, each made when it is first needed, in the running loop.

    Args:
        storage_options: fsspec's, for the filesystem of the source's scheme; local files and
            memory have none and take no notice of them.
        stall_timeout: Seconds for which a listing may bring nothing; ``None``: for ever.
        connections: How many will be needed at once, as soon as the names are known.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        stall_timeout: float | None = None,
        connections: int = 0,
    ) -> None:
        self._options = dict(storage_options or {})
        self._stall_timeout = stall_timeout
        self._connections = connections
        self._stores: dict[str, Store] = {}

    def __repr__(self) -> str:
        return f"<Stores {', '.join(sorted(self._stores)) or 'none open'}>"

    def store_for(self, url: str) -> Store:
        """The store that reads a URL.

        Raises:
            ConfigError: No store reads this scheme.
        """
        scheme = scheme_of(url)
        if scheme not in self._stores:
            self._stores[scheme] = _make(scheme, self._options, self._connections)
        return self._stores[scheme]

    def are_local(self, urls: Iterable[str]) -> bool:
        """Whether all of them are on this machine, so that no latency has to be hidden."""
        return all(scheme_of(url) in LOCAL_SCHEMES for url in urls)

    async def resolve(self, source: str | Sequence[str]) -> list[ObjectInfo]:
        """Find the objects that a source names, sorted by URL, none of them twice.

        Names are taken at their word: only globs ask the store, and their sizes and ETags are
        those of the listing.

        Raises:
            ObjectNotFound: A glob matches nothing.
            StoreUnavailable: A listing stalls.
            ConfigError: An unknown scheme, a directory, or a glob where nothing can be listed.
        """
        found: dict[str, ObjectInfo] = {}
        for name in dict.fromkeys(expand(source)):
            scheme_of(name)
            _refuse_directory(name)
            if is_glob(name):
                found |= {info.url: info for info in await self._match(name)}
            else:
                found.setdefault(name, ObjectInfo(name))
        return [found[url] for url in sorted(found)]

    async def aclose(self) -> None:
        """Close every store; again changes nothing."""
        await finish(self._close_all())

    async def _close_all(self) -> None:
        while self._stores:
            _, store = self._stores.popitem()
            await store.aclose()

    async def _match(self, glob: str) -> list[ObjectInfo]:
        place = split_chain(glob)
        matches = matcher(place.link)
        prefix = fixed_prefix(place.link)
        recursive = "/" in place.link[len(prefix) :] or "**" in place.link
        listing = self.store_for(glob).list(
            "".join(place._replace(link=prefix)), recursive=recursive
        )
        link = slice(len(place.before), -len(place.after) or None)
        # A key that ends in a slash is a directory's marker, and an index is no shard either.
        found = [
            info
            for info in await self._collect(glob, listing)
            if matches(name := info.url[link]) and not name.endswith(("/", SUFFIX))
        ]
        if not found:
            raise ObjectNotFound(
                "no object matches; check the pattern, and that the shards are there", url=glob
            )
        return found

    async def _collect(self, glob: str, listing: AsyncIterator[ObjectInfo]) -> list[ObjectInfo]:
        """All there is, as long as something comes."""
        seconds, clock = self._stall_timeout, asyncio.get_running_loop().time
        found: list[ObjectInfo] = []
        try:
            async with asyncio.timeout(seconds) as limit:
                async for info in listing:
                    found.append(info)
                    if seconds is not None and not len(found) % PROGRESS_NAMES:
                        limit.reschedule(clock() + seconds)
        except TimeoutError:
            raise StoreUnavailable(
                f"listing stalls: nothing came for {seconds:g} s, after {len(found)} names; check "
                "the store and the network, or raise stall_timeout",
                url=glob,
            ) from None
        return found


def _refuse_directory(name: str) -> None:
    if split_chain(name).link.endswith("/"):
        raise ConfigError(
            f"{masked(name)}: this names a directory; name its shards, as in "
            f"{masked(name)}*.tfrecord"
        )


def import_store(url: str) -> None:
    """Import what reads a URL, before it is needed.

    Raises:
        ConfigError: No store reads this scheme.
        ImportError: A library is missing.
    """
    import_module(f"streamrec.stores.{_MODULES.get(scheme_of(url), 'filesystem')}")


def _make(scheme: str, options: Mapping[str, Any], connections: int) -> Store:
    """Import a store's module, and the libraries behind it, only when it is needed."""
    reader = options.get("reader")
    options = {name: value for name, value in options.items() if name != "reader"}
    if reader is not None and scheme not in ("file", "memory"):
        return _make_reader(reader, scheme, options)
    if scheme not in FAMILIES.values():
        from streamrec.stores.filesystem import FilesystemStore

        return FilesystemStore(scheme, options)
    if scheme == "s3":
        from streamrec.stores.s3 import S3Store

        return S3Store(options, ahead=connections)
    if scheme == "gcs":
        from streamrec.stores.gcs import GCSStore

        return GCSStore(options, ahead=connections)
    if scheme == "http":
        from streamrec.stores.http import HttpStore

        return HttpStore(options)
    if scheme == "memory":
        from streamrec.stores.memory import MemoryStore

        return MemoryStore()
    from streamrec.stores.local import LocalStore

    return LocalStore()


def _make_reader(reader: object, scheme: str, options: Mapping[str, Any]) -> Store:
    """The reader that was asked for by name, in place of the scheme's own."""
    if reader != "obstore" or scheme not in READ_BY_OBSTORE:
        known = ", ".join(sorted(READ_BY_OBSTORE))
        raise ConfigError(
            f"storage_options: there is no reader {reader!r} of {scheme}://; "
            f"'obstore' reads {known}"
        )
    try:
        from streamrec.stores.obstore import ObstoreStore
    except ImportError:
        raise ConfigError(
            "storage_options: the reader 'obstore' is not installed; pip install streamrec[obstore]"
        ) from None
    return ObstoreStore(options)
