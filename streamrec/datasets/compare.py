"""The comparison of two datasets, as sequences of records or as multisets."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from streamrec.masking import masked
from streamrec.report.words import quantity
from streamrec.values.columns import BytesColumn, cut, digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from streamrec.datasets.shard_source import Progress, ShardSource
    from streamrec.pipeline.batch.batch import Batch

MOST_NAMED = 10
"""The most differences of a kind that are named."""
GROUPS = 1 << 16
"""Groups of records, by their hashes: a count and a sum of hashes is kept of each."""
MOST_HELD = 100_000
"""The most records, of groups that differ, whose hashes are held to find out which they are."""

Sums: TypeAlias = "npt.NDArray[np.uint64]"


@dataclass
class Comparison:
    """The differences between a dataset and the one that it is compared with."""

    records: int = 0
    """The records that were read of the dataset."""
    others: int = 0
    """Those that were read of the other one."""
    differences: list[str] = field(default_factory=list)
    """Sentences, the first ones; none if the datasets are equal."""


class _RecordPlace(NamedTuple):
    """The place of a record."""

    url: str
    number: int
    """The record's number in its shard."""

    @classmethod
    def of(cls, source: ShardSource, batch: Batch, row: int) -> _RecordPlace:
        """Return the place of a row of a batch."""
        return cls(source.urls[batch.origin.shards[row]], int(batch.origin.records[row]))

    def __str__(self) -> str:
        return f"record {self.number} of {masked(self.url)}"


class _RecordCursor:
    """A cursor that goes through a dataset's records some at a time."""

    def __init__(self, source: ShardSource, batches: Iterator[Batch]) -> None:
        self._source, self._batches = source, batches
        self._batch: Batch | None = next(batches, None)
        self._row = 0
        self.read = 0
        """The number of records read."""

    @property
    def ready(self) -> int:
        """The number of records that can be taken together; 0 at the end."""
        return 0 if self._batch is None else len(self._batch.records) - self._row

    def peek(self, count: int) -> BytesColumn:
        """Return the next records; no more than are ready."""
        assert self._batch is not None
        # The two datasets come in batches of other sizes, so each step takes what both have.
        column = cut(self._batch.records, self._row, self._row + count)
        assert isinstance(column, BytesColumn)
        return column

    def place(self, row: int = 0) -> _RecordPlace:
        """Return the place of the record so far ahead."""
        assert self._batch is not None
        return _RecordPlace.of(self._source, self._batch, self._row + row)

    def skip(self, count: int) -> None:
        """Go over records."""
        self._row += count
        self.read += count
        if not self.ready:
            self._batch, self._row = next(self._batches, None), 0

    def rest(self) -> int:
        """Go to the end, and return the number of records there."""
        before = self.read
        while self.ready:
            self.skip(self.ready)
        return self.read - before


def compare(
    source: ShardSource, other: ShardSource, progress: Progress | None = None
) -> Comparison:
    """Compare two datasets record by record; the tenth difference ends it.

    Raises:
        StreamrecError: A shard cannot be read, or is damaged.
    """
    with (
        closing(source.batches(what="comparing", progress=progress)) as ours,
        closing(other.batches()) as theirs,
    ):
        one, two = _RecordCursor(source, ours), _RecordCursor(other, theirs)
        differences = _find_differences(one, two)
        return Comparison(one.read, two.read, differences)


def _find_differences(one: _RecordCursor, two: _RecordCursor) -> list[str]:
    differences: list[str] = []
    while (count := min(one.ready, two.ready)) and len(differences) < MOST_NAMED:
        rows = islice(_different(one.peek(count), two.peek(count)), MOST_NAMED - len(differences))
        differences += [f"{one.place(row)} differs from {two.place(row)}" for row in rows]
        one.skip(count)
        two.skip(count)
    if len(differences) == MOST_NAMED:
        return [*differences, "the comparison ended there"]
    return [*differences, *_tail("extra", one), *_tail("missing", two)]


def _tail(what: str, cursor: _RecordCursor) -> list[str]:
    """Describe the records at the end of the longer dataset."""
    if not cursor.ready:
        return []
    first = cursor.place()
    records = quantity(cursor.rest(), "record is", "records are")
    return [f"{records} {what} at the end, from {first} on"]


