from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_right
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import AccessDenied, StoreError, StoreMisbehaved, StoreUnavailable
from streamrec.stores.base.pages import (
    FIRST,
    LATER_RETRIES,
    LONGEST_WAIT,
    RETRIES,
    Page,
    _fetch_again,
    walk,
)
from streamrec.stores.base.protocol import ObjectInfo
from tests.cancellation import TURNS, cancel_in_every_turn
from tests.pipeline.simulated_store import simulated
from tests.stores.base.test_pages_spans import KEYS
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

HEAD = "s3://bucket/"


class Listing:
    """Names in pages; some wait until they may come, or fail."""

    def __init__(self, names: Sequence[str], size: int = 2) -> None:
        self.names, self.size = list(names), size
        self.knows_after = True
        self.asked: list[tuple[str, str]] = []
        self.cancelled = self.lingers = 0
        self.held: dict[str, asyncio.Event] = {}
        self.failing: dict[str, StoreError] = {}

    async def fetch(self, after: str, token: str) -> Page:
        """Return a page whose token is the number of the next page's first name."""
        after = after.removeprefix(HEAD)
        self.asked.append((after, token))
        start = 0
        if token:
            start = int(token)
        elif after and self.knows_after:
            start = bisect_right(self.names, after)
        first = self.names[start] if start < len(self.names) else ""
        if first in self.failing:
            raise self.failing[first]
        try:
            if first in self.held:
                await self.held[first].wait()
        except asyncio.CancelledError:
            for _ in range(self.lingers):
                await asyncio.sleep(0)
            self.cancelled += 1
            raise
        await asyncio.sleep(0)
        stop = start + self.size
        objects = [ObjectInfo(HEAD + name) for name in self.names[start:stop]]
        return Page(objects, str(stop) if stop < len(self.names) else None)


async def listed(listing: Listing, prefix: str = "") -> list[str]:
    """Return the names that a walk gives."""
    walked = walk(listing.fetch, HEAD + prefix)
    return [info.url.removeprefix(HEAD) async for info in walked]


def counted(count: int) -> list[str]:
    """Names that are easy to guess."""
    return [f"{number:03}" for number in range(count)]


@given(KEYS, st.integers(1, 20))
def test_every_name_once_and_in_order(names: list[str], size: int) -> None:
    listing = Listing(names, size)
    assert asyncio.run(listed(listing)) == names


@given(KEYS, st.integers(1, 20))
def test_a_store_that_always_begins_at_the_beginning(names: list[str], size: int) -> None:
    listing = Listing(names, size)
    listing.knows_after = False
    assert asyncio.run(listed(listing)) == names


@given(KEYS, st.integers(1, 20), st.randoms(use_true_random=False), st.booleans())
def test_a_store_without_order(
    names: list[str], size: int, random: Random, knows_after: bool
) -> None:
    random.shuffle(names)
    listing = Listing(names, size)
    listing.knows_after = knows_after and names == sorted(names)
    assert sorted(asyncio.run(listed(listing))) == sorted(names)


@pytest.mark.parametrize("cycle", [1, 2, 3])
@pytest.mark.parametrize("names", [["b", "a"], ["a", "b"], []])
@pytest.mark.parametrize("is_new", [False, True], ids=["its token", "tokens that are new"])
@asynchronous
async def test_a_listing_that_goes_round_is_an_error(
    names: list[str], cycle: int, is_new: bool
) -> None:
    """Without an end to the pages, nobody may wait for it."""
    asked = itertools.count()

    async def fetch(after: str, token: str) -> Page:
        turn = next(asked)
        objects = [ObjectInfo(f"{HEAD}{turn % cycle}{name}") for name in names]
        return Page(objects, f"page {turn if is_new and names else turn % cycle}")

    with pytest.raises(StoreMisbehaved, match="does not end"):
        [info async for info in walk(fetch, HEAD)]


@asynchronous
async def test_pages_far_apart_are_asked_for_before_one_of_them_comes() -> None:
    listing = Listing(counted(100))
    gate = asyncio.Event()
    listing.held = dict.fromkeys(listing.names[2:], gate)
    async with aclosing(walk(listing.fetch, HEAD)) as found:
        assert (await anext(found)).url == f"{HEAD}000"
        assert (await anext(found)).url == f"{HEAD}001"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(listing.asked) > FIRST
        gate.set()
        assert [info.url async for info in found] == [HEAD + name for name in listing.names[2:]]
    assert listing.cancelled == 0


