"""Packing: sequences of different lengths are put side by side into packs of one length.

A pack is a row of values with two rows beside it: for each value the number of its sequence, from 1
(0: padding), and its place in that sequence's piece, from 0. So attention can be kept within a
sequence, and positions counted from its beginning.

The packs depend on the sequences' order alone. Packing may begin anew at the first sequence of any
group (or, where sequences are split, at any value), and then makes the same packs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec.errors import ConfigError, MalformedPosition
from streamrec.values.columns import Ragged, Sparse, cut

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from streamrec.config import Pack
    from streamrec.values.columns import Indices


class Packs(NamedTuple):
    """Packs, and for each of them the place from which packing resumes after it."""

    columns: dict[str, npt.NDArray[Any]]
    """``[packs, length]``: a feature's values, ``<name>_segment_ids`` and ``<name>_positions``."""
    first: Indices
    """int64 ``[packs]``: the number of each pack's first sequence."""
    next: Indices
    """int64 ``[packs]``: the number of the sequence with which to resume."""
    part: Indices
    """int64 ``[packs]``: the number of packs to skip after resuming there or, where sequences are
    split, of values."""
    pieces: Indices
    """int64 ``[2, pieces]``: the pack of each piece of a sequence, and the sequence's number."""

    def __len__(self) -> int:
        return len(self.first)


class Sequences(NamedTuple):
    """Documents, each with one sequence for every feature."""

    values: dict[str, npt.NDArray[Any]]
    """All sequences' values end to end, by feature."""
    splits: Indices
    """int64 ``[features, documents + 1]``: the bounds of the sequences in ``values``."""

    @classmethod
    def of(cls, columns: Mapping[str, Any], names: list[str]) -> Sequences:
        """Take the sequences of the named columns.

        Raises:
            ConfigError: A column is missing, or holds no sequences of numbers.
        """
        pairs = [_sequence(name, columns) for name in names]
        return cls(
            {name: values for name, (values, _) in zip(names, pairs, strict=True)},
            np.stack([splits for _, splits in pairs]),
        )

    def __len__(self) -> int:
        return int(self.splits.shape[1]) - 1

    @property
    def lengths(self) -> Indices:
        """The sequences' lengths: int64 ``[documents, features]``."""
        return np.diff(self.splits).T

    def after(self, first: int) -> Sequences:
        """Copy the documents from ``first`` on."""
        begins = self.splits[:, first]
        values = {
            # A view would keep the documents that are packed already in memory.
            name: array[begin:].copy()
            for (name, array), begin in zip(self.values.items(), begins.tolist(), strict=True)
        }
        return Sequences(values, self.splits[:, first:] - begins[:, None])

    def join(self, more: Sequences) -> Sequences:
        """Return these documents with more after them."""
        values = {
            name: np.concatenate([array, more.values[name]]) for name, array in self.values.items()
        }
        splits = more.splits[:, 1:] + self.splits[:, -1:]
        return Sequences(values, np.concatenate([self.splits, splits], axis=1))


class Pieces(NamedTuple):
    """The pieces of documents in packs, in the order of packs and of places in them."""

    pack: Indices
    """int64 ``[pieces]``: the number of each piece's pack."""
    document: Indices
    """int64 ``[pieces]``: the number of its document."""
    segment: Indices
    """int64 ``[pieces]``: its number in its pack, from 1."""
    start: Indices
    """int64 ``[pieces, features]``: the place of its first value in the sequence."""
    counts: Indices
    """int64 ``[pieces, features]``: the number of its values."""
    place: Indices
    """int64 ``[pieces, features]``: the place of its first value in the pack."""


class PackPlan(NamedTuple):
    """The packs to make of the documents at hand, and the documents that wait for others."""

    pieces: Pieces
    next: Indices
    """As in :class:`Packs`; so is ``part``."""
    part: Indices
    held: int
    """The number of the first document that waits."""
    used: int
    """The number of that document's values that are in packs already."""


