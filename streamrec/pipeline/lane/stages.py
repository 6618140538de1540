"""The stages of a lane in which threads filter its records, or parse, map and pack them, in order.

Records that the filter keeps stay references to the bytes that were read, so later stages work as
without a filter. Features that the function does not use are not parsed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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
from streamrec.formats.examples.renaming import AS_STORED
from streamrec.pipeline.batch.origin import Origin
from streamrec.pipeline.lane.record_span import Segment
from streamrec.plan.order.coordinates import Coordinates
from streamrec.values.record_rows import RecordRows, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from streamrec.formats.examples.needs import Share
    from streamrec.formats.examples.packing import Packer, Packs
    from streamrec.formats.examples.renaming import Renames
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
        renames: The names that features have in the records of each shard.
    """

    function: Function
    features: dict[str, Any] | None
    urls: Sequence[str] = field(repr=False)
    limits: DecodeLimits = UNLIMITED
    share: Share = one_by_one
    renames: Renames = AS_STORED
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
        parser = parser_of(
            features, pad=False, share=self.share, claims=Claims(limits), renames=self.renames
        )
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


EXTENT, PART = (Coordinates._fields.index(name) for name in ("extent", "part"))

PIECE = 64 << 10
"""Bytes of records that are packed at a time. Their packs are several times as large, and every
lane holds some."""
NAMES = "\0shards", "\0records"
"""The columns that name the records of each pack: int64 ``[packs, places]``, -1 behind the last."""
MOST_WAITING_SEGMENTS = 2
"""The number of waiting segments at which the lane reads no further."""


class _Documents(NamedTuple):
    """Consecutive documents that were given to the packer, by their numbers."""

    number: int
    size: int
    end: Callable[[int], Sequence[int] | Indices]
    """Returns the lane's coordinates after a document; without documents, those it goes on at."""
    shards: Any
    ordinals: Any


