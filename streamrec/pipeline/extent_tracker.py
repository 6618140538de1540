"""The extents that the lanes of a run are in: a batch's position has their epoch and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.order.shard_order import Extent

if TYPE_CHECKING:
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.terms.run_plan import RunPlan
    from streamrec.plan.order.coordinates import Structured
    from streamrec.values.columns import Indices


class ExtentTracker:
    """The current extents of a run's sublanes, looked up only when they change."""

    def __init__(self, plan: RunPlan, shards: Shards) -> None:
        self._plan = plan
        self._shards = shards
        lanes = len(plan.own_lanes)
        self._numbers = np.full((lanes, len(plan.sublanes) // lanes), -1, np.int64)
        self._begins = self._numbers.copy()
        self._extents: list[Extent] = [Extent(-1, 0, 0)] * len(plan.sublanes)  # lane after lane
        self._inside: bytes | None = None  # which sublanes are inside an extent; None: unknown
        self._sizes = self._numbers
        self.epoch = 0
        """The lowest epoch of the extents."""

    def follow(self, points: Structured) -> None:
        """Look up the extents that have changed; ``points`` are those of a position."""
        numbers = points["extent"].reshape(self._numbers.shape)
        # Not by NumPy, whose reductions release the GIL: decoding threads would take it.
        if numbers.tobytes() == self._numbers.tobytes():
            return
        changed = np.flatnonzero(numbers != self._numbers).tolist()
        self._numbers = numbers.copy()
        lanes, sources = numbers.shape
        for place in changed:
            j, source = divmod(place, sources)
            order, lane = self._plan.sublanes[source * lanes + j]
            extent = order.extent(lane, numbers.item(place))
            self._extents[place] = extent
            self._begins.flat[place] = extent.begin
        self._inside = None
        self.epoch = min(extent.epoch for extent in self._extents)

    def sizes(self, points: Structured, lanes: Structured) -> Indices:
        """Return the sizes in bytes of the shards that sublanes are in the middle of; else 0.

        Returns:
            int64 ``[lanes, sources]``, as a position has them.
        """
        begun = (lanes["row"] | lanes["part"]) > 0
        inside = (points["offset"].reshape(self._begins.shape) > self._begins) | begun[:, None]
        if self._inside != inside.tobytes():
            self._inside = inside.tobytes()
            extents = zip(self._extents, inside.ravel().tolist(), strict=True)
            size_of = self._shards.size_of
            sizes = [size_of(extent.shard) * within for extent, within in extents]
            self._sizes = np.array(sizes, np.int64).reshape(inside.shape)
        return self._sizes
