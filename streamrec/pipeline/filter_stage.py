"""The filter of a lane: its records are parsed and asked about in threads, and keep their order.

What is kept stays a reference to the record as it was read, so that everything behind the filter is
as it is without one. A feature that the function does not look at is not parsed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec import kernel
from streamrec.errors import DataError, StreamrecError
from streamrec.formats.descriptions import is_pair
from streamrec.formats.sequences import parser_of
from streamrec.pipeline.stages import Coordinates
from streamrec.types import Origin, RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.functions import Function
    from streamrec.pipeline.stages import Records
    from streamrec.types import Column

__all__ = ["Filter", "FilterStage"]

MOST_WAITING = 2
"""Spans of a lane that may be in the threads: one that is asked about, and the next."""

Columns: TypeAlias = "dict[str, Column]"


class Filter:
    """Asks the user's function about records; used from several threads at once.

    Args:
        function: The user's.
        features: The specs in their plain form, or ``None`` for raw records.
        urls: Of the shards, for errors.
    """

    def __init__(
        self, function: Function, features: dict[str, Any] | None, urls: Sequence[str]
    ) -> None:
        self._function = function
        self._features = features
        self._urls = urls
        self._single = features is not None and not is_pair(features)
        self._used: tuple[str, ...] = ()

    def apply(self, span: Records, allocate: Allocate) -> Records:
        """The records that are kept; where they are few, they are copied, and let go of the rest.

        Args:
            span: Some records.
            allocate: Memory for those that are copied.

        Raises:
            FunctionFailed: The function raised, or gave no mask.
            DataError: A record cannot be parsed.
        """
        rows = span.rows
        origin = Origin(rows.shards, rows.ordinals)
        mask = self._function.keep(self._columns(rows), origin, self._urls.__getitem__)
        kept = np.flatnonzero(mask)
        if len(kept) == len(rows):
            return span
        few = rows.take(kept)
        if few.nbytes < rows.nbytes // 2:
            column = kernel.gather(few, allocate)
            few = replace(RecordRows.from_column(column), shards=few.shards, ordinals=few.ordinals)
        return span.keep(kept, few)

    def _columns(self, rows: RecordRows) -> Mapping[str, Any]:
        if self._features is None:
            return {"records": kernel.gather(rows)}
        if not self._single:
            return parser_of(self._features, pad=False).parse(rows, self._urls.__getitem__)
        return _Columns(self._features, rows, self._parse)

    def _parse(self, rows: RecordRows, name: str) -> Columns:
        """All columns that the function has ever looked at, and this one."""
        assert self._features is not None
        if name not in self._used:
            self._used = (*self._used, name)
        features = {used: self._features[used] for used in self._used}
        return parser_of(features, pad=False).parse(rows, self._urls.__getitem__)


class _Columns(Mapping[str, Any]):
    """Columns that are parsed when they are looked at."""

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

    def __getitem__(self, name: str) -> Any:
        if name not in self._features:
            raise KeyError(name)
        if name not in self._parsed:
            self._parsed = self._parse(self._rows, name) | self._parsed
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)


class FilterStage:
    """What one lane has in the threads, and what comes behind it.

    Args:
        submit: Has a span filtered.
        patience: After how many extents in a row of which nothing is kept there is no hope;
            ``None``: the run ends by itself.
    """

    def __init__(
        self, submit: Callable[[Records], Future[Records]], patience: int | None = None
    ) -> None:
        self._submit = submit
        self._patience = patience
        self._items: deque[Future[Records] | Coordinates | StreamrecError] = deque()
        self._fruitful: int | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        """Whether nothing more should be put in now."""
        ended = bool(self._items) and isinstance(self._items[-1], StreamrecError)
        return ended or len(self._items) >= MOST_WAITING

    def put(self, item: Records | Coordinates | StreamrecError) -> None:
        """Records; where the lane goes on after an epoch; or why nothing follows."""
        if isinstance(item, Coordinates | StreamrecError):
            self._items.append(item)
        else:
            self._items.append(self._submit(item))

    def pop(self) -> Records | Coordinates | None:
        """What comes next, if it is there.

        Raises:
            StreamrecError: Nothing does, for this reason.
        """
        item = self._items[0] if self._items else None
        if isinstance(item, Future):
            return self._filtered(item) if item.done() else None
        if isinstance(item, StreamrecError):
            raise item
        if item is not None:
            self._items.popleft()
        return item

    def _filtered(self, future: Future[Records]) -> Records:
        span = future.result()
        self._items.popleft()
        number = span.extent.number
        if len(span) or self._fruitful is None:
            self._fruitful = number
        if self._patience is not None and number - self._fruitful >= self._patience:
            raise DataError(
                "the filter has kept no record of all that a lane reads, several times over, and "
                "the run has no end: check the function, or set epochs"
            )
        return span
