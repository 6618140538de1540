"""Files in directories and in stores, for the tools that make datasets of them."""

from __future__ import annotations

import glob
import io
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from streamrec.config.places import escape, local_path, unescaped
from streamrec.errors import StoreError
from streamrec.formats.shards.index import is_companion
from streamrec.masking import masked, masked_repr
from streamrec.stores.base import ObjectInfo
from streamrec.stores.filesystems import filesystem_of, is_anonymous
from streamrec.stores.foreign_errors import translated
from streamrec.stores.fsspec.filesystem_info import size_of, version_of
from streamrec.stores.pinned_files import PinnedFile, PinnedObject, Ranges, check_file
from streamrec.stores.regular_file import check_regular
from streamrec.stores.source_text import (
    expand,
    held_in,
    is_glob,
    is_pattern,
    split_chain,
    with_holder,
)
from streamrec.stores.versions import file_version, same_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

BLOCK = 16 << 20
"""Bytes of one request: so many that its round trip does not count."""


class _Remote:
    """The filesystem of a URL, which lists, and the store that reads.

    Each process makes its own.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self._made_of = url, storage_options

    @cached_property
    def ranges(self) -> Ranges:
        """Return the store that the objects are read from."""
        return Ranges(self._made_of[1])

    def url(self, path: str) -> str:
        """Return the URL of a path in it."""
        place = split_chain(self._made_of[0])
        if place.before or place.after:
            scheme = place.link.partition("://")[0]
            return "".join(place._replace(link=f"{scheme}://{path}"))
        return cast("str", self.files.unstrip_protocol(path))

    @cached_property
    def files(self) -> Any:
        """Return fsspec's filesystem."""
        files, _ = filesystem_of(*self._made_of)
        files.invalidate_cache()  # another process may have written since
        return files

    @contextmanager
    def translated(self, place: str) -> Iterator[None]:
        """Raise streamrec's errors, about a place in it."""
        with translated(place):
            anonymous = is_anonymous(place, self.files)
        with translated(place, anonymous=anonymous):
            yield

    def path(self, url: str) -> str:
        """Return a URL's path in it."""
        link = split_chain(url).link
        return cast("str", self.files._strip_protocol(link))  # noqa: SLF001 - it has no other name

    def ls(self, path: str) -> list[dict[str, Any]]:
        """Return what there is to say of the entries of a directory."""
        return cast("list[dict[str, Any]]", self.files.ls(path, detail=True))

    def __reduce__(self) -> Any:
        return _Remote, self._made_of


@dataclass(frozen=True)
class StoredFile:
    """A file in a directory, or an object in a store."""

    url: str
    """Its URL, or its path."""
    size: int
    """Bytes."""
    version: str | None
    """Its version, as the store that reads its ranges names it."""
    path: str = field(repr=False)
    """The path in its filesystem."""
    remote: _Remote | None = field(default=None, repr=False, compare=False)
    """Its filesystem; ``None``: it is local."""

    __repr__ = masked_repr

    def __str__(self) -> str:
        return masked(self.url)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        """True if the operating system has the file."""
        return self.remote is None

    def open(self, block: int = BLOCK) -> IO[bytes]:
        """Open it to read it.

        Args:
            block: The bytes of one request to a store.

        Raises:
            StoreError: It is in a store, and cannot be read; also while it is read.
            OSError: It is local, and cannot be read.
        """
        if self.remote is None:
            return io.BufferedReader(PinnedFile(self.path, self.version))
        return io.BufferedReader(PinnedObject(self.remote.ranges, self.info), block)

    @property
    def info(self) -> ObjectInfo:
        """The object, for a store."""
        return ObjectInfo(self.url, self.size, self.version)

    @property
    def fingerprint(self) -> str | None:
        """The version; of a local file its time, which a copy on another machine has too."""
        if self.remote is not None or self.version is None:
            return self.version
        return str(int(self.version.split("-")[1], 16))

    def check(self) -> None:
        """Compare a local file, which a library has read by its path, with the version.

        Raises:
            ObjectChanged: The file is another one now.
        """
        if self.remote is None:
            check_file(self.path, self.version)


