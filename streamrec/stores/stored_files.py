"""Files in directories and in stores, each read in one version, for tools that make datasets."""

from __future__ import annotations

import glob
import io
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.config.named_files import check_regular, open_regular
from streamrec.config.places import escape, local_path, split_chain, unescape
from streamrec.config.schemes import line_of
from streamrec.errors import ObjectNotFound, StoreError
from streamrec.formats.shards.index_names import is_companion
from streamrec.masking import masked, masked_repr
from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.stores.base.protocol import ObjectInfo, check_pin, file_version, split_bucket
from streamrec.stores.base.source_text import (
    expand,
    held_in,
    is_glob,
    is_hidden,
    is_pattern,
    with_holder,
    with_one_name,
)
from streamrec.stores.base.troubles import tell
from streamrec.stores.blocking import BlockingStores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


log = logging.getLogger("streamrec.write")


class PinnedObject(io.RawIOBase):
    """An object that is read by ranges, each by a request.

    Args:
        stores: The stores.
        found: The object, with its size and version.
    """

    def __init__(self, stores: BlockingStores, found: ObjectInfo) -> None:
        self._stores, self._found, self._at = stores, found, 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._found.size or 0}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, with one request."""
        stop = min(self._at + len(buffer), self._found.size or 0)
        if stop <= self._at:
            return 0
        data, _ = self._stores.read(self._found, self._at, stop)
        buffer[: len(data)] = data.data
        self._at += len(data)
        return len(data)


class PinnedFile(io.FileIO):
    """A local file that is compared with its version after each read.

    Args:
        path: The path.
        version: The version.
    """

    def __init__(self, path: str, version: str | None) -> None:
        super().__init__(path, "r", opener=open_regular)
        self._version = version
        try:
            self._check()  # of an empty one nothing is read
        except BaseException:
            self.close()
            raise

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer.

        Raises:
            ObjectChanged: The file is another one now.
        """
        count = super().readinto(buffer)
        self._check()
        return count or 0

    def readall(self) -> bytes:
        """Return all bytes to the end that the file has now: one that grows has no other.

        Raises:
            ObjectChanged: The file is another one now.
        """
        left = os.fstat(self.fileno()).st_size - self.tell()
        pieces: list[bytes] = []
        while left > 0 and (piece := self.read(left)):
            pieces.append(piece)
            left -= len(piece)
        self._check()
        return b"".join(pieces)

    def _check(self) -> None:
        check_pin(str(self.name), self._version, file_version(os.fstat(self.fileno())))


def check_file(path: str, version: str | None) -> None:
    """Compare a local file, which a library has read, with its version.

    Raises:
        ObjectChanged: The file is another one now.
    """
    check_pin(path, version, file_version(Path(path).stat()))


BLOCK = 16 << 20
"""Bytes of one request: so many that its round trip does not count."""


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
    """The path on the disk, or in the store."""
    stores: BlockingStores | None = field(default=None, repr=False, compare=False)
    """The stores of which one has it; ``None``: it is local."""

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
        return self.stores is None

    def open(self, block: int = BLOCK) -> io.BufferedReader:
        """Open it to read it.

        Args:
            block: The bytes of one request to a store.

        Raises:
            StoreError: It is in a store, and cannot be read; also while it is read.
            OSError: It is local, and cannot be read.
        """
        if self.stores is None:
            return io.BufferedReader(PinnedFile(self.path, self.version))
        return io.BufferedReader(PinnedObject(self.stores, self.info), block)

    @property
    def info(self) -> ObjectInfo:
        """The object, for a store."""
        return ObjectInfo(self.url, self.size, self.version)

    @property
    def fingerprint(self) -> str | None:
        """The version; of a local file its time, which a copy on another machine has too."""
        if self.stores is not None or self.version is None:
            return self.version
        # file_version writes inode, time and size; a copy has another inode.
        return str(int(self.version.split("-")[1], 16))

    def check(self) -> None:
        """Compare a local file, which a library has read by its path, with the version.

        Raises:
            ObjectChanged: The file is another one now.
        """
        if self.stores is None:
            check_file(self.path, self.version)


def file_contents(files: Sequence[StoredFile]) -> Iterator[bytes | Exception]:
    """Yield the contents of files; in place of one that cannot be read, the error.

    Those in a store are requested at the same time.
    """
    stores = files[0].stores if files else None
    if stores is None:
        yield from map(_content, files)
        return
    for read in stores.read_all([file.info for file in files]):
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

    Of a directory, those whose names begin with a dot are left out.

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
    if line_of(place).name != "file":
        found: Iterable[StoredFile] = _in_stores(place, storage_options, suffixes)
    else:
        name = unescape(place)
        found = _in_directories([name] if Path(name).exists() else expand(place), suffixes)
    files = {file.url: file for file in found if not is_companion(file.name)}
    return sorted(files.values(), key=lambda file: (split_chain(file.url).after, file.path))


