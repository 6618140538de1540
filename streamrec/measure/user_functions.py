"""Times the user's filter, map and transform over batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from streamrec.kernel.contract import fresh
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.pipeline.lane.filter_stage import Filter
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.plan.state.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.batch.decoder import Decoder
    from streamrec.pipeline.batch.functions import Functions
    from streamrec.pipeline.lane.record_span import RecordSpan

_NOWHERE = Position.start(
    Fingerprint("", 1, "shard", 1, shuffle=False, seed=0, shuffle_window=0, global_batch=None),
    [0],
    rank=0,
    world_size=1,
)
"""The position of batches that are of no stream."""


class UserFunctions:
    """The user's functions, called as the pipeline calls them.

    Args:
        functions: The functions.
        features: The specs in their plain form, or ``None`` for raw records.
        urls: The shards' URLs, for errors.
        decoder: Makes the columns that a map or a transform gets; that time does not count.
    """

    def __init__(
        self, functions: Functions, features: Any, urls: Sequence[str], decoder: Decoder
    ) -> None:
        self._functions, self._urls, self._decoder = functions, urls, decoder
        self._filter = None
        if functions.filter is not None:
            self._filter = Filter(functions.filter, features, urls)

    def seconds(self, span: RecordSpan) -> float:
        """Call all functions on a batch, and return the seconds that they took.

        A filter parses the columns that it uses, which counts.

        Raises:
            FunctionFailed: A function raised, or returned something else than it should.
        """
        began = time.perf_counter()
        if self._filter is not None:
            span = self._filter.apply(span, fresh)
        filtered = time.perf_counter()
        if not len(span) or not (self._functions.map or self._functions.transform):
            return filtered - began
        columns: Any = self._decoder.columns(span.rows)
        parsed = time.perf_counter()
        self._call(columns, span)
        return filtered - began + time.perf_counter() - parsed

    def _call(self, columns: Any, span: RecordSpan) -> None:
        map_, transform = self._functions.map, self._functions.transform
        origin = Origin(span.rows.shards, span.rows.ordinals)
        if map_ is not None:
            columns = map_.apply(columns, origin, self._urls.__getitem__)
        if transform is not None:
            batch = Batch(columns, len(span), 0, origin, _NOWHERE)
            transform.change(batch, self._urls.__getitem__)
