"""The requests of the fetch engine under given settings: how large, and how many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from streamrec.config.dataset import DEFAULT_LANES
from streamrec.config.memory_budget import memory_budget
from streamrec.config.schemes import line_of
from streamrec.pipeline.terms.memory_needs import MemoryNeeds
from streamrec.plan.order.shard_order import open_at_once
from streamrec.plan.reading.concurrency import MOST

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings
    from streamrec.measure.figures import Listing
    from streamrec.plan.reading.ranges import MemoryPlan

LANE_HOLDS = 1.4
"""Ranges of a lane that are not under way: the one in use, and now and then a received one behind
it. Measured with 8 and 16 lanes, as requests under way of all that the budget holds."""
WINDOWS_HELD = 1.5
"""Windows that hold ranges: the one that drains and, on the average, half of the next."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The requests that the engine has under way when nothing but its settings limits them."""

    range_bytes: float
    """Bytes of a request, on the average: shards end in shorter ones."""
    in_flight: float
    """Requests under way."""
    limit: Literal["max_concurrency", "memory_budget"]
    """The setting that allows no more."""

    @classmethod
    def of(cls, settings: DatasetSettings, listing: Listing | None) -> Self:
        """Return the requests of one rank that reads alone.

        Args:
            settings: The dataset's settings.
            listing: The shards; ``None``: many large ones.

        Raises:
            ConfigError: The memory budget is too small.
        """
        needs = memory_needs(settings, listing.shards if listing else DEFAULT_LANES)
        plan = needs.divide(memory_budget(settings))
        size = _mean_range(plan.range_size, listing)
        allowed = settings.max_concurrency
        most = MOST if allowed == "auto" else allowed
        # A range of more than half of the full size takes the memory of a full one.
        piece = plan.range_size if 2 * size > plan.range_size else size
        held = max(1.0, _room(plan) / piece - LANE_HOLDS * plan.lanes)
        if most <= held:
            return cls(size, most, "max_concurrency")
        return cls(size, held, "memory_budget")


def memory_needs(settings: DatasetSettings, shards: int) -> MemoryNeeds:
    """Return what one rank that reads alone needs in memory."""
    auto = min(DEFAULT_LANES, max(1, shards))
    lanes = auto if settings.lanes == "auto" else settings.lanes
    window = int(settings.shuffle_window) if settings.has_windows else 0
    components = len(settings.components)
    sublanes = lanes * components
    if settings.shuffle and settings.weights is None and settings.index is None:
        sublanes = lanes * open_at_once(shards, lanes, int(settings.shuffle_window))
    return MemoryNeeds(
        lanes=lanes,
        sublanes=sublanes,
        packs=lanes * settings.pack.held_bytes if settings.pack else 0,
        windows=window * components,
        near=all(line_of(url).is_local for url in settings.urls),
    )


def _room(plan: MemoryPlan) -> float:
    """Return the bytes of ranges that are neither in windows nor in use."""
    return plan.for_ranges - WINDOWS_HELD * plan.windows


def _mean_range(largest: int, listing: Listing | None) -> float:
    if listing is None or not listing.shards or not listing.bytes:
        return largest
    shard = listing.bytes / listing.shards
    return shard / -(-shard // largest)