def file_contents(files: Sequence[StoredFile]) -> Iterator[bytes | Exception]:
    """Yield the contents of files; in place of one that cannot be read, the error.

    Those in a store are requested at the same time.
    """
    remote = files[0].remote if files else None
    if remote is None:
        yield from map(_content, files)
        return
    for read in remote.ranges.read_all([file.info for file in files]):
        yield read if isinstance(read, Exception) else read[0].tobytes()


def _content(file: StoredFile) -> bytes | Exception:
    try:
        with PinnedFile(file.path, file.version) as opened:
            return opened.readall()
    except (OSError, StoreError) as error:
        return error


def find_files(
    place: str, storage_options: Mapping[str, Any], suffixes: tuple[str, ...] = ("",)
) -> list[StoredFile]:
    """Return the files that a text names, or those of the directory that it names, sorted.

    Args:
        place: A path or a URL, which may hold ``*``, ``{00..11}`` or ``{a,b}``; of a chain each
            link may.
        storage_options: fsspec's options, for a URL.
        suffixes: The ends of the names of those of a directory.

    Returns:
        The files; none if nothing matches.

    Raises:
        ConfigError: The scheme or an option is not known.
        StoreError: The store cannot be listed, or has no such object.
    """
    place = local_path(place)
    if "://" in place:
        found: Iterable[StoredFile] = _in_stores(place, storage_options, suffixes)
    else:
        name = unescaped(place)
        found = _in_directories([name] if Path(name).exists() else expand(place), suffixes)
    files = {file.url: file for file in found if not is_companion(file.name)}
    return sorted(files.values(), key=lambda file: (split_chain(file.url).after, file.path))


def named_files(
    names: Iterable[str], storage_options: Mapping[str, Any]
) -> Iterator[StoredFile | None]:
    """Yield the file of each path or URL; ``None`` where there is none.

    Raises:
        ConfigError: The scheme or an option is not known.
        StoreError: The store cannot be listed, or has no such directory.
    """
    listed: dict[str, dict[str, StoredFile]] = {}
    for name in map(local_path, names):
        if "://" not in name:
            yield _of_path(name) if Path(name).is_file() else None
            continue
        place = split_chain(name)
        last = place.link.rpartition("/")[2]
        directory = "".join(place._replace(link=place.link.removesuffix(last)))
        if directory not in listed:
            files = find_files(escape(directory), storage_options)
            listed[directory] = {file.name: file for file in files}
        yield listed[directory].get(last)


def files_below(place: str, storage_options: Mapping[str, Any]) -> dict[str, StoredFile]:
    """Return all files below a directory, by their names below it, sorted by directories.

    Raises:
        ConfigError: The scheme or an option is not known.
        StoreError: The store cannot be listed.
    """
    place = local_path(place)
    if "://" in place:
        remote = _Remote(place, storage_options)
        with remote.translated(place):
            root = remote.path(place).rstrip("/")
            infos = remote.files.find(root, detail=True).values()
            files = {file.path[len(root) :].lstrip("/"): file for file in _stored(remote, infos)}
    else:
        files = {os.path.relpath(path, place): _of_path(path) for path in _walk(place)}
    names = sorted(files, key=lambda name: name.split("/"))
    return {name: files[name] for name in names if not is_companion(name)}


def names_in(place: str, storage_options: Mapping[str, Any]) -> list[str] | None:
    """Return the names in a directory; ``None`` if the place is not a directory."""
    place = local_path(place)
    if "://" not in place:
        return os.listdir(place) if Path(place).is_dir() else None  # noqa: PTH208 - names alone
    holder, _ = held_in(place, storage_options)
    if holder and is_pattern(holder):
        return None
    remote = _Remote(place, storage_options)
    with remote.translated(place):
        path = remote.path(place)
        # A directory whose name has a star is not looked for.
        if "*" in path.rpartition("/")[2] or not remote.files.isdir(path):
            return None
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in remote.ls(path)]


