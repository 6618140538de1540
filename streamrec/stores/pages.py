"""Listings that come in pages: read in many places at once, and with_retries."""

from __future__ import annotations

import asyncio
import math
import random
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from streamrec.errors import StoreUnavailable
from streamrec.flow.cleanup import end
from streamrec.plan.key_space import KeySpace, OutOfOrder

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Sequence,
    )

    from streamrec.plan.key_space import Span
    from streamrec.stores.base import ObjectInfo

__all__ = ["Page", "walk", "with_retries"]

MAX_ATTEMPTS = 4
"""Of the first page: a store that does not list at all is more likely misnamed than down."""
MAX_LATER_ATTEMPTS = 10
"""Of the others: one that fails must not begin the listing again, nor half a minute's outage."""
FIRST_PATIENCE = 15.0
"""Seconds after which a first page is given up that was asked for twice, of a store that is silent
or cannot be reached: as long as a first range is waited for."""
LONGEST_WAIT = 8.0
"""Seconds before an attempt, at most, besides what the store asks for."""

_T = TypeVar("_T")


class Page(NamedTuple):
    """A part of a listing."""

    objects: Sequence[ObjectInfo]
    token: str | None
    """Asks for the next page; ``None``: this is the last one."""


Fetch: TypeAlias = "Callable[[str, str], Awaitable[Page]]"


async def walk(fetch: Fetch, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
    """Go through a listing in the order of the URLs; many pages are on their way at a time.

    Where the store turns out to know no order, or not to begin where it is asked to, one page is
    read after the other, and the order is the store's.

    Args:
        fetch: Brings a page: the first one behind a URL (of all, where that is empty), or the one
            that a token asks for. With a token, the URL is that of the page before it.
        prefix: What all URLs begin with.
    """
    told: set[str] = set()
    try:
        async with aclosing(_ParallelListing(fetch, prefix).pages()) as pages:
            async for objects in pages:
                told.update(info.url for info in objects)
                for info in objects:
                    yield info
                await asyncio.sleep(0)  # pages that have come ask for the next ones
    except OutOfOrder:
        async with aclosing(_list_sequentially(fetch)) as pages:
            async for objects in pages:
                for info in objects:
                    if info.url not in told:
                        yield info


async def _list_sequentially(fetch: Fetch) -> AsyncGenerator[Sequence[ObjectInfo], None]:
    token: str | None = ""
    while token is not None:
        page = await fetch("", token)
        token = page.token
        yield page.objects


class _ParallelListing:
    """Spans of a listing, each read by a task."""

    def __init__(self, fetch: Fetch, prefix: str) -> None:
        self._fetch = fetch
        self._space = KeySpace(prefix)
        self._held: dict[Span, list[Sequence[ObjectInfo]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._news = asyncio.Event()

    async def pages(self) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """What all spans list, those of one after those of the other.

        Raises:
            OutOfOrder: The store does not list as the spans demand.
        """
        self._begin(self._space.spans)
        try:
            while self._space.spans:
                await self._news.wait()
                self._news.clear()
                for objects in self._ready_pages():
                    yield objects
                if self._failure is not None:
                    raise self._failure
        finally:
            await end(*self._tasks)

    def _begin(self, spans: Iterable[Span]) -> None:
        self._tasks.update(asyncio.create_task(self._read(span)) for span in spans)

    async def _read(self, span: Span) -> None:
        try:
            await self._read_pages(span)
        except Exception as error:  # noqa: BLE001 - whoever takes the pages raises it
            self._failure = self._failure or error
        self._news.set()

    async def _read_pages(self, span: Span) -> None:
        after, token = span.after, ""
        while not span.over:
            page = await self._fetch(after, token)
            urls = [info.url for info in page.objects]
            count, new = self._space.take(span, urls, more=page.token is not None)
            self._held.setdefault(span, []).append(page.objects[:count])
            self._news.set()
            self._begin(new)
            token = page.token or ""

    def _ready_pages(self) -> Iterator[Sequence[ObjectInfo]]:
        """What nothing comes before that is not known yet; it is held no longer."""
        spans = self._space.spans
        while spans:
            over = spans[0].over  # while these are gone through, others come
            yield from self._held.pop(spans[0], ())
            if not over:
                return
            del spans[0]


async def with_retries(
    read: Callable[[], Awaitable[_T]],
    sleep: Callable[[float], Awaitable[None]],
    *,
    first: bool,
    clock: Callable[[], float] = time.monotonic,
) -> _T:
    """Read something short, a few times where the store is not to be had.

    Args:
        read: One attempt.
        sleep: Waits that many seconds before the next.
        first: Whether nothing has come from the store before.
        clock: Seconds.

    Raises:
        StoreError: It will not pass, or did not.
    """
    given_up = clock() + (FIRST_PATIENCE if first else math.inf)
    for attempt in range(1, MAX_ATTEMPTS if first else MAX_LATER_ATTEMPTS):
        try:
            return await read()
        except StoreUnavailable as busy:
            if attempt > 1 and not busy.throttled and clock() >= given_up:
                raise
            longest = min(LONGEST_WAIT, 2**attempt)
            await sleep((busy.retry_after or 0.0) + random.uniform(0, longest))
    return await read()
