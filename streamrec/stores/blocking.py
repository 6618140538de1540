"""The stores of objects for callers without an event loop, and writing by blocking calls."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from streamrec.config.named_files import check_option_files, check_variables
from streamrec.config.places import (
    FILE,
    absolute,
    check_no_archive,
    check_url,
    is_file_url,
    local_path,
)
from streamrec.config.schemes import line_of
from streamrec.errors import ConfigError, ObjectNotFound, StoreError
from streamrec.flow.bridge import Bridge
from streamrec.flow.cleanup import all_of
from streamrec.stores.base.foreign_errors import hint_at_place, translate_errors
from streamrec.stores.base.protocol import (
    NO_SIZE,
    Cleaning,
    Copying,
    ObjectInfo,
    in_thread,
    read_range,
)
from streamrec.stores.open import Stores, make_store
from streamrec.surroundings import absolute as absolute_path
from streamrec.surroundings import hold_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence

    from streamrec.stores.base.protocol import NewObject, Store
    from streamrec.values.columns import ByteArray

T = TypeVar("T")

AT_ONCE = 32
"""Objects that are read at the same time."""
WRITES_AT_ONCE = 8
"""Objects that are copied or deleted at the same time."""
PIECE = 8 << 20
"""Bytes that are read and written at a time, where a store does not copy by itself."""
_BRIDGES = weakref.WeakSet[Bridge]()
"""Those that are open, which the interpreter waits for at its end, as it holds no lock there."""


async def publish(store: Store, url: str, other: str, size: int) -> None:
    """Show an object under another name, in place of an older one.

    A store that can rename does; elsewhere the present name is still to be deleted.

    Args:
        store: The store of both.
        url: The object's URL.
        other: The other URL, in the same directory.
        size: The object's bytes.

    Raises:
        StoreError: It cannot be copied.
    """
    if isinstance(store, Copying):
        await store.copy(url, other, size)
        return
    target = await in_thread(store.put, other)
    try:
        await _pour(store, url, target, size)
        await in_thread(target.commit)
    finally:
        await in_thread(target.discard)


async def _pour(store: Store, url: str, target: NewObject, size: int) -> None:
    info = ObjectInfo(url)
    for start in range(0, size, PIECE):
        # The first answer pins the version of the others.
        data, info = await read_range(store, info, start, min(start + PIECE, size))
        await in_thread(target.write, data.data)


class BlockingStores:
    """Stores whose calls block. Each process opens its own: a pickle holds the options alone.

    Args:
        storage_options: The stores' options.
    """

    def __init__(self, storage_options: Mapping[str, Any]) -> None:
        self._options = storage_options
        self._opened: tuple[Bridge, Stores] | None = None
        self._opening = threading.Lock()

    def __reduce__(self) -> Any:
        return BlockingStores, (self._options,)

    def read(self, found: ObjectInfo, start: int, stop: int) -> tuple[ByteArray, ObjectInfo]:
        """Read a range of an object in its version, with retries.

        Raises:
            StoreError: It cannot be read, or is another version now.
        """
        return self._call(lambda stores: _read(stores, found, start, stop))

    def read_all(self, found: Sequence[ObjectInfo], most: int | None = None) -> list[Any]:
        """Return objects' bytes and facts as :meth:`read` does; errors in place of some.

        Args:
            found: The objects.
            most: The bytes to read of each; ``None``: all.
        """

        async def read(stores: Stores, one: ObjectInfo) -> Any:
            try:
                return await _read(stores, one, 0, (one.size or 0) if most is None else most)
            except StoreError as error:
                return error

        return self._at_once(read, found, AT_ONCE)

    def list_objects(self, prefix: str, *, recursive: bool = True) -> list[ObjectInfo]:
        """Return the objects whose URLs begin with a prefix."""
        return self._call(lambda stores: _list(stores, prefix, recursive=recursive))

    def has_any(self, prefix: str) -> bool:
        """Return whether any object's URL begins with a prefix."""
        return self._call(lambda stores: _has_any(stores, prefix))

    def match(self, pattern: str) -> list[ObjectInfo]:
        """Return the objects that a pattern stands for, sorted; none if nothing matches."""
        try:
            return self._call(lambda stores: stores.resolve(pattern))
        except ObjectNotFound:
            return []

    def delete(self, urls: Iterable[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        self._at_once(lambda stores, url: stores.store_for(url).delete(url), urls, WRITES_AT_ONCE)

    def publish(self, others: Mapping[str, str], sizes: Mapping[str, int]) -> None:
        """Show objects under other names; see :func:`~streamrec.stores.blocking.publish`.

        Args:
            others: The other URLs by the present ones.
            sizes: The objects' bytes by their present URLs.
        """
        self._at_once(
            lambda stores, url: publish(stores.store_for(url), url, others[url], sizes[url]),
            others,
            WRITES_AT_ONCE,
        )

    def remove_left(self, directory: str, prefixes: Sequence[str]) -> None:
        """Remove what killed writers left; see :class:`Cleaning`."""
        self._call(lambda stores: _remove_left(stores.store_for(directory), directory, prefixes))

    def _at_once(
        self, call: Callable[[Stores, T], Coroutine[Any, Any, Any]], items: Iterable[T], most: int
    ) -> list[Any]:
        async def calls(stores: Stores) -> list[Any]:
            limit = asyncio.Semaphore(most)

            async def one(item: T) -> Any:
                async with limit:
                    return await call(stores, item)

            return list(await all_of(map(one, items)))

        return self._call(calls)

    def _call(self, call: Callable[[Stores], Coroutine[Any, Any, T]]) -> T:
        bridge, stores = self._here()
        return bridge.call(call(stores))

    def _here(self) -> tuple[Bridge, Stores]:
        """Return the stores of this process, which a fork opens anew."""
        with self._opening:  # several threads may make the first calls
            if self._opened is None or not self._opened[0].is_here:
                bridge, stores = self._opened = Bridge(), Stores(self._options)
                # Not at exit by itself: _close_all does that, in which loops may still be waited
                # for.
                weakref.finalize(self, _end, bridge, bridge.call(_hold_open(stores))).atexit = False
                _BRIDGES.add(bridge)
            return self._opened


async def _read(
    stores: Stores, found: ObjectInfo, start: int, stop: int
) -> tuple[ByteArray, ObjectInfo]:
    return await read_range(stores.store_for(found.url), found, start, stop)


async def _list(stores: Stores, prefix: str, *, recursive: bool) -> list[ObjectInfo]:
    listing = stores.store_for(prefix).list(prefix, recursive=recursive)
    return [info async for info in listing]


async def _has_any(stores: Stores, prefix: str) -> bool:
    listing = cast("AsyncGenerator[ObjectInfo, None]", stores.store_for(prefix).list(prefix))
    async with aclosing(listing):
        async for _ in listing:
            return True
    return False


async def _remove_left(store: Store, directory: str, prefixes: Sequence[str]) -> None:
    if isinstance(store, Cleaning):
        await store.remove_left(directory, prefixes)


async def _hold_open(stores: Stores) -> asyncio.Task[None]:
    """Return a task that closes stores when it is cancelled, as the end of a bridge does."""
    # Stores are closed by awaiting, and the end of a bridge awaits nothing but cancelled tasks.
    holder = asyncio.get_running_loop().create_task(_hold(stores))
    await asyncio.sleep(0)  # it has begun
    return holder


async def _hold(stores: Stores) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await stores.aclose()


def _end(bridge: Bridge, _holder: asyncio.Task[None]) -> None:
    """End the bridge; the collector may call this in any thread, so nothing is waited for."""
    if bridge.is_here:
        bridge.end()


@atexit.register
def _close_all() -> None:
    for bridge in list(_BRIDGES):
        if bridge.is_here:
            bridge.close()


def new_object(
    url: str,
    storage_options: Mapping[str, Any],
    *,
    make_directory: bool = False,
    spooled: bool = False,
) -> NewObject:
    """Begin a new object in the store of a URL; see :class:`Store`.

    Args:
        url: A URL, or a local path.
        storage_options: The store's options, for a URL.
        make_directory: Make a missing directory, if the store has directories.
        spooled: Keep it in a local temporary file until it is complete.

    Raises:
        ConfigError: The scheme is not known, or the URL names no object.
        StoreError: The object cannot be begun.
    """
    hold_standard_descriptors()  # else this object may become standard error
    if line_of(url).name != "file":
        check_url(url)
        check_no_archive(url)
        check_variables(url)
        check_option_files(storage_options)
    elif is_file_url(url):
        url = FILE + local_path(url)
    store = make_store(url, storage_options)
    return store.put(url, make_directory=make_directory, spooled=spooled)


def write_object(
    url: str,
    data: bytes,
    storage_options: Mapping[str, Any] | None = None,
    *,
    make_directory: bool = False,
) -> None:
    """Write one object, which appears complete, or not at all.

    Args:
        url: A URL, or a local path.
        data: The object's content.
        storage_options: The store's options, for a URL.
        make_directory: Make a missing directory, if the store has directories.

    Raises:
        ConfigError: The scheme is not known.
        ObjectNotFound: The directory does not exist.
        AccessDenied: The object may not be written.
        StoreError: The object could not be written.
    """
    target = new_object(url, storage_options or {}, make_directory=make_directory)
    try:
        target.write(data)
        target.commit()
    finally:
        target.discard()


class Folder:
    """A directory of files, or the keys of a store with a common prefix that ends in a slash.

    Its methods block, and raise the errors of stores.

    Args:
        url: A URL or a path up to its last slash; an empty text is the working directory.
        storage_options: The store's options, for a URL.

    Raises:
        ConfigError: The working directory, which the path is below, was deleted; or the path has
            what a shell replaces, or a scheme with one slash.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        url = local_path(url)
        self._is_local = line_of(url).name == "file"
        if self._is_local:
            first = Path(*Path(url).parts[:1])
            # Else a folder of this name would be made.
            if (hint := hint_at_place(url)) and not first.exists():
                raise ConfigError(f"{url}: {hint}")
            absolute_path(Path(url))  # refuses a directory that was deleted
            # The program may change its directory.
            url = absolute(url) if url else absolute("./").removesuffix("./")
        else:
            check_url(url)
        self._url = url
        self.options = storage_options
        self._stores = BlockingStores(storage_options)
        self._made: list[Path] = []

    def __repr__(self) -> str:
        return f"<Folder {self._url!r}>"

    def url(self, name: str) -> str:
        """Return an object's URL."""
        return f"{self._url}{name}"

    def make(self) -> None:
        """Make the directory and those above it, if it is local; stores have none."""
        if self._is_local and self._url:
            with translate_errors(self._url, writing=True):
                path = Path(self._url)
                # The innermost comes first, as unmake must remove it before those that hold it.
                self._made = [one for one in (path, *path.parents) if not one.exists()]
                path.mkdir(parents=True, exist_ok=True)

    def unmake(self) -> None:
        """Remove the directories that :meth:`make` made, as far as they are empty."""
        with contextlib.suppress(OSError):
            for path in self._made:
                path.rmdir()

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all objects by name, without those in deeper directories."""
        if self._is_local:  # stores of objects have no empty directories
            with translate_errors(self._url, writing=True):
                Path(self._url).stat()
        found: list[ObjectInfo] = []
        with contextlib.suppress(ObjectNotFound):
            found = self._stores.list_objects(self._url, recursive=False)
        sizes = {info.url.removeprefix(self._url): info.size for info in found}
        # What a disk names no size of, a FIFO or a link that leads nowhere, is not an object.
        return {
            name: size or 0
            for name, size in sizes.items()
            if name and (size is not None or not self._is_local)
        }

    def read(self, name: str) -> bytes | None:
        """Return an object's content; ``None`` if there is no such object."""
        with contextlib.suppress(ObjectNotFound):
            data, _ = self._stores.read(ObjectInfo(self.url(name)), 0, NO_SIZE - 1)
            return data.tobytes()
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write an object, which appears complete, or not at all."""
        write_object(self.url(name), data, self.options)

    def publish(self, names: Mapping[str, str], sizes: Mapping[str, int]) -> None:
        """Show objects under other names, in place of their present ones.

        A store cannot rename, and copies: there, the present names are still to be removed.

        Args:
            names: The other names by the present ones.
            sizes: The objects' sizes by their present names.
        """
        others = {self.url(name): self.url(other) for name, other in names.items()}
        self._stores.publish(others, {self.url(name): sizes[name] for name in names})

    def remove(self, *names: str) -> None:
        """Remove objects; those that do not exist are passed over."""
        if names:
            self._stores.delete(map(self.url, names))

    def at_once(self, *calls: Callable[[], T]) -> list[T]:
        """Make calls that do not depend on each other: of a store, several at the same time.

        Returns:
            What they return.
        """
        if self._is_local or len(calls) < 2:
            return [call() for call in calls]
        with ThreadPoolExecutor(WRITES_AT_ONCE, "streamrec-folder") as threads:
            return list(threads.map(lambda call: call(), calls))

    def remove_left(self, prefixes: Iterable[str]) -> None:
        """Remove what writers that were killed left of objects whose names begin like these."""
        self._stores.remove_left(self._url, tuple(prefixes))