class Packer:
    """A packer of documents as they come.

    Args:
        pack: The settings.
        part: The packs to skip or, where sequences are split, the first document's values to skip,
            since they were delivered before.

    Raises:
        MalformedPosition: ``part`` is more than there can be.
    """

    def __init__(self, pack: Pack, part: int = 0) -> None:
        self.dropped_documents = 0
        """The number of documents left out because they are too long."""
        self.dropped_values = 0
        """The number of values of these, and of those cut off."""
        if part >= pack.bins and not pack.split:
            raise MalformedPosition(
                f"the state names {part} packs of a group of {pack.bins}; load a state that "
                "streamrec saved"
            )
        self._pack = pack
        self._names: list[str] | None = None
        self._held: Sequences | None = None
        self.first_held = 0
        """The number of the first document that waits, or of the next to come."""
        self._fit: FirstFit | None = None
        self._used = part if pack.split else 0
        self._skip = 0 if pack.split else part

    def add(self, columns: Mapping[str, Any]) -> Packs:
        """Take documents, and return the packs that are complete.

        Raises:
            ConfigError: The columns cannot be packed.
        """
        if self._names is None:
            self._names = names_of(self._pack, columns)
        more = Sequences.of(columns, self._names)
        held = more if self._held is None else self._held.join(more)
        return self._pack_held(held, at_end=False)

    def flush(self) -> Packs | None:
        """Return the last packs when no document follows; ``None`` where no document waits."""
        return self._pack_held(self._held, at_end=True) if self._held is not None else None

    def _pack_held(self, held: Sequences, *, at_end: bool) -> Packs:
        lengths = held.lengths
        limits = limits_of(self._pack, list(held.values))
        if self._pack.split:
            self._check_equal(lengths, list(held.values))
            if self._used > lengths[:1, 0].sum():
                raise MalformedPosition(
                    "the state names more values of a record than it holds; load a state that "
                    "streamrec saved from these shards"
                )
            plan = split(lengths[:, 0], limits, self._used, at_end=at_end)
        else:
            self._fit = self._fit or FirstFit(self._pack, limits)
            plan = self._fit.plan(lengths, at_end=at_end)
            self._count(lengths[: plan.held], limits)
        packs = self._make_packs(held, plan, limits)
        self._held = None if plan.held == len(held) else held.after(plan.held)
        self.first_held += plan.held
        self._used = plan.used
        return packs

    def _make_packs(self, held: Sequences, plan: PackPlan, limits: Indices) -> Packs:
        skip = min(self._skip, len(plan.next))
        self._skip -= skip
        columns = assemble(held, plan.pieces, len(plan.next), limits, self._pack.padding)
        # Pieces stand in the order of packs, so this finds each pack's first.
        _, at = np.unique(plan.pieces.pack, return_index=True)
        pieces = np.stack([plan.pieces.pack - skip, plan.pieces.document + self.first_held])
        return Packs(
            {name: column[skip:] for name, column in columns.items()},
            (plan.pieces.document[at] + self.first_held)[skip:],
            (plan.next + self.first_held)[skip:],
            plan.part[skip:],
            pieces[:, pieces[0] >= 0],
        )

    def _count(self, lengths: Indices, limits: Indices) -> None:
        over = lengths > limits
        if self._pack.overlong == "drop":
            left_out = over.any(axis=1)
            self.dropped_documents += int(left_out.sum())
            self.dropped_values += int(lengths[left_out].sum())
        else:
            self.dropped_values += int((lengths - limits)[over].sum())

    def _check_equal(self, lengths: Indices, names: list[str]) -> None:
        if (lengths != lengths[:, :1]).any():
            raise ConfigError(
                f"pack splits documents, so their features ({', '.join(names)}) must have one "
                "length in every record; set split to False"
            )


def names_of(pack: Pack, columns: Mapping[str, Any]) -> list[str]:
    """Return the names of the packed features, sorted."""
    # Sorted, since packs must not depend on the order of a mapping.
    return sorted(pack.length if isinstance(pack.length, dict) else columns)


def limits_of(pack: Pack, names: list[str]) -> Indices:
    """Return the packs' lengths, as int64 ``[features]``."""
    length = pack.length
    return np.array([length[n] if isinstance(length, dict) else length for n in names], np.int64)


