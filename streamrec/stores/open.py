"""Resolution of a user's source to objects, and the stores that read them and what is beside."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.config.named_files import check_option_files, check_variables
from streamrec.config.places import escape, is_http, split_chain, unescape
from streamrec.config.schemes import FSSPEC, line_of, prefix_of
from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreError, StoreUnavailable
from streamrec.flow.cleanup import all_of, finish
from streamrec.flow.retry import Silence, cause_of
from streamrec.flow.timings import Timings
from streamrec.formats.shards.index import LARGEST, Index
from streamrec.formats.shards.index_names import SUFFIX, is_companion
from streamrec.masking import masked
from streamrec.stores.base.foreign_errors import hint_at_place, pattern_in
from streamrec.stores.base.protocol import ObjectInfo, Store, in_thread, let_pass, read_range
from streamrec.stores.base.source_text import (
    expand,
    fixed_prefix,
    held_in,
    is_counted,
    is_glob,
    is_pattern,
    matcher,
    scheme_of,
    store_kind,
    with_holder,
    with_one_name,
)
from streamrec.stores.cache.cached_store import CachedStore
from streamrec.stores.cache.piece_cache import open_cache
from streamrec.stores.processes.process_store import RemoteProcessStore
from streamrec.surroundings import hold_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.config.cache_and_audit import CacheSettings
    from streamrec.flow.shared_memory import SharedRanges
    from streamrec.stores.base.protocol import BeforeRequest
    from streamrec.stores.processes.fetch_processes import FetchProcesses


LOOKS = 32
"""Names with special characters that are looked up at the same time."""
PROGRESS_NAMES = 100
"""Names after which a listing counts as making progress."""
LONG_LISTING = 1.0
"""Seconds from which on a listing is told of: in the log, and to whoever asks for its progress."""

log = logging.getLogger("streamrec.stores")


class Stores:
    """The stores of one dataset, each made when it is first needed, in the running loop.

    Args:
        storage_options: fsspec's options for the source's scheme; local files and memory ignore
            them.
        stall_timeout: Seconds for which a listing may bring nothing.
        cache: The settings of a cache. One of ranges is in front of the stores, but for local files
            and memory; one of batches is for others to use.
        before_request: Called before each request of a store. A cache's answers do not count.
        processes: The processes that read ranges of remote stores of ours; ``None``: this one does.
        progress: Called during a long listing with a word that says how many names were listed.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        stall_timeout: float = math.inf,
        cache: CacheSettings | None = None,
        before_request: BeforeRequest = let_pass,
        processes: FetchProcesses | None = None,
        progress: Callable[[str, int, int | None], None] = lambda *_: None,
    ) -> None:
        hold_standard_descriptors()  # before the first file or socket
        self._options = dict(storage_options or {})
        self._stall_timeout = stall_timeout
        self._before_request = before_request
        self._stores: dict[str, Store] = {}
        self._processes = processes
        self._progress = progress
        self.timings = Timings()
        """The times of listings."""
        self.indexes: dict[str, Index] = {}
        """The indexes that were read in place of a listing, by their URLs."""
        self._keeps_ranges = cache is not None and cache.of != "batches"
        self.cache = None if cache is None else open_cache(cache, self._options)

    def __repr__(self) -> str:
        return f"<Stores {', '.join(sorted(self._stores)) or 'none open'}>"

    def store_for(self, url: str) -> Store:
        """Return the store that reads a URL.

        Raises:
            ConfigError: No store reads this scheme, or a file that its libraries would open is a
                FIFO or a device.
        """
        scheme = scheme_of(url)
        if scheme not in self._stores:
            is_local = line_of(url).is_local
            if not is_local:
                check_variables(url)
                check_option_files(self._options)
            store = make_store(url, self._options, before_request=self._before_request)
            if self._processes is not None and can_fetch_apart(url):
                store = RemoteProcessStore(store, self._processes, self._before_request)
            if self._keeps_ranges and self.cache is not None and not is_local:
                store = CachedStore(store, self.cache)
            self._stores[scheme] = store
        return self._stores[scheme]

    def share_memory(self, size: int) -> SharedRanges | None:
        """Return memory that fetch processes fill; ``None``: ranges are read into any memory."""
        return None if self._processes is None else self._processes.share_memory(size)

    def are_local(self, urls: Iterable[str]) -> bool:
        """Return whether all URLs are local, so that there is little latency to hide."""
        return all(line_of(url).is_local for url in urls)

    async def resolve(self, source: str | Sequence[str]) -> list[ObjectInfo]:
        """Return the objects that a source names, sorted by URL, without duplicates.

        It finds them as :meth:`list_named` does, with the same errors.
        """
        found = {info.url: info for info in await self.list_named(source)}
        return [found[url] for url in sorted(found)]

    async def list_named(self, source: str | Sequence[str]) -> list[ObjectInfo]:
        """Return the objects that a source names, in its order and as often as it names them.

        The matches of one pattern are sorted by URL, and stand in its place.

        A text with special characters is the name of an object where there is one, and a pattern
        elsewhere. Only patterns ask the store: a glob for a listing with sizes and ETags, and where
        no listing tells, each for one byte of the object of this name. Plain names are not checked.
        The name of an index stands for the shards beside it that it names: one read in place of a
        listing. The archive of a chain such as ``zip://*.tfrecord::s3://b/*.zip`` may be a pattern,
        too.

        Raises:
            ObjectNotFound: A glob matches nothing.
            StoreUnavailable: A listing stalls, or an object cannot be looked up.
            ConfigError: A scheme is unknown, a name is a directory, or a store cannot list.
        """
        texts = [source] if isinstance(source, str) else list(source)
        held = {text: await self._expand_holder(text) for text in dict.fromkeys(texts)}
        named = await self._look_up(list(dict.fromkeys(one for text in held for one in held[text])))
        found = {text: await self._find(held[text], named) for text in held}
        if len(texts) == 1:
            return found[texts[0]]
        # What a listing told of an object serves where its plain name stands, too.
        known = {info.url: info for infos in found.values() for info in infos if info.size}
        return [known.get(info.url, info) for text in texts for info in found[text]]

    async def _expand_holder(self, text: str) -> list[str]:
        """Return a text for each object that holds the first link of a chain; else the text."""
        holder, options = held_in(text, self._options)
        if not holder or not is_pattern(holder):
            return [text]
        stores = Stores(
            options, stall_timeout=self._stall_timeout, before_request=self._before_request
        )
        try:
            return [with_holder(text, info.url) for info in await stores.list_named(holder)]
        finally:
            await stores.aclose()

    async def _find(
        self, texts: Sequence[str], named: Mapping[str, ObjectInfo]
    ) -> list[ObjectInfo]:
        """Return the objects of a text, which is another one for each archive."""
        found: list[ObjectInfo] = []
        missing: ObjectNotFound | None = None
        for text in texts:
            try:
                if _is_index(text) and (text in named or not is_glob(text)):
                    found += await self._named_by_index(unescape(with_one_name(text)))
                else:
                    found += [named[text]] if text in named else await self._matches(text)
            except ObjectNotFound as error:  # some archives need not have any
                missing = error
        if missing is not None and not found:
            raise missing
        return found

    async def _matches(self, text: str) -> list[ObjectInfo]:
        """Return the objects that a pattern or plain name stands for, sorted, each once."""
        found: dict[str, ObjectInfo] = {}
        schemes: set[str] = set()
        for name in expand(text):
            # A range may name a million, of one scheme: what is known of it is not asked again.
            scheme = prefix_of(name)
            if scheme not in schemes or not name.isascii():
                scheme_of(name)
                schemes.add(scheme)
            if name.endswith("/") or "::" in name:
                await _refuse_directory(name)
            if is_glob(name):
                found |= {info.url: info for info in await self._match(name)}
            elif (plain := unescape(name)) not in found:
                found[plain] = ObjectInfo(plain)
        return [found[url] for url in sorted(found)]

    async def _named_by_index(self, url: str) -> list[ObjectInfo]:
        """Return the shards beside an index, which it names with their sizes.

        Raises:
            ConfigError: The shards have signatures, which an index does not know.
            MalformedIndex: It cannot be read.
        """
        if not url.endswith(SUFFIX):
            raise ConfigError(
                f"{masked(url)}: an index does not know the signatures of its shards; give the "
                "shards' URLs as the source"
            )
        remedy = "give the shards as the source"
        data = await read_beside(self, url, (), LARGEST + 1, what="index", remedy=remedy)
        index = (await in_thread(partial(Index.parse, data, url=url))).by_name()
        if not index.entries:
            raise ObjectNotFound("the index names no shard; write it again", url=url)
        self.indexes[url] = index
        directory, columns = url[: url.rfind("/") + 1], index.columns
        named = zip(columns.names, columns.sizes.tolist(), strict=True)
        return [ObjectInfo(f"{directory}{name}", size) for name, size in named]

    async def aclose(self) -> None:
        """Close every store; a second call does nothing."""
        await finish(self._close_all())

    async def _close_all(self) -> None:
        while self._stores:
            _, store = self._stores.popitem()
            await store.aclose()
        if self._processes is not None:
            await self._processes.aclose()
        if self.cache is not None:
            self.cache.close()

    async def _look_up(self, texts: Sequence[str]) -> dict[str, ObjectInfo]:
        """Return the objects whose names the texts are, by text, of those that may be patterns."""
        limit = asyncio.Semaphore(LOOKS)

        async def look(text: str) -> ObjectInfo | None:
            url = unescape(with_one_name(text))
            try:
                async with limit:
                    return (await read_range(self.store_for(url), ObjectInfo(url), 0, 1))[1]
            except StoreError as error:
                if error.retryable:
                    raise
                # Without the right to list, some stores refuse access to what does not exist.
                return None

        asked = [text for text in texts if is_pattern(text) and not text.endswith("/")]
        if len(texts) == 1:
            asked = [text for text in asked if not _is_listed(text) or _is_index(text)]
        infos = await all_of(map(look, asked))
        return {text: info for text, info in zip(asked, infos, strict=True) if info is not None}

    async def _match(self, glob: str) -> list[ObjectInfo]:
        place = split_chain(glob)
        place = place._replace(after=unescape(place.after))
        matches = matcher(place.link)
        prefix = fixed_prefix(place.link)
        recursive = "/" in place.link[len(prefix) :] or "**" in place.link
        listing = self.store_for(glob).list(
            "".join(place._replace(link=prefix)), recursive=recursive
        )
        # None without a chain: a slice up to -0 would be empty.
        link = slice(len(place.before), -len(place.after) or None)
        literal = unescape(glob)
        found: list[ObjectInfo] = []
        infos = await self._collect(glob, listing)
        for info in infos:
            # An object of this very name comes before all that the pattern would match.
            if info.url == literal:
                return [info]
            name = info.url[link]
            # Keys that end in a slash mark directories; neither they nor companions are shards.
            if matches(name) and not name.endswith("/") and not is_companion(name):
                found.append(info)
        if not found:
            hint = hint_at_place(glob) or "check the pattern, and that the shards are there"
            below = prefix.rfind("/")
            has_dot = "/." in place.link[below:]
            if not has_dot and any("/." in info.url[link][below:] for info in infos):
                hint += "; a name that begins with a dot needs a pattern that does"
            raise ObjectNotFound(f"no object matches; {hint}", url=glob)
        return found

    async def _collect(self, glob: str, listing: AsyncIterator[ObjectInfo]) -> list[ObjectInfo]:
        """Return all of a listing, unless it stalls."""
        seconds = self._stall_timeout
        found: list[ObjectInfo] = []
        clock = asyncio.get_running_loop().time
        started, answered = clock(), None
        try:
            async with Silence(seconds) as silence:
                async for info in listing:
                    answered = clock() if answered is None else answered
                    found.append(info)
                    # Not for every name: a trickle of names is a stall as well.
                    if not len(found) % PROGRESS_NAMES:
                        silence.heard()
                        if clock() - started > LONG_LISTING:
                            self._progress(f"listing: {len(found):,} names", 0, None)
        except TimeoutError as silent:
            raise StoreUnavailable(
                f"the listing stalls: no names for {seconds:g} s, after {len(found)} names"
                f"{cause_of(silent)}; check the store and the network, or raise stall_timeout",
                url=glob,
            ) from None
        except StoreError as error:
            # A store names the prefix that it lists; the user has written the pattern.
            is_prefix = "://" in glob and masked(glob).startswith(error.url or "")
            raise (error.about(glob) if is_prefix else error) from None
        ended = clock()
        if (seconds := ended - started) > LONG_LISTING:
            log.info("listed %d names in %.1f s: %s", len(found), seconds, masked(glob))
        first_byte = (ended if answered is None else answered) - started
        self.timings.observe(store_kind(glob), "list", first_byte, ended - started)
        return found


