"""Datasets that are open while something serves them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamrec.flow.cleanup import finish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Collection, Mapping

    from streamrec.pipeline.dataset import Dataset

__all__ = ["opened"]


@asynccontextmanager
async def opened(
    datasets: Mapping[str, Awaitable[Dataset]],
) -> AsyncIterator[Mapping[str, asyncio.Future[Dataset]]]:
    """Open datasets while the block runs already; close them, or stop opening them, after it."""
    opening = {name: asyncio.ensure_future(dataset) for name, dataset in datasets.items()}
    try:
        yield opening
    finally:
        await finish(_close(opening.values()))


async def _close(opening: Collection[asyncio.Future[Dataset]]) -> None:
    for future in opening:
        future.cancel()
    for dataset in await asyncio.gather(*opening, return_exceptions=True):
        if not isinstance(dataset, BaseException):
            await dataset.aclose()
