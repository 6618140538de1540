"""Writing by blocking calls: single objects, which appear complete or not at all, and folders."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.stores.base.foreign_errors import hint_at_place, translate_errors
from streamrec.stores.base.protocol import NO_SIZE, ObjectInfo
from streamrec.stores.blocking import WRITES_AT_ONCE, BlockingStores
from streamrec.stores.open import make_store
from streamrec.surroundings import absolute as absolute_path
from streamrec.surroundings import hold_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamrec.stores.base.protocol import NewObject


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


T = TypeVar("T")


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