def can_fetch_apart(url: str) -> bool:
    """Return whether fetch processes can read a URL.

    Local files need none, and a filesystem of fsspec may be known to this process alone.
    """
    line = line_of(url)
    return line.store != FSSPEC and not line.is_local


def _is_index(text: str) -> bool:
    """Return whether a text names an index, which may have a signature."""
    return (text.partition("?")[0] if is_http(text) else text).endswith(SUFFIX)


def _is_listed(text: str) -> bool:
    """Return whether a text is one glob, so that its listing has the object of this very name."""
    return is_glob(text) and not is_counted(text) and not is_http(text)


async def _refuse_directory(name: str) -> None:
    if split_chain(name).link.endswith("/"):
        advised = await in_thread(_shards_in, name)
        raise ConfigError(
            f"{masked(name)}: this names a directory; name its shards, as in {advised}"
        )


def _shards_in(name: str) -> str:
    """Return an example of a pattern of the shards in a directory."""
    literal = unescape(name)
    if "://" not in name and (not is_glob(name) or Path(literal).is_dir()):
        return pattern_in(literal)
    example = f"{masked(name)}{'bucket/' if name.endswith('://') else ''}*.tfrecord"
    if not is_glob(name):
        return example
    return f"{example}, or {masked(escape(literal))}*.tfrecord for one of this very name"