def _sequence(name: str, columns: Mapping[str, Any]) -> tuple[npt.NDArray[Any], Indices]:
    """Return a column's values end to end, and the rows' bounds in them."""
    column = columns.get(name)
    if isinstance(column, Sparse) and len(column.dense_shape) == 2:
        rows = np.arange(len(column) + 1)
        column = Ragged(column.values, np.searchsorted(column.indices[:, 0], rows))
    if isinstance(column, np.ndarray) and column.ndim == 2:
        splits = np.arange(len(column) + 1, dtype=np.int64) * column.shape[1]
        column = Ragged(column.reshape(-1), splits)
    if isinstance(column, Ragged):
        first, last = int(column.row_splits[0]), int(column.row_splits[-1])
        values = cut(column.values, first, last)
        if isinstance(values, np.ndarray) and values.ndim == 1:
            return values, column.row_splits.astype(np.int64, copy=False) - first
    raise ConfigError(
        f"pack takes sequences of numbers, but {name!r} is "
        f"{'not a column' if column is None else 'not a sequence of them'}; name the features to "
        'pack, as in sr.Pack({"tokens": 2048}), or let map make it a sequence'
    )


def split(lengths: Indices, limits: Indices, used: int, *, at_end: bool) -> PackPlan:
    """Plan packs that are filled to the end; a document that does not fit goes on in the next one.

    Args:
        lengths: int64 ``[documents]``.
        limits: int64 ``[features]``: the packs' lengths, all the same.
        used: The number of the first document's values that are in packs already.
        at_end: True where no document follows, so that the last pack may be short.
    """
    length, documents = int(limits[0]), len(lengths)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    total = int(begins[-1])
    packs = max(0, (total - used + (length - 1 if at_end else 0)) // length)
    bounds = np.minimum(used + length * np.arange(packs + 1), total)
    inside = begins[(begins > used) & (begins < bounds[-1])]
    # A piece ends with its pack or with its document.
    edges = np.unique(np.concatenate([bounds, inside]))
    starts, counts = edges[:-1], np.diff(edges)
    document = np.searchsorted(begins, starts, "right") - 1
    pack = (starts - used) // length
    segment = np.arange(len(pack)) - np.searchsorted(pack, pack) + 1
    wide = np.ones(len(limits), np.int64)
    pieces = Pieces(
        pack,
        document,
        segment,
        np.outer(starts - begins[document], wide),
        np.outer(counts, wide),
        np.outer((starts - used) % length, wide),
    )
    # A pack that ends with a document resumes at the next document, even if that is empty. So the
    # place does not depend on whether the next document has come yet.
    after = np.searchsorted(begins, bounds[1:], "left")
    after -= begins[after] > bounds[1:]
    part = bounds[1:] - begins[after]
    if at_end:
        # Nothing is left to go on with, not even empty documents at the end.
        after[-1:] = documents
        return PackPlan(pieces, after, part, documents, 0)
    held = int(after[-1]) if packs else 0
    return PackPlan(pieces, after, part, held, int(part[-1]) if packs else used)


class FirstFit:
    """A planner that puts each document into the first open pack with room for it.

    Where none has room and ``pack.bins`` packs are open, these are complete: they are a group.

    Args:
        pack: The settings.
        limits: int64 ``[features]``: the packs' lengths.
    """

    def __init__(self, pack: Pack, limits: Indices) -> None:
        self._pack = pack
        self._limits = limits
        self._room: list[int] = limits.tolist()
        self._rows: list[_Row] = []
        self._placed = 0
        self._begin_group()

    def _begin_group(self) -> None:
        self._free: list[list[int]] = [[] for _ in self._limits]  # of each feature, in each pack
        self._documents: list[int] = []  # how many are in each pack

    def plan(self, lengths: Indices, *, at_end: bool) -> PackPlan:
        """Place the documents that came since the last plan.

        Args:
            lengths: int64 ``[documents, features]``: of the waiting documents, and of new ones.
            at_end: True where no document follows, so that the last group is complete.
        """
        # Longer ones are cut off here; those to be dropped are never placed.
        counts = np.minimum(lengths, self._limits)
        rows, after, first = self._rows, [], 0
        for number in self._places(lengths):
            need = counts[number].tolist()
            bin_ = self._room_for(need)
            if bin_ is None and len(self._documents) == self._pack.bins:
                after += self._close(first, number)
            if not self._documents:
                first, bin_ = number, None
            bin_, segment, place = self._put(need, bin_)
            rows.append((len(after) + bin_, segment, number, place))
        if at_end and self._documents:
            after += self._close(first, len(lengths))
        if not self._documents:
            first = len(lengths)
        base = len(after)
        self._rows = [(b - base, s, n - first, place) for b, s, n, place in rows if b >= base]
        self._placed = len(lengths) - first
        return _plan([row for row in rows if row[0] < base], after, counts, first)

    def _places(self, lengths: Indices) -> list[int]:
        """Return the numbers of the new documents that are to be placed."""
        new = lengths[self._placed :]
        leave_out = (new == 0).all(axis=1)
        if self._pack.overlong == "drop":
            leave_out |= (new > self._limits).any(axis=1)
        places: list[int] = (np.flatnonzero(~leave_out) + self._placed).tolist()
        return places

    def _close(self, first: int, following: int) -> list[tuple[int, int]]:
        """End the group; return, for each of its packs, the place from which packing resumes.

        A place is a document, and the number of packs to skip from there.
        """
        packs = len(self._documents)
        self._begin_group()
        return [*((first, k) for k in range(1, packs)), (following, 0)]

    def _room_for(self, need: list[int]) -> int | None:
        """Return the number of the first pack with room; ``None`` where none has."""
        if len(need) == 1:  # the usual case, which is many times faster this way
            wanted = need[0]
            return next((n for n, free in enumerate(self._free[0]) if free >= wanted), None)
        for number, free in enumerate(zip(*self._free, strict=True)):
            if all(have >= wanted for have, wanted in zip(free, need, strict=True)):
                return number
        return None

    def _put(self, need: list[int], number: int | None) -> tuple[int, int, list[int]]:
        """Add a document; return its pack, its number in the pack from 1, and its places there."""
        if number is None:
            number = len(self._documents)
            self._documents.append(0)
            for free, limit in zip(self._free, self._room, strict=True):
                free.append(limit)
        self._documents[number] += 1
        free_here = [free[number] for free in self._free]
        is_full = self._documents[number] == self._pack.documents
        for free, wanted in zip(self._free, need, strict=True):
            # With -1 there is no room for an empty document, either.
            free[number] = -1 if is_full else free[number] - wanted
        places = [n - free for n, free in zip(self._room, free_here, strict=True)]
        return number, self._documents[number], places


_Row: TypeAlias = tuple[int, int, int, list[int]]
"""A placed document: its pack, its number in the pack, its own number, and its places in the pack.
"""


def _plan(rows: list[_Row], after: list[tuple[int, int]], counts: Indices, held: int) -> PackPlan:
    rows = sorted(rows, key=lambda row: row[:2])
    table = np.array([row[:3] for row in rows], np.int64).reshape(-1, 3)
    place = np.array([row[3] for row in rows], np.int64).reshape(-1, counts.shape[1])
    pack, segment, document = table.T
    taken = counts[document]
    pieces = Pieces(pack, document, segment, np.zeros_like(taken), taken, place)
    points = np.array(after, np.int64).reshape(-1, 2)
    return PackPlan(pieces, points[:, 0], points[:, 1], held, 0)


def assemble(
    sequences: Sequences, pieces: Pieces, packs: int, limits: Indices, padding: int
) -> dict[str, npt.NDArray[Any]]:
    """Make the columns of the packs."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for f, (name, values) in enumerate(sequences.values.items()):
        length, counts = int(limits[f]), pieces.counts[:, f]
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        begin = sequences.splits[f, pieces.document] + pieces.start[:, f]
        source = np.repeat(begin, counts) + inside
        target = np.repeat(pieces.pack * length + pieces.place[:, f], counts) + inside
        packed = np.full(packs * length, padding, values.dtype)
        packed[target] = values[source]
        segments, positions = np.zeros((2, packs * length), np.int32)
        segments[target] = np.repeat(pieces.segment, counts)
        positions[target] = inside
        columns[name] = packed.reshape(packs, length)
        columns[f"{name}_segment_ids"] = segments.reshape(packs, length)
        columns[f"{name}_positions"] = positions.reshape(packs, length)
    return columns