@dataclass(eq=False, repr=False)
class Packing:
    """The packing stage of one lane.

    Args:
        packer: Packs the documents.
        columns: Parses and maps records of an epoch; called in threads.
        submit: Runs a function in a thread, and notifies the lane when it is done.
        start: The coordinates that the lane begins at.
        patience: The number of extents in a row without a pack after which the lane fails;
            ``None``: never, as the run ends by itself.
        places: The most records of a pack, to name each of them; 0: they are not named.
    """

    packer: Packer
    columns: Callable[[RecordRows, int], Mapping[str, Any]]
    submit: Callable[[Callable[[], Packs | None]], Future[Packs | None]]
    start: Coordinates
    patience: int | None = None
    places: int = 0
    _waiting: deque[Segment | Coordinates | StreamrecError] = field(default_factory=deque)
    _first: int = 0  # the first segment's first row that is not packed yet
    _job: Future[Packs | None] | None = None
    _epoch: int = 0
    _number: int = 0

    def __post_init__(self) -> None:
        self._runs = [_no_documents(0, self.start._replace(part=0))]
        self._fruitful = self.start.extent

    def __len__(self) -> int:
        return len(self._waiting) + (self._job is not None)

    @property
    def full(self) -> bool:
        """True while nothing more should be put in."""
        ended = bool(self._waiting) and isinstance(self._waiting[-1], StreamrecError)
        return ended or len(self._waiting) >= MOST_WAITING_SEGMENTS

    def put(self, item: Segment | Coordinates | StreamrecError) -> None:
        """Append records, the coordinates after an epoch's end, or the error that ends the lane."""
        self._waiting.append(item)

    def pop(self) -> Segment | None:
        """Return the next packs, if they are ready.

        Raises:
            StreamrecError: The error that ends the lane.
        """
        while True:
            if self._job is None and not self._start():
                return None
            assert self._job is not None
            if not self._job.done():
                return None
            packs = self._job.result()
            self._job = None
            if packs:
                return self._segment(packs)

    def _start(self) -> bool:
        """Have a thread pack the next records; return whether there are any."""
        if not self._waiting:
            return False
        item = self._waiting[0]
        if isinstance(item, StreamrecError):
            raise item
        if isinstance(item, Coordinates):
            self._waiting.popleft()
            # Packs end with the epoch, so that none has documents of two.
            self._job = self.submit(self.packer.flush)
            self._runs.append(_no_documents(self._number, item))
            return True
        # One job at a time: the packer goes on from the documents before.
        rows, epoch = self._next_rows(item), item.epoch
        self._job = self.submit(lambda: self.packer.add(self.columns(rows, epoch)))
        return True

    def _next_rows(self, segment: Segment) -> RecordRows:
        rows, first = segment.rows, self._first
        within = np.searchsorted(np.cumsum(rows.lengths[first:]), PIECE, "right")
        # One at least, even if it is larger than a piece.
        last = min(len(rows), first + max(1, int(within)))
        part = rows.part(first, last)
        run = _Documents(
            number=self._number,
            size=last - first,
            end=lambda k: segment.end(first + k),
            shards=part.shards,
            ordinals=part.ordinals,
        )
        self._note(run)
        self._epoch = segment.epoch
        self._check_hope(int(segment.end(last - 1)[EXTENT]))
        if last == len(rows):
            self._waiting.popleft()
            last = 0
        self._first = last
        return part

    def _note(self, run: _Documents) -> None:
        """Remember the place of these documents, and forget those that no later pack needs."""
        first = self.packer.first_held
        # A document stays noted while a pack that is not full holds it: a state must lead back to
        # it.
        self._runs = [known for known in self._runs if known.number + known.size >= first]
        self._runs.append(run)
        self._number += run.size

    def _check_hope(self, extent: int) -> None:
        if self.patience is not None and extent - self._fruitful >= self.patience:
            raise DataError(
                "a lane gave no pack in several passes over its shards, and the run has "
                "no end; check the features that are packed, or set epochs"
            )

    def _segment(self, packs: Packs) -> Segment:
        ends = np.array([self._at(number) for number in packs.next.tolist()], np.int64)
        ends[:, PART] = packs.part
        origins = [self._origin(number) for number in packs.first.tolist()]
        shards, ordinals = np.ascontiguousarray(np.array(origins, np.int64).T)
        self._fruitful = ends.item(-1, EXTENT)
        columns = {**packs.columns, **self._names(packs)} if self.places else packs.columns
        rows = rows_of(columns, shards.astype(np.int32), ordinals)
        return Segment(rows, self._epoch, ends.__getitem__)

    def _names(self, packs: Packs) -> dict[str, Any]:
        """Return the columns that name the records of each pack."""
        named = np.full((2, len(packs), self.places), -1, np.int64)
        pack, documents = packs.pieces
        # Pieces stand in the order of packs.
        place = np.arange(len(pack)) - np.searchsorted(pack, pack)
        origins = [self._origin(number) for number in documents.tolist()]
        named[:, pack, place] = np.array(origins, np.int64).T
        return dict(zip(NAMES, named, strict=True))

    def _at(self, number: int) -> Sequence[int] | Indices:
        """Return the coordinates of a document, which begins after the one before it."""
        run = next(
            run
            for run in reversed(self._runs)
            if run.number < number <= run.number + run.size
            or (not run.size and run.number == number)
        )
        at: Sequence[int] | Indices = run.end(number - run.number - 1)
        return at

    def _origin(self, number: int) -> tuple[int, int]:
        run = next(r for r in reversed(self._runs) if r.number <= number < r.number + r.size)
        return int(run.shards[number - run.number]), int(run.ordinals[number - run.number])


def _no_documents(number: int, place: Coordinates) -> _Documents:
    nothing = np.empty(0, np.int64)
    return _Documents(
        number=number, size=0, end=lambda _: place.numbers, shards=nothing, ordinals=nothing
    )
