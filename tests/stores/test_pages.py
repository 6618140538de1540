from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from streamrec.errors import AccessDenied, StoreError, StoreUnavailable
from streamrec.stores.base import ObjectInfo
from streamrec.stores.pages import MAX_ATTEMPTS, Page, patiently, walk
from tests.support import asynchronous


class Listing:
    """Pages of two objects each; each waits until it may come."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.asked: list[str] = []
        self.cancelled = 0
        self.held: dict[int, asyncio.Event] = {}
        self.failing: dict[int, StoreError] = {}

    async def fetch(self, token: str) -> Page:
        self.asked.append(token)
        number = int(token or 0)
        if number in self.failing:
            raise self.failing[number]
        try:
            if number in self.held:
                await self.held[number].wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        objects = [ObjectInfo(f"s3://bucket/{number}{letter}") for letter in "ab"]
        return Page(objects, str(number + 1) if number + 1 < self.pages else None)


def names(pages: int) -> list[str]:
    return [f"s3://bucket/{number}{letter}" for number in range(pages) for letter in "ab"]


@pytest.mark.parametrize("pages", [1, 2, 5])
@asynchronous
async def test_all_pages_in_their_order(pages: int) -> None:
    listing = Listing(pages)
    assert [info.url async for info in walk(listing.fetch)] == names(pages)
    assert listing.asked == ["", *map(str, range(1, pages))]


@asynchronous
async def test_the_next_page_is_asked_for_before_this_one_is_gone_through() -> None:
    listing = Listing(3)
    listing.held[2] = asyncio.Event()
    async with aclosing(walk(listing.fetch)) as found:
        assert (await anext(found)).url == "s3://bucket/0a"
        await asyncio.sleep(0)
        assert listing.asked == ["", "1"]
    assert listing.cancelled == 0


@asynchronous
async def test_what_is_left_early_asks_for_no_more() -> None:
    listing = Listing(3)
    listing.held[1] = asyncio.Event()
    async with aclosing(walk(listing.fetch)) as found:
        await anext(found)
        await asyncio.sleep(0)
    assert listing.cancelled == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@asynchronous
async def test_a_failure_comes_after_the_pages_before_it() -> None:
    listing = Listing(3)
    listing.failing[1] = AccessDenied("no")
    found: list[str] = []
    with pytest.raises(AccessDenied):
        async for info in walk(listing.fetch):
            found.append(info.url)  # noqa: PERF401 - it is kept beyond the failure
    assert found == names(1)


@asynchronous
async def test_a_failure_that_nobody_waits_for_is_silent() -> None:
    listing = Listing(3)
    listing.failing[1] = AccessDenied("no")
    async with aclosing(walk(listing.fetch)) as found:
        await anext(found)
        await asyncio.sleep(0)


class Store:
    def __init__(self, *failures: StoreError) -> None:
        self.failures = list(failures)
        self.attempts = 0
        self.naps: list[float] = []

    async def read(self) -> str:
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)
        return "page"

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)


@asynchronous
async def test_what_is_busy_is_asked_again() -> None:
    store = Store(StoreUnavailable("busy"), StoreUnavailable("busy", retry_after=7.0))
    assert await patiently(store.read, store.sleep) == "page"
    assert store.attempts == 3
    first, second = store.naps
    assert 0 <= first <= 2
    assert 7 <= second <= 11


@asynchronous
async def test_what_stays_busy_is_given_up() -> None:
    store = Store(*[StoreUnavailable("busy")] * 9)
    with pytest.raises(StoreUnavailable):
        await patiently(store.read, store.sleep)
    assert store.attempts == MAX_ATTEMPTS
    assert len(store.naps) == MAX_ATTEMPTS - 1


@asynchronous
async def test_what_will_not_pass_is_not_repeated() -> None:
    store = Store(AccessDenied("no"))
    with pytest.raises(AccessDenied):
        await patiently(store.read, store.sleep)
    assert (store.attempts, store.naps) == (1, [])
