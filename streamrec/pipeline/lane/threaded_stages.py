"""The stages of lanes that work in threads: filters and packing."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.formats.examples.packing import Packer
from streamrec.pipeline.lane.filter_stage import Filter, FilterStage
from streamrec.pipeline.lane.packing_stage import Packing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from streamrec.pipeline.batch.decoder import Decoder
    from streamrec.pipeline.fetch.fetcher import Fetcher
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.plan.coordinates import Coordinates

__all__ = ["Workers"]

T = TypeVar("T")


class Workers:
    """A factory of the lanes' stages that work in threads.

    Args:
        plan: The run's plan.
        urls: The shards' URLs, for errors.
        threads: The pool of threads.
        decoder: Parses and maps the records to pack.
        fetcher: Allocates memory, and is notified when a lane has news.
    """

    def __init__(
        self,
        plan: RunPlan,
        urls: Sequence[str],
        threads: ThreadPoolExecutor,
        decoder: Decoder,
        fetcher: Fetcher,
    ) -> None:
        features: Any = plan.settings.features
        function = plan.functions.filter
        self._filter = None if function is None else Filter(function, features, urls)
        self._pack = plan.settings.pack
        self._threads = threads
        self._decoder = decoder
        self._fetcher = fetcher
        self._loop = asyncio.get_running_loop()
        self._packers: list[Packer] = []

    def filter_stage(self, lane: int, patience: int | None) -> FilterStage | None:
        """Make the filter stage of a lane; ``None`` if there is no filter.

        Args:
            lane: The index of the lane among the rank's.
            patience: The number of extents in a row without a kept record after which it fails.
        """
        if self._filter is None:
            return None
        apply, allocate = self._filter.apply, partial(self._fetcher.acquire, lane)
        return FilterStage(lambda span: self._submit(lane, apply, span, allocate), patience)

    def packing(self, lane: int, start: Coordinates, patience: int | None) -> Packing | None:
        """Make the packing stage of a lane; ``None`` if nothing is packed.

        Args:
            lane: The index of the lane among the rank's.
            start: The coordinates that the lane begins at.
            patience: The number of extents in a row without a pack after which it fails.

        Raises:
            MalformedPosition: No lane with packs can be at these coordinates.
        """
        if self._pack is None:
            return None
        packer = Packer(self._pack, start.part)
        self._packers.append(packer)
        submit = partial(self._submit, lane)
        return Packing(packer, self._decoder.columns, submit, start, patience)

    def left_out(self) -> dict[str, int]:
        """Count the documents and values that fitted no pack."""
        if self._pack is None:
            return {}
        return {
            "documents_dropped": sum(packer.dropped_documents for packer in self._packers),
            "values_dropped": sum(packer.dropped_values for packer in self._packers),
        }

    def _submit(self, lane: int, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run some work of a lane in a thread, and notify the lane when it is done."""
        future = self._threads.submit(work, *arguments)

        def notify(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
                self._loop.call_soon_threadsafe(self._fetcher.notify, lane)

        future.add_done_callback(notify)
        return future
