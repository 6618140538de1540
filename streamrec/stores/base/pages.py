"""Listings in pages: many pages are read at a time, and failed ones are read again.

A store lists names in order, page after page, so 100,000 names take 100 round trips. But it can
also list from any name on. So the names after a page are cut at guessed names, into spans that are
read side by side: where the page's names count, at further numbers. Only speed depends on the
guesses: each span is read to the beginning of the next, whatever names it has.
"""

from __future__ import annotations

import asyncio
import math
import re
from bisect import bisect_right
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, takewhile
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from streamrec.errors import StoreError, StoreMisbehaved
from streamrec.flow.cleanup import end
from streamrec.flow.retry import Backoff, retry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence

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
    told: list[Sequence[ObjectInfo]] = []  # pages, as a set of a million names takes 60 MB
    try:
        async with aclosing(_ParallelListing(fetch, prefix).pages()) as pages:
            async for objects in pages:
                told.append(objects)
                for info in objects:
                    yield info
                await asyncio.sleep(0)  # lets the tasks that have read a page request the next one
    except OutOfOrder:
        # The listing begins again, in one piece, and does not tell these twice.
        known = {info.url for objects in told for info in objects}
        async with aclosing(_list_sequentially(fetch, prefix)) as pages:
            async for objects in pages:
                for info in objects:
                    if info.url not in known:
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


MOST = 32
"""Requests for pages in flight; the stores allow thousands a second."""
FIRST, FURTHER = 8, 2
"""Spans that may be added at the start, and with each page: many of them may be empty."""
REACH = 6
"""Characters of a counter on either side of the first one that differs within a page."""

SAMPLED = 20
"""The distance of the names of a page from which the alphabet of its counter is found."""

_DIGITS = "0123456789"
_UPPER, _LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
_ALPHABETS = (
    *(_DIGITS, _DIGITS + _LOWER[:6], _DIGITS + _UPPER[:6]),
    *(_DIGITS + _LOWER, _DIGITS + _UPPER, _DIGITS + _UPPER + _LOWER),
)
"""The alphabets of counters, sorted as stores sort; the smallest that fits is taken."""
_NUMBER = re.compile("[0-9]+")


class OutOfOrder(Exception):
    """The store does not list names in order, or not from the name it was asked to start after."""


@dataclass(eq=False, slots=True)
class NameSpan:
    """The names after ``after``, up to and including ``until``."""

    after: str
    """The last name that was listed; empty: none was."""
    until: str | None
    """The last name of the span; ``None``: that of the listing."""
    over: bool = False
    """``True`` once all names of the span are listed."""


class KeySpace:
    """The spans of a listing, in the order of their names.

    Args:
        prefix: The prefix of all names.
        most: The most spans that are read at a time.
    """

    def __init__(self, prefix: str, most: int = MOST) -> None:
        self.spans = [NameSpan("", None)]
        """The spans; the user removes the first ones once it has all of their names."""
        self._prefix, self._most = prefix, most
        self._guesses = FIRST

    def take(
        self, span: NameSpan, names: Sequence[str], *, more: bool
    ) -> tuple[int, list[NameSpan]]:
        """Add a page to a span, and cut what is left of the span.

        Args:
            span: The span.
            names: The names of the page.
            more: ``True`` if the store has names after them.

        Returns:
            The number of the names that belong to the span, and the new spans. The span itself
            goes on unless it is over.

        Raises:
            OutOfOrder: The listing must start again, in one piece.
        """
        # Strictly, so that no name is listed twice.
        if not all(one < other for one, other in pairwise((span.after, *names))):
            raise OutOfOrder
        count = len(names) if span.until is None else bisect_right(names, span.until)
        span.after = names[-1] if names else span.after
        span.over = not more or (span.until is not None and span.after >= span.until)
        return count, self._divide(span, names) if names and not span.over else []

    def _divide(self, span: NameSpan, names: Sequence[str]) -> list[NameSpan]:
        """Cut what is left of a span into as many spans as may be read besides."""
        self._guesses += FURTHER
        room = self._most - sum(not each.over for each in self.spans)
        cuts_here = cuts(names, span.until, min(room, self._guesses), begin=len(self._prefix))
        self._guesses -= len(cuts_here)
        spans = [
            NameSpan(after, until) for after, until in pairwise([*cuts_here, span.until]) if after
        ]
        if cuts_here:
            span.until = cuts_here[0]
        place = self.spans.index(span) + 1
        self.spans[place:place] = spans
        return spans


