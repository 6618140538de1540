"""The filter of a lane, which threads apply to spans of records without changing their order.

Records that are kept stay references to the bytes that were read, so later stages work as without a
filter. Features that the function does not use are not parsed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec import kernel
from streamrec.errors import (
    BatchTooLarge,
    DataError,
    FunctionFailed,
    PictureTooLarge,
    StreamrecError,
)
from streamrec.formats.examples.descriptions import is_pair
from streamrec.formats.examples.features import parser_of
from streamrec.formats.examples.needs import UNLIMITED, Claims, DecodeLimits, one_by_one
from streamrec.pipeline.batch.origin import Origin
from streamrec.plan.order.coordinates import Coordinates
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.formats.examples.needs import Share
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.functions import Function
    from streamrec.pipeline.lane.mix_source import Mix
    from streamrec.pipeline.lane.open_shards import OpenShards
    from streamrec.pipeline.lane.record_reader import RecordReader
    from streamrec.pipeline.lane.record_span import RecordSpan
    from streamrec.values.columns import Column, Indices

MOST_WAITING = 2
"""Spans of a lane that threads may have: one that is being filtered, and the next."""

Columns: TypeAlias = "dict[str, Column]"
Source: TypeAlias = "RecordReader | Mix | OpenShards"
"""A source of a lane's records."""


@dataclass(eq=False)
class Filter:
    """The user's filter function, called with columns from several threads at once.

    Args:
        function: The user's.
        features: The specs in their plain form, or ``None`` for raw records.
        urls: The shards' URLs, for errors.
        limits: The limits of a batch. Records are parsed in parts, of which each thread may have
            one at a time; so each has a thread's share, or is a single record.
        share: Runs the decoding of the pictures of a part.
    """

    function: Function
    features: dict[str, Any] | None
    urls: Sequence[str] = field(repr=False)
    limits: DecodeLimits = UNLIMITED
    share: Share = one_by_one
    _used: tuple[str, ...] = ()

    def apply(self, span: RecordSpan, allocate: Allocate) -> RecordSpan:
        """Return the records that the filter keeps; a few are copied, which frees the rest.

        Args:
            span: Some records.
            allocate: Allocates memory for the copies.

        Raises:
            FunctionFailed: The function raised or returned no mask.
            DataError: A record cannot be parsed.
        """
        rows = span.rows
        indices = np.flatnonzero(self._mask(rows, span.extent.epoch))
        if len(indices) == len(rows):
            return span
        few = rows.take(indices)
        if few.nbytes < rows.nbytes // 2:
            column = kernel.gather(few, allocate)
            copies = RecordRows.from_column(column)
            few = replace(copies, shards=few.shards, ordinals=few.ordinals, passes=few.passes)
        return span.keep(indices, few)

    def _mask(self, rows: RecordRows, epoch: int) -> npt.NDArray[np.bool_]:
        """Return the mask of some records, by halves where together they take too much memory."""
        origin = Origin(rows.shards, rows.ordinals)
        epochs = epoch if rows.passes is None else rows.passes
        try:
            return self._whole_mask(rows, origin, epochs)
        except (BatchTooLarge, PictureTooLarge):
            if len(rows) == 1:
                raise
        half = len(rows) // 2
        parts = rows.part(0, half), rows.part(half, len(rows))
        return np.concatenate([self._mask(part, epoch) for part in parts])

    def _whole_mask(
        self, rows: RecordRows, origin: Origin, epochs: Indices | int
    ) -> npt.NDArray[np.bool_]:
        columns = self._columns(rows)
        try:
            return self.function.keep(columns, origin, self.urls.__getitem__, epochs)
        except FunctionFailed as failed:
            # Columns are parsed inside the function; what they hold is not its mistake.
            if isinstance(columns, _Columns) and failed.__cause__ is columns.fault is not None:
                raise columns.fault from None
            raise

    def _columns(self, rows: RecordRows) -> Mapping[str, Any]:
        if self.features is None:
            return {"records": kernel.gather(rows)}
        if is_pair(self.features):
            return self._columns_of(self.features, rows)
        return _Columns(self.features, rows, self._parse)

    def _parse(self, rows: RecordRows, name: str) -> Columns:
        """Parse all columns that the function has used so far, and this one."""
        assert self.features is not None
        # Two threads may lose a name; it is then noted at its next use.
        if name not in self._used:
            self._used = (*self._used, name)
        features = {used: self.features[used] for used in self._used}
        return self._columns_of(features, rows)

    def _columns_of(self, features: dict[str, Any], rows: RecordRows) -> Columns:
        limits = self.limits
        if limits.max_bytes is not None and len(rows) > 1:
            limits = limits._replace(max_bytes=limits.max_bytes // limits.at_once)
        parser = parser_of(features, pad=False, share=self.share, claims=Claims(limits))
        return parser.parse(rows, self.urls.__getitem__)


class _Columns(Mapping[str, Any]):
    """A mapping of columns that are parsed at their first use."""

    def __init__(
        self,
        features: Mapping[str, Any],
        rows: RecordRows,
        parse: Callable[[RecordRows, str], Columns],
    ) -> None:
        self._features = features
        self._rows = rows
        self._parse = parse
        self._parsed: Columns = {}
        self.fault: DataError | None = None
        """The error of a record that cannot be parsed."""

    def __getitem__(self, name: str) -> Any:
        if name not in self._features:
            raise KeyError(name)
        if name not in self._parsed:
            try:
                self._parsed = self._parse(self._rows, name) | self._parsed
            except DataError as error:
                self.fault = error
                raise
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)