def _different(one: BytesColumn, two: BytesColumn) -> Iterator[int]:
    """Yield the rows in which two columns of as many rows differ."""
    begins = one.offsets[0], two.offsets[0]
    # Whole columns first: equal datasets need no look at single records.
    if np.array_equal(one.offsets - begins[0], two.offsets - begins[1]) and np.array_equal(
        one.values[begins[0] : one.offsets[-1]], two.values[begins[1] : two.offsets[-1]]
    ):
        return
    places = zip(pairwise(one.offsets.tolist()), pairwise(two.offsets.tolist()), strict=True)
    for row, ((a, b), (c, d)) in enumerate(places):
        if one.values[a:b].tobytes() != two.values[c:d].tobytes():
            yield row


def compare_in_any_order(
    source: ShardSource, other: ShardSource, progress: Progress | None = None
) -> Comparison:
    """Compare the records of two datasets by their hashes, whatever order they are in.

    Reads both once, and again to name what differs. Memory is bounded: where very many records
    differ, some are named.

    Raises:
        StreamrecError: A shard cannot be read, or is damaged.
    """
    ours, theirs = (
        _sums(one.batches(what="hashing", progress=progress)) for one in (source, other)
    )
    comparison = Comparison(int(ours[:, 0].sum()), int(theirs[:, 0].sum()))
    groups = np.flatnonzero((ours != theirs).any(axis=1))
    if len(groups):
        totals = np.cumsum((ours + theirs)[groups, 0])
        # Groups in their order, as long as the records to hold stay few.
        few = groups[: max(1, int(np.searchsorted(totals, MOST_HELD, "right")))]
        least = "" if len(few) == len(groups) else "at least "
        comparison.differences = _name_differences(source, other, few, least, progress)
    return comparison


def _sums(batches: Iterable[Batch]) -> Sums:
    """Return uint64 ``[GROUPS, 3]``: the records of each group, and the sum of their hashes."""
    # Sums of hashes do not depend on the order, and equal multisets have equal ones.
    sums = np.zeros((GROUPS, 3), np.uint64)
    for batch in batches:
        hashes = digests(batch.records, 2)
        counted = np.column_stack([np.ones(len(hashes), np.uint64), hashes])
        # add.at and not `+=`, which would count one record for each group. Sums of 64 bits may wrap
        # around, in both datasets alike.
        np.add.at(sums, _groups(hashes), counted)
    return sums


def _groups(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    return (hashes[:, 0] % np.uint64(GROUPS)).astype(np.intp)


def _name_differences(
    source: ShardSource,
    other: ShardSource,
    groups: npt.NDArray[np.intp],
    least: str,
    progress: Progress | None,
) -> list[str]:
    """Name the records of some groups that one of the datasets has and the other one lacks."""
    ours, theirs = (_hold(one, groups, progress) for one in (source, other))
    lines = []
    for what, has, lacks in (("missing", theirs, ours), ("extra", ours, theirs)):
        # A difference of counters keeps positive counts alone: records that one has more often.
        if rest := has.counts - lacks.counts:
            lines.append(f"{least}{quantity(rest.total(), 'record is', 'records are')} {what}")
            places = chain(*(islice(has.places[key], count) for key, count in rest.items()))
            lines += [f"{place} is {what}" for place in islice(places, MOST_NAMED)]
    return lines


@dataclass
class _HeldRecords:
    """The records of some groups, by their hashes."""

    counts: Counter[bytes] = field(default_factory=Counter)
    places: dict[bytes, list[_RecordPlace]] = field(default_factory=dict)
    """The first places of each record."""


def _hold(
    source: ShardSource, groups: npt.NDArray[np.intp], progress: Progress | None
) -> _HeldRecords:
    is_wanted = np.zeros(GROUPS, np.bool_)
    is_wanted[groups] = True
    records = _HeldRecords()
    for batch in source.batches(what="searching", progress=progress):
        hashes = digests(batch.records, 2)
        for row in np.flatnonzero(is_wanted[_groups(hashes)]).tolist():
            key = hashes[row].tobytes()
            records.counts[key] += 1
            places = records.places.setdefault(key, [])
            # A record may be there a million times.
            if len(places) < MOST_NAMED:
                places.append(_RecordPlace.of(source, batch, row))
    return records
