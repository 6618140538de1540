"""Runs coroutines side by side, and ends them all when one fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.flow.cleanup import end

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

_T = TypeVar("_T")


async def together(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run coroutines side by side, and return what they return, in their order.

    When one of them raises, the others are cancelled, and its error is raised as it is.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end(*tasks)
