"""Datasets that are open while something serves them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from streamrec.feeder.server.served_dataset import ServedDataset
from streamrec.flow.cleanup import finish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.served import Served


class ServedDatasets(dict[str, ServedDataset]):
    """The datasets of a daemon by name; an asynchronous context manager that closes them.

    Args:
        settings: Their settings.
        opener: Opens one.
        check: Raises an error for one that can serve nobody.
    """

    def __init__(
        self,
        settings: Mapping[str, DatasetSettings],
        opener: Callable[[DatasetSettings], Awaitable[Served]],
        check: Callable[[Served], object] = lambda _: None,
    ) -> None:
        super().__init__()
        self._check = check
        self._opener = opener
        for name, dataset in settings.items():
            self.add(name, dataset)

    def add(self, name: str, settings: DatasetSettings) -> ServedDataset:
        """Begin to open another dataset, and return it."""
        self[name] = ServedDataset(name, settings, self._opener, check=self._check)
        return self[name]

    @property
    def troubles(self) -> dict[str, str]:
        """The reasons why stores fail now, by the datasets' names."""
        return {name: found.trouble for name, found in self.items() if found.trouble is not None}

    async def tried(self) -> None:
        """Return once each is open, or its store has failed.

        Raises:
            StreamrecError: One cannot be opened at all.
        """
        await asyncio.gather(*(dataset.tried() for dataset in self.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await finish(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(dataset.aclose() for dataset in self.values()))


@asynccontextmanager
async def opened(
    datasets: Mapping[str, Awaitable[Served]],
) -> AsyncIterator[Mapping[str, asyncio.Future[Served]]]:
    """Open datasets while the block runs already; close them, or stop opening them, after it.

    What cannot be opened stays so, and its clients get the error as it is.
    """
    opening = {name: asyncio.ensure_future(dataset) for name, dataset in datasets.items()}
    try:
        yield opening
    finally:
        await finish(close_opened(opening.values()))


async def close_opened(opening: Collection[asyncio.Future[Served]]) -> None:
    """Close datasets, or stop opening them."""
    for future in opening:
        future.cancel()
    for dataset in await asyncio.gather(*opening, return_exceptions=True):
        if not isinstance(dataset, BaseException):
            await dataset.aclose()


def obstacle_of(dataset: Served | Awaitable[Served]) -> str | None:
    """Return the reason why no client of a dataset could be served now; ``None``: one could."""
    if isinstance(dataset, ServedDataset):
        return dataset.obstacle
    if not asyncio.isfuture(dataset):
        return None
    is_open = dataset.done() and not dataset.cancelled() and dataset.exception() is None
    return None if is_open else "datasets are being opened"
