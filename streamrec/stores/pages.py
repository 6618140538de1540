"""Listings that come in pages: read ahead, and patiently."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from streamrec.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence

    from streamrec.stores.base import ObjectInfo

__all__ = ["Page", "patiently", "walk"]

MAX_ATTEMPTS = 4
"""Of a page: one that fails must not begin the listing again."""

_T = TypeVar("_T")


class Page(NamedTuple):
    """A part of a listing."""

    objects: Sequence[ObjectInfo]
    token: str | None
    """Asks for the next page; ``None``: this is the last one."""


async def walk(
    fetch: Callable[[str], Coroutine[Any, Any, Page]],
) -> AsyncGenerator[ObjectInfo, None]:
    """Go through a listing; while one page is gone through, the next is on its way.

    Args:
        fetch: Brings the page behind a token; the first one's is empty.
    """
    coming: asyncio.Task[Page] | None = asyncio.create_task(fetch(""))
    try:
        while coming is not None:
            page = await coming
            coming = asyncio.create_task(fetch(page.token)) if page.token else None
            for info in page.objects:
                yield info
    finally:
        if coming is not None:
            await _end(coming)


async def _end(task: asyncio.Task[Page]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # retrieved: nobody else will ask for it


async def patiently(
    read: Callable[[], Awaitable[_T]], sleep: Callable[[float], Awaitable[None]]
) -> _T:
    """Read something short, a few times where the store is not to be had.

    Args:
        read: One attempt.
        sleep: Waits that many seconds before the next.

    Raises:
        StoreError: It will not pass, or did not.
    """
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            return await read()
        except StoreUnavailable as busy:
            await sleep((busy.retry_after or 0.0) + random.uniform(0, 2**attempt))
    return await read()