def cuts(names: Sequence[str], until: str | None, most: int, *, begin: int = 0) -> list[str]:
    """Return names at which to cut what follows a page, each probably with many names after it.

    Args:
        names: The names of the page, in order; at least one.
        until: The last name of the span; ``None``: not known.
        most: The most cuts.
        begin: The length of the prefix of all names, those to come included.

    Returns:
        Names between the page's last one and the end, in order. They need not exist.
    """
    found: set[str] = set()
    counters = [each for each in _counters(names, begin) if each.room(until)]
    for left, counter in zip(range(len(counters), 0, -1), counters, strict=True):
        # Half of what is left, rounded up, for each counter, and all of it for the last.
        here = (most - len(found) + (left > 1)) // (2 if left > 1 else 1)
        found.update(counter.cuts(until, here))
    last = names[-1]
    # Counters may guess the same, and beyond both ends of the span.
    return sorted(cut for cut in found if last < cut and (until is None or cut < until))


@dataclass(frozen=True, slots=True)
class _NameCounter:
    """A counter inside of a name: characters that count up from name to name."""

    head: str
    """The part of the name before the counter."""
    digits: str
    alphabet: str
    tail: str
    """The part after the counter, which is the same in the next names."""
    step: int = 1
    """The numbers that a page advances the counter by."""

    def room(self, until: str | None) -> int:
        """Return the number of pages that may lie before the end, by this counter."""
        return (self._end(until) - 1 - self._value(self.digits)) // self.step

    def cuts(self, until: str | None, most: int) -> Iterator[str]:
        """Yield cuts at whole pages; closer to each other at first if the end is not known."""
        room, parts, start = self.room(until), most + 1, self._value(self.digits)
        end_bounds = self._bounds(until)
        pages = (
            (room + 1) * part // parts if end_bounds else int(room ** (part / parts))
            for part in range(1, parts)
        )
        return (self._name(start + self.step * page) for page in pages if page > 0)

    def _bounds(self, until: str | None) -> bool:
        return until is not None and until.startswith(self.head)

    def _end(self, until: str | None) -> int:
        if until is None or not self._bounds(until):
            return int(len(self.alphabet) ** len(self.digits))
        return self._value(until[len(self.head) :])

    def _value(self, text: str) -> int:
        """Return the number at the beginning of a text, of as many digits as the counter has."""
        text = text[: len(self.digits)]
        # A digit that is missing counts as the lowest, as a shorter name sorts first.
        prefix = "".join(takewhile(self.alphabet.__contains__, text)).ljust(len(self.digits), "0")
        value = 0
        for digit in prefix:
            value = value * len(self.alphabet) + self.alphabet.index(digit)
        return value

    def _name(self, value: int) -> str:
        digits = ""
        for _ in self.digits:
            value, digit = divmod(value, len(self.alphabet))
            digits = self.alphabet[digit] + digits
        return self.head + digits + self.tail

    def stepping_from(self, name: str) -> _NameCounter:
        """Return this counter with the step of a page whose first name is ``name``."""
        step = self._value(self.digits) - self._value(name[len(self.head) :]) + 1
        return _NameCounter(
            head=self.head,
            digits=self.digits,
            alphabet=self.alphabet,
            tail=self.tail,
            step=max(1, step),
        )


def _counters(names: Sequence[str], begin: int) -> Iterator[_NameCounter]:
    """Yield the counters in a page's last name: where names differ, then numbers on the left."""
    first, last = names[0], names[-1]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    start = differs = sum(1 for _ in same)
    alphabet = _alphabet(
        {char for name in names[::SAMPLED] for char in _word(name[differs : differs + 3])}
    )
    if alphabet is not None and begin <= differs < len(last):
        start, stop = _run(last, differs, alphabet, begin)
        counter = _NameCounter(last[:start], last[start:stop], alphabet, last[stop:])
        yield counter.stepping_from(first)
    # A number on the left is a directory's, for instance: more directories may follow.
    for number in reversed(list(_NUMBER.finditer(last, begin, max(begin, start)))):
        low = max(number.start(), number.end() - REACH)
        yield _NameCounter(last[:low], last[low : number.end()], _DIGITS, "")


def _word(text: str) -> Iterator[str]:
    return takewhile(_ALPHABETS[-1].__contains__, text)


def _alphabet(chars: set[str]) -> str | None:
    if not chars:
        return None
    # One fits always: the last alphabet has all that _word() lets pass.
    return next(alphabet for alphabet in _ALPHABETS if chars.issubset(alphabet))


def _run(name: str, place: int, alphabet: str, begin: int) -> tuple[int, int]:
    """Return the begin and end of the counter around the character ``place``."""
    start = stop = place
    while start > max(begin, place - REACH) and name[start - 1] in alphabet:
        start -= 1
    while stop < min(len(name), place + REACH) and name[stop] in alphabet:
        stop += 1
    return start, stop
