"""Listings in pages: many pages are read at a time, and failed ones are read again."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from streamrec.errors import StoreError, StoreMisbehaved
from streamrec.flow.cleanup import end
from streamrec.flow.retry import Backoff, retry
from streamrec.plan.reading.key_space import KeySpace, OutOfOrder

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Sequence,
    )

    from streamrec.plan.reading.key_space import NameSpan
    from streamrec.stores.base.protocol import ObjectInfo

RETRIES = 3
"""Retries of the first page. Few: a store that does not list at all is more likely misnamed than
down."""
LATER_RETRIES = 9
"""Retries of later pages, so that a 30 s outage does not restart the listing."""
FIRST_PATIENCE = 15.0
"""Seconds after which the first page is given up, after two attempts or more, if the store is
silent or cannot be reached; as long as for a first range."""
LONGEST_WAIT = 8.0
"""Longest wait before an attempt, in seconds, in addition to what the store asks for."""


class Page(NamedTuple):
    """One page of a listing."""

    objects: Sequence[ObjectInfo]
    token: str | None
    """The token of the next page; ``None`` on the last one."""


Fetch: TypeAlias = "Callable[[str, str], Awaitable[Page]]"


async def walk(
    fetch: Fetch, prefix: str, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncGenerator[ObjectInfo, None]:
    """Yield the objects of a listing in the order of their URLs, with many pages read at a time.

    If the store lists in no such order, or cannot begin at a given URL, pages are read one after
    the other, and the order is the store's.

    Args:
        fetch: Reads a page: the first one after a URL (of the whole listing if that is empty), or
            the one of a token. With a token, the URL is that of the page before it.
        prefix: The common beginning of all URLs.
        sleep: Waits that many seconds before a page is requested again.

    Raises:
        StoreError: A page's error is not retryable, or its last attempt failed.
    """
    failures: list[StoreError] = []
    fetch = partial(_fetch_again, fetch, sleep, failures)
    told: set[str] = set()
    try:
        async with aclosing(_ParallelListing(fetch, prefix).pages()) as pages:
            async for objects in pages:
                # A listing that must begin again, in one piece, does not tell these twice.
                told.update(info.url for info in objects)
                for info in objects:
                    yield info
                await asyncio.sleep(0)  # lets the tasks that have read a page request the next one
    except OutOfOrder:
        async with aclosing(_list_sequentially(fetch, prefix)) as pages:
            async for objects in pages:
                for info in objects:
                    if info.url not in told:
                        yield info
    except asyncio.CancelledError as cancelled:
        # Whoever loses patience learns for what the listing waits.
        raise cancelled from (failures[-1] if failures else None)


async def _list_sequentially(
    fetch: Fetch, prefix: str
) -> AsyncGenerator[Sequence[ObjectInfo], None]:
    token: str | None = ""
    pages = Pages(prefix)
    while token is not None:
        page = pages.check(await fetch("", token))
        token = page.token
        yield page.objects


class Pages:
    """The pages of one listing, each of which must differ: else a listing would never end."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: set[object] = set()

    def check(self, page: Page) -> Page:
        """Return a page.

        Raises:
            StoreMisbehaved: An earlier page had the same names, or named the same page as its next.
        """
        marks: set[object] = set()
        if page.token is not None:
            marks.add(page.token)
        if page.objects:
            marks.add((len(page.objects), page.objects[0].url, page.objects[-1].url))
        if marks & self._seen:
            raise StoreMisbehaved(
                "the listing does not end, since the store gives a page again and again; check "
                "the store and any proxy before it",
                url=self._prefix,
            )
        self._seen |= marks
        return page


class _ParallelListing:
    """A listing that is cut into spans, each read by a task."""

    def __init__(self, fetch: Fetch, prefix: str) -> None:
        self._fetch = fetch
        self._prefix = prefix
        self._space = KeySpace(prefix)
        self._held: dict[NameSpan, list[Sequence[ObjectInfo]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._news = asyncio.Event()

    async def pages(self) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Yield the objects of all spans, in the order of the spans.

        Raises:
            OutOfOrder: The store does not list in the order that spans need.
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

    def _begin(self, spans: Iterable[NameSpan]) -> None:
        self._tasks.update(asyncio.create_task(self._read(span)) for span in spans)

    async def _read(self, span: NameSpan) -> None:
        try:
            await self._read_pages(span)
        except Exception as error:  # noqa: BLE001 - pages() raises it
            self._failure = self._failure or error
        self._news.set()

    async def _read_pages(self, span: NameSpan) -> None:
        after, token = span.after, ""
        pages = Pages(self._prefix)
        while not span.over:
            page = await self._fetch(after, token)
            urls = [info.url for info in page.objects]
            count, new = self._space.take(span, urls, more=page.token is not None)
            # After take: a store that ignores the order is first read again, in one piece.
            pages.check(page)
            self._held.setdefault(span, []).append(page.objects[:count])
            self._news.set()
            self._begin(new)
            token = page.token or ""

    def _ready_pages(self) -> Iterator[Sequence[ObjectInfo]]:
        """Yield the pages before which no other page is missing, and forget them."""
        spans = self._space.spans
        while spans:
            over = spans[0].over  # read first: more pages may arrive while these are yielded
            yield from self._held.pop(spans[0], ())
            if not over:
                return
            del spans[0]


async def _fetch_again(
    fetch: Fetch,
    sleep: Callable[[float], Awaitable[None]],
    failures: list[StoreError],
    after: str,
    token: str,
) -> Page:
    """Read a page, and try again if the store is unavailable; the last failure is kept."""
    is_first = not (after or token)
    retries, patience = (RETRIES, FIRST_PATIENCE) if is_first else (LATER_RETRIES, math.inf)
    backoff = Backoff(Random(), base=2.0, longest=LONGEST_WAIT)

    async def attempt() -> Page:
        try:
            return await fetch(after, token)
        except StoreError as error:
            failures[:] = [error]
            raise

    return await retry(attempt, backoff, retries, patience=patience, sleep=sleep)