def find_each(
    names: Iterable[str], storage_options: Mapping[str, Any]
) -> Iterator[StoredFile | None]:
    """Yield the file of each path or URL; ``None`` where there is none.

    Raises:
        ConfigError: The scheme or an option is not known.
        StoreError: The store cannot be listed, or has no such directory.
    """
    listed: dict[str, dict[str, StoredFile]] = {}
    for name in map(local_path, names):
        if line_of(name).name == "file":
            yield _of_path(name) if Path(name).is_file() else None
            continue
        if not line_of(name).is_listed:
            found: list[StoredFile] = []
            with suppress(ObjectNotFound):
                found = find_files(escape(name), storage_options)
            # One for each name, so that callers can pair them; a writer's part file is not a file.
            yield found[0] if found else None
            continue
        place = split_chain(name)
        last = place.link.rpartition("/")[2]
        directory = "".join(place._replace(link=place.link.removesuffix(last)))
        if directory not in listed:
            stores = BlockingStores(storage_options)
            files = _complete(stores, _children(directory, stores))
            listed[directory] = {file.name: file for file in files if not is_companion(file.name)}
        yield listed[directory].get(last)


def files_below(place: str, storage_options: Mapping[str, Any]) -> dict[str, StoredFile]:
    """Return all files below a directory, by their names below it, sorted by directories.

    Hidden ones, and those below hidden directories, are left out.

    Raises:
        ConfigError: The scheme or an option is not known.
        StoreError: The store cannot be listed.
    """
    place = local_path(place)
    if line_of(place).name != "file":
        root = _directory(place)
        begin = len(split_chain(root).link.partition("://")[2])
        stores = BlockingStores(storage_options)
        files = {file.path[begin:]: file for file in _complete(stores, stores.list_objects(root))}
    else:
        files = {os.path.relpath(path, place): _of_path(path) for path in _walk(place)}
    # By the parts of the path: as a text, "a-b/c" would come between "a" and "a/b".
    names = sorted(files, key=lambda name: name.split("/"))
    return {name: files[name] for name in names if not (is_companion(name) or is_hidden(name))}


