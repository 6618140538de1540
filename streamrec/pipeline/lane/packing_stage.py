"""The packing stage of a lane: threads parse, map and pack its records in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import DataError, StreamrecError
from streamrec.pipeline.lane.record_span import Segment
from streamrec.plan.order.coordinates import Coordinates
from streamrec.values.record_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from streamrec.formats.examples.packing import Packer, Packs
    from streamrec.values.columns import Indices
    from streamrec.values.record_rows import RecordRows

EXTENT, PART = (Coordinates._fields.index(name) for name in ("extent", "part"))

PIECE = 64 << 10
"""Bytes of records that are packed at a time. Their packs are several times as large, and every
lane holds some."""
NAMES = "\0shards", "\0records"
"""The columns that name the records of each pack: int64 ``[packs, places]``, -1 behind the last."""
MOST_WAITING = 2
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
        return ended or len(self._waiting) >= MOST_WAITING

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