def _of_path(path: str) -> StoredFile:
    with translated(path):
        facts = Path(path).stat()
        check_regular(facts)
    return StoredFile(path, facts.st_size, file_version(facts), path)


def _walk(root: str) -> Iterator[str]:
    """Yield the files below a directory; links to directories are followed in itself alone."""
    for entry in os.scandir(root):
        if not entry.is_dir():
            yield entry.path
        for directory, _, names in os.walk(entry.path):
            yield from (f"{directory}/{name}" for name in names)


def _in_directories(names: Iterable[str], suffixes: tuple[str, ...]) -> Iterator[StoredFile]:
    for name in names:
        path = Path(name)
        if path.is_dir():
            files = (file for file in path.iterdir() if not file.is_dir())
            yield from (_of_path(str(file)) for file in files if file.name.endswith(suffixes))
        elif path.exists():
            yield _of_path(str(path))
        else:
            yield from map(_of_path, glob.glob(name))  # noqa: PTH207 - it may be absolute


def _in_stores(
    place: str, storage_options: Mapping[str, Any], suffixes: tuple[str, ...]
) -> Iterator[StoredFile]:
    holder, options = held_in(place, storage_options)
    if not holder or not is_pattern(holder):
        yield from _in_store(place, storage_options, suffixes)
        return
    for archive in find_files(holder, options):
        yield from _in_store(with_holder(place, archive.url), storage_options, suffixes)


def _in_store(
    place: str, storage_options: Mapping[str, Any], suffixes: tuple[str, ...]
) -> list[StoredFile]:
    link = split_chain(place)
    literal = unescaped(place)
    remote = _Remote("".join(link._replace(after=unescaped(link.after))), storage_options)
    with remote.translated(place):
        is_name = is_pattern(place) and _is_there(literal, remote)
        names = [literal] if is_name else expand(place)
        globs = set() if is_name else set(filter(is_glob, names))
        paths = {remote.path(n if n in globs else unescaped(n)): n for n in names}
        if len(paths) > 1:
            # The listing of a directory stays in memory, and answers for each of its objects.
            for parent in sorted({path.rpartition("/")[0] for path in paths}):
                remote.ls(parent)
        infos: list[dict[str, Any]] = []
        for path, name in paths.items():
            if name in globs:
                infos += remote.files.glob(path, detail=True).values()
            elif remote.files.isdir(path):
                infos += [one for one in remote.ls(path) if one["name"].endswith(suffixes)]
            else:
                infos.append(remote.files.info(path))
        return _stored(remote, infos)


def _is_there(url: str, remote: _Remote) -> bool:
    """Return whether there is an object of this very name, or a directory if it ends in a slash."""
    if url.endswith("/"):
        return bool(remote.files.isdir(remote.path(url)))
    try:
        remote.ranges.read(ObjectInfo(url), 0, 1)
    except StoreError as error:
        if error.retryable:
            raise
        return False
    return True


def _stored(remote: _Remote, infos: Iterable[dict[str, Any]]) -> list[StoredFile]:
    infos = [
        info for info in infos if info["type"] != "directory" and not info["name"].endswith("/")
    ]
    files = [
        StoredFile(
            remote.url(info["name"]), size_of(info) or 0, version_of(info), info["name"], remote
        )
        for info in infos
    ]
    has_sizes = all(size_of(info) is not None for info in infos)
    if not files or (has_sizes and _is_listed_as_read(files[0])):
        return files
    return [_as_read(file, remote) for file in files]


def _is_listed_as_read(file: StoredFile) -> bool:
    """Return whether a listing tells the version that is told where an object is read."""
    found = _as_read(file, cast("_Remote", file.remote)).version
    return file.version is not None and found is not None and same_version(file.version, found)


def _as_read(file: StoredFile, remote: _Remote) -> StoredFile:
    """Return a file with the size and the version that are told where it is read."""
    _, info = remote.ranges.read(ObjectInfo(file.url), 0, 1)
    return replace(file, size=info.size or 0, version=info.etag)