@asynchronous
async def test_what_fits_a_page_costs_one_request() -> None:
    listing = Listing(counted(2))
    assert await listed(listing) == counted(2)
    assert listing.asked == [("", "")]


@asynchronous
async def test_what_is_left_early_asks_for_no_more() -> None:
    listing = Listing(counted(100))
    listing.held = dict.fromkeys(listing.names[2:], asyncio.Event())
    async with aclosing(walk(listing.fetch, HEAD)) as found:
        await anext(found)
        for _ in range(9):
            await asyncio.sleep(0)
    assert listing.cancelled > FIRST / 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


@asynchronous
async def test_leaving_early_is_not_cut_short() -> None:
    listing = Listing(counted(100))
    listing.held = dict.fromkeys(listing.names[2:], asyncio.Event())
    listing.lingers = TURNS
    found = walk(listing.fetch, HEAD)
    await anext(found)
    await cancel_in_every_turn(found.aclose())
    assert asyncio.all_tasks() == {asyncio.current_task()}


@asynchronous
async def test_a_failure_comes_after_the_page_before_it() -> None:
    listing = Listing(counted(5))
    listing.failing["002"] = AccessDenied("no")
    found: list[str] = []
    with pytest.raises(AccessDenied):
        async for info in walk(listing.fetch, HEAD):
            found.append(info.url)  # noqa: PERF401 - it is kept beyond the failure
    assert found[:2] == [f"{HEAD}000", f"{HEAD}001"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@asynchronous
async def test_a_failure_that_nobody_waits_for_is_silent() -> None:
    listing = Listing(counted(5))
    listing.failing["002"] = AccessDenied("no")
    async with aclosing(walk(listing.fetch, HEAD)) as found:
        await anext(found)
        await asyncio.sleep(0)


class Store:
    def __init__(self, *failures: StoreError) -> None:
        self.failures = list(failures)
        self.attempts = 0
        self.naps: list[float] = []

    async def fetch(self, after: str, token: str) -> Page:
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)
        return Page([], token)

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)


@asynchronous
async def test_what_is_busy_is_asked_again() -> None:
    store = Store(StoreUnavailable("busy"), StoreUnavailable("busy", retry_after=7.0))
    assert await _fetch_again(store.fetch, store.sleep, [], "", "") == Page([], "")
    assert store.attempts == 3
    first, second = store.naps
    assert 0 <= first <= 2
    assert 7 <= second <= 11


@pytest.mark.parametrize(
    ("after", "token", "most"),
    [("", "", RETRIES + 1), ("a", "", LATER_RETRIES + 1), ("", "2", LATER_RETRIES + 1)],
)
@asynchronous
async def test_what_stays_busy_is_given_up(after: str, token: str, most: int) -> None:
    store = Store(*[StoreUnavailable("busy")] * 99)
    with pytest.raises(StoreUnavailable):
        await _fetch_again(store.fetch, store.sleep, [], after, token)
    assert store.attempts == most
    assert len(store.naps) == most - 1
    assert all(0 <= nap <= LONGEST_WAIT for nap in store.naps)


class SlowStore(Store):
    """A store that refuses slowly."""

    async def fetch(self, after: str, token: str) -> Page:
        await asyncio.sleep(10.0)
        return await super().fetch(after, token)


@pytest.mark.parametrize(
    ("token", "failure", "attempts"),
    [
        ("", StoreUnavailable("no connection comes about"), 2),
        ("", StoreUnavailable("slow down", throttled=True), RETRIES + 1),
        ("2", StoreUnavailable("no connection comes about"), LATER_RETRIES + 1),
    ],
    ids=["first page", "a store that answers", "later page"],
)
@simulated
async def test_a_store_that_cannot_be_reached_is_soon_given_up(
    token: str, failure: StoreUnavailable, attempts: int
) -> None:
    store = SlowStore(*[failure] * 99)
    with pytest.raises(StoreUnavailable):
        await _fetch_again(store.fetch, store.sleep, [], "", token)
    assert store.attempts == attempts


@asynchronous
async def test_what_will_not_pass_is_not_repeated() -> None:
    store = Store(AccessDenied("no"))
    with pytest.raises(AccessDenied):
        await _fetch_again(store.fetch, store.sleep, [], "", "2")
    assert (store.attempts, store.naps) == (1, [])
