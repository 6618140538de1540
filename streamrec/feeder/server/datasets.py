"""Datasets that are open while something serves them.

A daemon opens each as soon as its store lets it, and watches it when that fails later. What a store
refuses today it may give tomorrow: it comes back, shards are written, credentials are renewed. So
each fault of a store is tried again. Any other fault is one of the configuration, or of the data,
and stays.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Self

from streamrec.errors import AccessDenied, ConfigError, StoreError, StoreUnavailable
from streamrec.feeder.functions.map_identity import identify
from streamrec.flow.cleanup import end, finish
from streamrec.flow.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.served import Served


FIRST_WAIT = 1.0
"""Seconds, at most, until a store is asked again for the first time."""
LONGEST_WAIT = 30.0

log = logging.getLogger("streamrec.feeder")


class ServedDataset:
    """A dataset that clients may wait for; awaited, it gives the open dataset, or says why not.

    Args:
        name: The dataset's name.
        settings: The settings of the configuration.
        opener: Opens it.
        random: The source of the waits' jitter.
        check: Raises an error for a dataset that can serve nobody.
    """

    def __init__(
        self,
        name: str,
        settings: DatasetSettings,
        opener: Callable[[DatasetSettings], Awaitable[Served]],
        random: Random | None = None,
        check: Callable[[Served], object] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.trouble: str | None = None
        """What is wrong with the store now; ``None`` where nothing is known to be."""
        self._name = name
        self._opener = opener
        self._check = check
        self._random = random or Random()
        self.outcome: Served | Exception | None = None
        """The open dataset, or the reason why it will never be open."""
        self._tried = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._open())

    def __repr__(self) -> str:
        return f"<ServedDataset {self._name}: {self.obstacle or 'open'}>"

    def __await__(self) -> Generator[None, None, Served]:
        return self._get().__await__()

    @property
    def obstacle(self) -> str | None:
        """The reason why no client could be served now; ``None`` while one could."""
        if isinstance(self.outcome, Exception):
            return f"the dataset {self._name!r} cannot be opened: {self.outcome}"
        if self.trouble is not None:
            return f"the store of the dataset {self._name!r} fails: {self.trouble}"
        return None if self._tried.is_set() else "datasets are being opened"

    async def wait_until_tried(self) -> None:
        """Return once it is open, or its store has failed.

        Raises:
            StreamrecError: It cannot be opened at all.
        """
        await self._tried.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome

    def note_failure(self, error: Exception) -> None:
        """Note what a client's stream has failed with, and ask a failing store until it answers."""
        # Another fault, as that an object is missing, says nothing of the whole store.
        is_its_store = isinstance(error, StoreUnavailable | AccessDenied)
        if is_its_store and self._dataset is not None and self.trouble is None:
            self.trouble = str(error)
            self._task = asyncio.get_running_loop().create_task(self._probe())

    @property
    def _dataset(self) -> Served | None:
        return None if isinstance(self.outcome, Exception) else self.outcome

    async def aclose(self) -> None:
        """Stop trying, and close the dataset."""
        await end(self._task)
        if self._dataset is not None:
            await self._dataset.aclose()

    async def _get(self) -> Served:
        await self.wait_until_tried()
        if self.trouble is not None or self._dataset is None:
            raise StoreUnavailable(
                f"{self.obstacle}; the feeder tries again by itself; connect again later, or to "
                "another one"
            )
        return self._dataset

    async def _open(self) -> None:
        try:
            self.outcome = await self._check_opened(await self._open_patiently())
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of a defect too
            self.outcome = error
            log.error("the dataset cannot be opened: %s", error, extra=self._facts)  # noqa: TRY400
        else:
            self._log_shards(self.outcome)
        self._tried.set()

    async def _check_opened(self, dataset: Served) -> Served:
        try:
            self._check(dataset)
        except ConfigError as error:
            await finish(dataset.aclose())
            raise ConfigError(
                f"the dataset {self._name!r} cannot be served: {error.message}"
            ) from None
        return dataset

    async def _probe(self) -> None:
        """Return when the store answers again."""
        log.warning("the store of the dataset fails: %s", self.trouble, extra=self._facts)
        try:
            dataset = await self._open_patiently()
        except Exception as error:  # noqa: BLE001 - the store answers, and more is not asked here
            log.warning("the store answers, but not as before: %s", error, extra=self._facts)
            self.trouble = None
        else:
            await finish(dataset.aclose())

    async def _open_patiently(self) -> Served:
        """Open the dataset, however long its store takes to allow it."""
        backoff = Backoff(self._random, FIRST_WAIT, LONGEST_WAIT)
        began = asyncio.get_running_loop().time()
        while True:
            try:
                dataset = await self._opener(await identify(self.settings))
            except StoreError as error:
                await self._wait(error, backoff.next())
            else:
                if self.trouble is not None:
                    seconds = asyncio.get_running_loop().time() - began
                    self.trouble = None
                    log.info("the store answers again after %.1f s", seconds, extra=self._facts)
                return dataset

    async def _wait(self, error: StoreError, seconds: float) -> None:
        self.trouble = str(error)
        self._tried.set()
        log.warning("%s; it is tried again in %.1f s", error, seconds, extra=self._facts)
        await asyncio.sleep(seconds)

    @property
    def _facts(self) -> dict[str, str]:
        return {"dataset": self._name}

    def _log_shards(self, dataset: Served) -> None:
        count, size = len(dataset.shards), dataset.stored_bytes
        extra = {**self._facts, **({} if size is None else {"bytes": size})}
        log.info("the dataset is open: %d shards", count, extra=extra)


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
        return {name: one.trouble for name, one in self.items() if one.trouble is not None}

    async def wait_until_tried(self) -> None:
        """Return once each is open, or its store has failed.

        Raises:
            StreamrecError: One cannot be opened at all.
        """
        await asyncio.gather(*(dataset.wait_until_tried() for dataset in self.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await finish(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(dataset.aclose() for dataset in self.values()))


@asynccontextmanager
async def open_all(
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
        # Those that are done stay as they are: a result is a dataset that is open.
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