def import_store(url: str) -> None:
    """Import the module of the store that reads a URL, before it is needed.

    Raises:
        ConfigError: No store reads this scheme, or a file that its libraries would open is a FIFO
            or a device.
        ImportError: A library is missing.
    """
    check_variables(url)
    scheme_of(url)
    _class_of(url)


async def import_stores(urls: Iterable[str]) -> None:
    """Import the modules of the stores that read URLs, in a thread: some take half a second.

    Raises:
        ConfigError: No store reads one of the schemes.
        ImportError: A library is missing.
    """
    of_each_scheme = {url.partition("://")[0]: url for url in urls if "://" in url}
    for url in of_each_scheme.values():
        scheme_of(url)
        module, _, _ = line_of(url).store.rpartition(".")
        if f"streamrec.stores.{module}" not in sys.modules:
            await in_thread(import_store, url)


def _class_of(url: str) -> Callable[..., Store]:
    """Return the class of a URL's store; its module and libraries are imported only now."""
    module, _, name = line_of(url).store.rpartition(".")
    found: Callable[..., Store] = getattr(import_module(f"streamrec.stores.{module}"), name)
    return found


def make_store(
    url: str, options: Mapping[str, Any], *, before_request: BeforeRequest = let_pass
) -> Store:
    """Make the store of a URL or path; local files and memory ignore the options.

    Raises:
        ConfigError: No store reads this scheme, or it does not take the options.
    """
    line = line_of(url)
    make = partial(_class_of(url), before_request=before_request)
    options = {} if line.is_local else options
    return make(options) if line.store != FSSPEC else make(scheme_of(url), options)


