"""The objects of one directory, for the tools that write datasets."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.config.places import absolute, check_url, local_path
from streamrec.errors import ObjectNotFound, StoreError
from streamrec.stores.filesystems import filesystem_of, is_anonymous
from streamrec.stores.foreign_errors import translated
from streamrec.stores.part_file import remove_left
from streamrec.stores.regular_file import open_regular
from streamrec.stores.targets import write_object
from streamrec.surroundings import absolute as absolute_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

T = TypeVar("T")

AT_ONCE = 8
"""Calls of a store at the same time."""


class Folder:
    """A directory of files, or the keys of a store with a common prefix that ends in a slash.

    Its methods block, and raise the errors of stores.

    Args:
        url: A URL or a path up to its last slash; an empty text is the working directory.
        storage_options: fsspec's options, for a URL.

    Raises:
        ConfigError: The working directory, which the path is below, was deleted.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        url = local_path(url)
        if "://" not in url:
            absolute_path(Path(url))  # refuses a directory that was deleted
            # The program may change its directory.
            url = absolute(url) if url else absolute("./").removesuffix("./")
        else:
            check_url(url)
        self._url = url
        self.options = storage_options
        self._is_local = "://" not in url
        self._is_s3 = url.lower().startswith(("s3://", "s3a://"))
        options = {} if self._is_local else storage_options
        self._files, self._path = filesystem_of(url, options)
        self._anonymous = is_anonymous(url, self._files)
        self._made: list[Path] = []

    def __repr__(self) -> str:
        return f"<Folder {self._url!r}>"

    def url(self, name: str) -> str:
        """Return an object's URL."""
        return f"{self._url}{name}"

    def make(self) -> None:
        """Make the directory and those above it, if it is local; stores have none."""
        if self._is_local and self._url:
            with self._guarded(""):
                path = Path(self._url)
                self._made = [one for one in (path, *path.parents) if not one.exists()]
                path.mkdir(parents=True, exist_ok=True)

    def unmake(self) -> None:
        """Remove the directories that :meth:`make` made, as far as they are empty."""
        with contextlib.suppress(OSError):
            for path in self._made:
                path.rmdir()

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all objects by name, without those in deeper directories."""
        self._files.invalidate_cache()  # another process may have written since
        try:
            with translated(self.url(""), anonymous=self._anonymous):
                listed = self._listed()
        except ObjectNotFound:
            if self._is_local:
                raise
            return {}  # stores of objects have no empty directories
        return {
            found["name"].rstrip("/").rpartition("/")[2]: found["size"]
            for found in listed
            if found["type"] == "file"
        }

    def _listed(self) -> list[dict[str, Any]]:
        path = self._path.rstrip("/")
        if self._is_s3:
            from streamrec.stores.s3.s3_upload import list_directory

            return list_directory(self._files, path)
        found: list[dict[str, Any]] = self._files.ls(path, detail=True)
        return found

    def read(self, name: str) -> bytes | None:
        """Return an object's content; ``None`` if there is no such object."""
        told = translated(self.url(name), anonymous=self._anonymous)
        with contextlib.suppress(ObjectNotFound), told:
            return self._content(self._at(name))
        return None

    def _content(self, path: str) -> bytes:
        if self._is_local:
            with open(path, "rb", opener=open_regular) as file:  # never waits, as for a FIFO
                return file.read()
        content: bytes = self._files.cat_file(path)
        return content

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
        self.at_once(*(partial(self._publish, *each, sizes[each[0]]) for each in names.items()))

    def remove(self, *names: str) -> None:
        """Remove objects; those that do not exist are passed over."""
        self.at_once(*(partial(self._remove, name) for name in names))

    def _publish(self, name: str, other: str, size: int) -> None:
        with self._guarded(other):
            if self._is_local:
                Path(self.url(name)).replace(self.url(other))
            elif self._is_s3:
                from streamrec.stores.s3.s3_upload import copy_object

                copy_object(self._files, self._at(name), self._at(other), size)
            else:
                self._files.cp_file(self._at(name), self._at(other))

    def _remove(self, name: str) -> None:
        with contextlib.suppress(ObjectNotFound), self._guarded(name):
            self._files.rm_file(self._at(name))

    def at_once(self, *calls: Callable[[], T]) -> list[T]:
        """Make calls that do not depend on each other: of a store, several at the same time.

        Returns:
            What they return.
        """
        if self._is_local or len(calls) < 2:
            return [call() for call in calls]
        with ThreadPoolExecutor(AT_ONCE, "streamrec-folder") as threads:
            return list(threads.map(lambda call: call(), calls))

    def remove_left(self, prefixes: Iterable[str]) -> None:
        """Remove what writers that were killed left of objects whose names begin like these."""
        if self._is_local:
            with self._guarded(""):
                remove_left(Path(self._url or "."), tuple(prefixes))
        elif self._is_s3:
            from streamrec.stores.s3.s3_upload import abort_uploads

            # Some stores do not list uploads, and not every user may; nobody sees what is left.
            with contextlib.suppress(StoreError), self._guarded(""):
                abort_uploads(self._files, self._path, tuple(prefixes))

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def _guarded(self, name: str) -> AbstractContextManager[None]:
        return translated(self.url(name), writing=True, anonymous=self._anonymous)