@dataclass(eq=False)
class FilterStage:
    """A stage that takes one lane's spans from its source and has threads filter them.

    Args:
        source: The source of the records.
        submit: Gives a span to a thread to filter.
        patience: The number of extents in a row without a kept record after which the lane fails;
            ``None``: never, as the run ends by itself.
    """

    waits_for = "filter"

    source: Source
    submit: Callable[[RecordSpan], Future[RecordSpan]]
    patience: int | None = None
    _items: deque[Future[RecordSpan] | Coordinates | StreamrecError] = field(default_factory=deque)
    _fruitful: int | None = None

    @property
    def ended(self) -> bool:
        """True when no more records will come."""
        return self.source.ended and not self._items

    def pop(self) -> RecordSpan | Coordinates | None:
        """Return the next filtered records, or the coordinates after an epoch's end, if ready.

        Raises:
            StreamrecError: The error that ends the lane.
        """
        while True:
            item = self._items[0] if self._items else None
            if isinstance(item, Future) and item.done():
                return self._take_filtered(item)
            if isinstance(item, Coordinates):
                self._items.popleft()
                return item
            if isinstance(item, StreamrecError):
                raise item
            if not self._fill():
                return None

    def _fill(self) -> bool:
        """Give the next records to a thread; return whether there was anything to give."""
        ended = bool(self._items) and isinstance(self._items[-1], StreamrecError)
        if ended or len(self._items) >= MOST_WAITING:
            return False
        try:
            item = self.source.pop()
        except StreamrecError as error:
            self._items.append(error)  # the records being filtered come before it
            return True
        if item is not None:
            self._items.append(item if isinstance(item, Coordinates) else self.submit(item))
        return item is not None

    def _take_filtered(self, future: Future[RecordSpan]) -> RecordSpan:
        # Before the item is removed: an error stays in front, and is raised again by each further
        # call.
        span = future.result()
        self._items.popleft()
        number = span.extent.number
        if len(span) or self._fruitful is None:
            self._fruitful = number
        if self.patience is not None and number - self._fruitful >= self.patience:
            raise DataError(
                "the filter has kept no record of a lane in several passes over its shards, or its "
                "episodes gave no window, and the run has no end; check filter and window, or set "
                "epochs"
            )
        return span