def names_in(place: str, storage_options: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the files in a directory; ``None`` if the place is not a directory."""
    place = local_path(place)
    if line_of(place).name == "file":
        if not Path(place).is_dir():
            return None
        entries = (entry.name for entry in os.scandir(place) if not entry.is_dir())
        return [name for name in entries if not is_hidden(name)]
    holder, _ = held_in(place, storage_options)
    # A pattern of shards, whose directory no job need have the right to list, names no directory.
    last = split_chain(place).link.rpartition("/")[2]
    if (holder and is_pattern(holder)) or "*" in last or not line_of(place).is_listed:
        return None
    root, stores = _directory(place), BlockingStores(storage_options)
    infos = stores.list_objects(root, recursive=False)
    # Without files of its own it may still hold directories; the first name below tells.
    if not infos and not stores.has_any(root):
        return None
    return [file.name for file in _files_of(stores, infos) if not is_hidden(file.name)]


def _directory(place: str) -> str:
    """Return the URL of a directory, with a slash at the end of its own link."""
    chain = split_chain(place)
    link = chain.link if chain.link.endswith("/") else f"{chain.link}/"
    return "".join(chain._replace(link=link))


def _of_path(path: str) -> StoredFile:
    with translate_errors(path):
        facts = Path(path).stat()
        check_regular(facts)
    return StoredFile(path, facts.st_size, file_version(facts), path)


def _walk(root: str) -> Iterator[str]:
    """Yield the files below a directory; links to directories are followed in itself alone."""
    for entry in os.scandir(root):
        if not entry.is_dir():
            yield entry.path
        # Of a file, os.walk gives nothing.
        for directory, _, names in os.walk(entry.path):
            yield from (f"{directory}/{name}" for name in names)


def _in_directories(names: Sequence[str], suffixes: tuple[str, ...]) -> Iterator[StoredFile]:
    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from map(_of_path, _in_directory(path, suffixes))
        elif path.exists():
            yield _of_path(str(path))
        elif is_glob(name) or len(names) == 1:
            found = glob.glob(name, recursive=True)  # noqa: PTH207 - it may be absolute
            yield from (_of_path(one) for one in found if not os.path.isdir(one))  # noqa: PTH112
        else:
            yield _of_path(unescape(name))  # one of a range: nothing of it is passed over


def _in_directory(path: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files of a directory with a suffix, and tell of those that are deeper."""
    shown = [entry for entry in path.iterdir() if not is_hidden(entry.name)]
    deeper = sorted(entry.name for entry in shown if entry.is_dir())
    if deeper and all(suffixes):
        log.warning(
            "%s: what its directory %s holds is not read; the pattern '%s/**/*%s' names the files "
            "of all directories",
            path,
            deeper[0],
            escape(str(path)),
            suffixes[0],
        )
    return [str(e) for e in shown if e.name not in deeper and e.name.lower().endswith(suffixes)]


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
    stores = BlockingStores(storage_options)
    literal = unescape(with_one_name(place))
    if is_pattern(place) and _is_there(literal, stores):
        return _complete(stores, _find_named(literal, stores, suffixes))
    names = expand(place)
    infos = _parents(names, stores)
    found: list[ObjectInfo] = []
    for name in names:
        if is_glob(name):
            found += stores.match(name)
        elif (url := unescape(name)) in infos:
            found.append(infos[url])
        else:
            found += _find_named(url, stores, suffixes)
    return _complete(stores, found)


def _parents(names: Sequence[str], stores: BlockingStores) -> dict[str, ObjectInfo]:
    """Return all objects beside several names, by URL: one listing answers for each of them."""
    plain = [unescape(name) for name in names if not is_glob(name)]
    if len(plain) < 2 or not line_of(plain[0]).is_listed:
        return {}
    roots = {_directory_of(url) for url in plain}
    infos = [info for root in sorted(roots) for info in stores.list_objects(root, recursive=False)]
    return {info.url: info for info in infos}


def _directory_of(url: str) -> str:
    chain = split_chain(url)
    return "".join(chain._replace(link=chain.link[: chain.link.rfind("/") + 1]))


def _find_named(url: str, stores: BlockingStores, suffixes: tuple[str, ...]) -> list[ObjectInfo]:
    """Return the object of a name, or those of the directory that it names.

    A job may have the right to read an object and not that to list its directory. So the object is
    asked for first.

    Raises:
        StoreError: There is neither.
    """
    missing: StoreError | None = None
    # Not only ObjectNotFound: a filesystem calls a directory by another error, and S3 denies access
    # to what is not there to those who may not list.
    if not split_chain(url).link.endswith("/"):
        try:
            return [stores.read(ObjectInfo(url), 0, 1)[1]]
        except StoreError as error:
            if error.retryable or not line_of(url).is_listed:
                raise
            missing = error
    try:
        infos = _children(url, stores)
    except StoreError as error:
        raise missing or error from None
    links = {info: split_chain(info.url).link for info in infos}
    shown = (info for info in infos if not is_hidden(links[info].rpartition("/")[2]))
    return [info for info in shown if links[info].lower().endswith(suffixes)]


def _children(url: str, stores: BlockingStores) -> list[ObjectInfo]:
    """Return the objects of a directory.

    Raises:
        StoreError: It cannot be listed, or there is no such directory.
    """
    infos = stores.list_objects(_directory(url), recursive=False)
    # A bucket may be empty, and the listing has told if it is missing.
    is_bucket = line_of(url).has_buckets and not split_bucket(url)[1]
    if not infos and not is_bucket and not stores.has_any(_directory(url)):
        raise tell("no object", url)
    return infos


def _is_there(url: str, stores: BlockingStores) -> bool:
    """Return whether there is an object of this very name, or a directory if it ends in a slash."""
    if split_chain(url).link.endswith("/"):
        return stores.has_any(url)
    try:
        stores.read(ObjectInfo(url), 0, 1)
    except StoreError as error:
        if error.retryable:
            raise
        return False
    return True


def _files_of(stores: BlockingStores, infos: Iterable[ObjectInfo]) -> list[StoredFile]:
    """Return the files of objects, but for those that mark directories."""
    links = [(info, split_chain(info.url).link) for info in infos]
    return [
        StoredFile(info.url, info.size or 0, info.etag, link.partition("://")[2], stores)
        for info, link in links
        if not link.endswith("/")
    ]


def _complete(stores: BlockingStores, infos: Sequence[ObjectInfo]) -> list[StoredFile]:
    """Return the files of objects, with the size and version of those that no listing told."""
    unknown = [one for one in infos if one.size is None or one.etag is None]
    told: dict[str, ObjectInfo] = {}
    for answer in stores.read_all(unknown, 1) if unknown else ():
        if isinstance(answer, Exception):
            raise answer
        told[answer[1].url] = answer[1]
    return _files_of(stores, [told.get(info.url, info) for info in infos])
