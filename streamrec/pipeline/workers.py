"""What lanes have done in threads: filtering and packing."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.formats.packing import Packer
from streamrec.pipeline.filter_stage import Filter, FilterStage
from streamrec.pipeline.packing import Packing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from streamrec.pipeline.decode import Decoder
    from streamrec.pipeline.fetch import Fetcher
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.pipeline.stages import Coordinates

__all__ = ["Workers"]

T = TypeVar("T")


class Workers:
    """Makes the stages of lanes that work in threads.

    Args:
        plan: The run's.
        urls: Of the shards, for errors.
        threads: Do the work.
        decoder: Parses and maps what is packed.
        fetcher: Lends memory, and is told when a lane has news.
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
        """The filter of an own lane; ``None``: it has none.

        Args:
            lane: Which of the own lanes.
            patience: After how many extents of which nothing is kept there is no hope.
        """
        if self._filter is None:
            return None
        apply, allocate = self._filter.apply, partial(self._fetcher.acquire, lane)
        return FilterStage(lambda span: self._submit(lane, apply, span, allocate), patience)

    def packing(self, lane: int, start: Coordinates, patience: int | None) -> Packing | None:
        """The packing of an own lane; ``None``: it has none.

        Args:
            lane: Which of the own lanes.
            start: Where it stands.
            patience: After how many extents that give no pack there is no hope.

        Raises:
            MalformedPosition: It cannot stand there.
        """
        if self._pack is None:
            return None
        packer = Packer(self._pack, start.part)
        self._packers.append(packer)
        submit = partial(self._submit, lane)
        return Packing(packer, self._decoder.columns, submit, start, patience)

    def left_out(self) -> dict[str, int]:
        """What no pack could hold."""
        if self._pack is None:
            return {}
        return {
            "documents_dropped": sum(packer.dropped_documents for packer in self._packers),
            "values_dropped": sum(packer.dropped_values for packer in self._packers),
        }

    def _submit(self, lane: int, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Work for a lane, which then has news."""
        future = self._threads.submit(work, *arguments)

        def notify(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._fetcher.notify, lane)

        future.add_done_callback(notify)
        return future