async def read_beside(
    stores: Stores, url: str, shards: Sequence[str], most: int, *, what: str, remedy: str
) -> bytes:
    """Read an object that stands beside shards: an index, or a manifest.

    The query of an http URL may be a signature. One of a folder opens what is beside the shards,
    too; it is the same for all of them. One of an object opens nothing else.

    Args:
        stores: The stores, one of which has the object.
        url: The object, with the query that all shards share.
        shards: The shards.
        most: The most bytes that are read.
        what: The object in words, for errors.
        remedy: What to do if the shards' signatures do not open it.

    Raises:
        ConfigError: The shards have signatures, and those do not open it.
        StoreError: It cannot be read.
    """
    try:
        data, _ = await read_range(stores.store_for(url), ObjectInfo(url), 0, most)
    except AccessDenied as error:
        if not any(is_http(shard) and "?" in shard for shard in shards):
            raise
        raise ConfigError(
            f"the {what} beside the shards cannot be read ({error}): the signature of a URL opens "
            f"one object, unless its policy names a folder; {remedy}"
        ) from None
    return data.tobytes()


@asynccontextmanager
async def limit_time(settings: DatasetSettings, what: str, url: str) -> AsyncIterator[None]:
    """Limit the time of a read to ``stall_timeout``; what is read here is short."""
    seconds = settings.stall_timeout
    try:
        async with Silence(seconds):
            yield
    except TimeoutError as silent:
        raise StoreUnavailable(
            f"opening stalls: {what} took more than {seconds:g} s{cause_of(silent)}; check the "
            "store and the network, or raise stall_timeout",
            url=url,
        ) from None
