"""Blocks and rows of records: references into buffers of encoded records, or of columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from streamrec.values.aligned import empty
from streamrec.values.columns import BytesColumn, rising

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from streamrec.values.columns import ByteArray, Bytes, Indices


class Chunks(NamedTuple):
    """All chunks of a dataset, shard after shard: int64 ``[chunks]`` each."""

    shard: npt.NDArray[np.int64]
    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    first_record: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]


class RecordLengths(NamedTuple):
    """The lengths of records, in their order."""

    lengths: npt.NDArray[np.uint32]
    """uint32 ``[records]``: the values of a feature that a record has; of bytes, their bytes."""
    sizes: npt.NDArray[np.uint32]
    """uint32 ``[records]``: the bytes of a record with its frame."""

    @classmethod
    def joined(cls, parts: Sequence[RecordLengths]) -> RecordLengths:
        """Join those of several shards."""
        nothing = np.empty(0, np.uint32)
        return cls(
            np.concatenate([nothing, *(part.lengths for part in parts)]),
            np.concatenate([nothing, *(part.sizes for part in parts)]),
        )


Columns: TypeAlias = "dict[str, npt.NDArray[Any]]"


def rows_of(columns: Columns, shards: npt.NDArray[np.int32], ordinals: Indices) -> RecordRows:
    """Refer to all rows of some columns.

    Args:
        columns: Arrays ``[rows, ...]``; all that are ever joined have the same names, dtypes and
            shapes.
        shards: int32 ``[rows]``: the shard that each row begins in.
        ordinals: int64 ``[rows]``: the number in the shard of the record that each row begins with.
    """
    n, buffer = len(shards), cast("ByteArray", columns)
    # Every row has the same size, as the shapes are fixed.
    lengths = np.full(n, sum(column[:1].nbytes for column in columns.values()))
    return RecordRows(
        buffers=(buffer,),
        buffer_index=np.zeros(n, np.int32),
        offsets=np.arange(n),
        lengths=lengths,
        shards=shards,
        ordinals=ordinals,
    )


def are_columns(rows: RecordRows) -> bool:
    """Return whether rows are those of columns; without any buffer they are records."""
    buffers: tuple[object, ...] = rows.buffers
    return isinstance(next(iter(buffers), None), dict)


def columns_of(rows: RecordRows) -> Columns:
    """Copy rows of columns into columns of their own."""
    buffers = cast("tuple[Columns, ...]", rows.buffers)
    # Found once for all columns, since these have the same rows.
    pieces = [np.flatnonzero(rows.buffer_index == k) for k in range(len(buffers))]
    columns: Columns = {}
    for name, like in buffers[0].items():
        column = empty((len(rows), *like.shape[1:]), like.dtype)
        for buffer, places in zip(buffers, pieces, strict=True):
            column[places] = buffer[name][rows.offsets[places]]
        columns[name] = column
    return columns


@dataclass(frozen=True, slots=True, eq=False)
class RecordBlock:
    """Consecutive records of one shard in one buffer: the unit in which records travel.

    The arrays that view ``buffer`` keep it, and the pooled memory behind it, alive; when the last
    of them is gone the memory goes back to its pool.
    """

    buffer: ByteArray
    """uint8, one dimension; holds at least the frames of all records of the block."""
    offsets: Indices
    """int64 ``[n]``: the byte in ``buffer`` at which each record's payload begins."""
    lengths: Indices
    """int64 ``[n]``: the payloads' sizes in bytes."""
    shard: int
    """The shard's number in the dataset."""
    first_ordinal: int
    """The number of the block's first record in its shard."""
    base: int
    """The offset in the shard, in bytes, of ``buffer[0]``."""
    lost: bool = False
    """True for damaged records, of which only the numbers are kept; ``buffer`` is then empty."""

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class RecordRows:
    """Records in the order in which they are delivered, as references into buffers.

    The arrays are contiguous.
    """

    buffers: tuple[ByteArray, ...]
    buffer_index: npt.NDArray[np.int32]
    """int32 ``[n]``: the buffer of each row."""
    offsets: Indices
    """int64 ``[n]``: the byte at which each payload begins in its buffer."""
    lengths: Indices
    """int64 ``[n]``: the payloads' sizes in bytes."""
    shards: npt.NDArray[np.int32]
    """int32 ``[n]``: the shard that each row came from."""
    ordinals: Indices
    """int64 ``[n]``: the number of each row in its shard, or ``~number`` where a record is lost."""
    passes: Indices | None = None
    """int64 ``[n]``, in a mix: how often its component was read before; else ``None``."""
    steps: Indices | None = None
    """int64 ``[n]``, of windows of episodes: the first step, below 0 before it; else ``None``."""

    @classmethod
    def of(cls, records: Sequence[Bytes]) -> RecordRows:
        """Copy records into one buffer, and number them from 0."""
        return cls.from_column(BytesColumn.of(records))

    @classmethod
    def from_column(cls, column: BytesColumn) -> RecordRows:
        """Refer to a column of serialized records, numbered from 0."""
        n = len(column.offsets) - 1
        return cls(
            buffers=(column.values,),
            buffer_index=np.zeros(n, np.int32),
            offsets=column.offsets[:-1],
            lengths=np.diff(column.offsets),
            shards=np.zeros(n, np.int32),
            ordinals=np.arange(n, dtype=np.int64),
        )

    @classmethod
    def from_block(cls, block: RecordBlock, first: int = 0, last: int | None = None) -> RecordRows:
        """Refer to the records ``first … last-1`` of a block, in their order."""
        lengths, offsets = block.lengths[first:last], block.offsets[first:last]
        n = len(lengths)
        ordinals = rising(block.first_ordinal + first, n)
        if block.lost:
            # The complement marks a lost record and keeps its number; 0 is one, too, so a sign
            # would not do.
            lengths, offsets, ordinals = np.zeros_like(lengths), np.zeros_like(offsets), ~ordinals
        shards = np.full(n, block.shard, np.int32)
        return cls(
            buffers=(block.buffer,),
            buffer_index=np.zeros(n, np.int32),
            offsets=offsets,
            lengths=lengths,
            shards=shards,
            ordinals=ordinals,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[RecordRows]) -> RecordRows:
        """Join the rows of all parts, in that order."""
        # Spares a copy of all arrays.
        if len(parts) == 1:
            return parts[0]
        counts = np.fromiter((len(part.buffers) for part in parts), np.int32, len(parts))
        first_buffer = (np.cumsum(counts) - counts).tolist()
        # All buffers stand in one tuple, in which each part's own begin at another place.
        indices = [part.buffer_index + k for part, k in zip(parts, first_buffer, strict=True)]
        return cls(
            buffers=tuple(buffer for part in parts for buffer in part.buffers),
            buffer_index=np.concatenate(indices or [np.empty(0, np.int32)]).astype(
                np.int32, copy=False
            ),
            offsets=np.concatenate([part.offsets for part in parts] or [np.empty(0, np.int64)]),
            lengths=np.concatenate([part.lengths for part in parts] or [np.empty(0, np.int64)]),
            shards=np.concatenate([part.shards for part in parts] or [np.empty(0, np.int32)]),
            ordinals=np.concatenate([part.ordinals for part in parts] or [np.empty(0, np.int64)]),
            passes=_joined([part.passes for part in parts]),
            steps=_joined([part.steps for part in parts]),
        )

    def part(self, first: int, last: int | None) -> RecordRows:
        """Return the rows ``first … last-1`` as views; the result holds all buffers."""
        return self.pick(slice(first, last))

    def lose(self, rows: Indices) -> RecordRows:
        """Return all rows, some of which are lost: only their numbers are kept."""
        arrays = self.offsets.copy(), self.lengths.copy(), self.ordinals.copy()
        offsets, lengths, ordinals = arrays
        offsets[rows] = lengths[rows] = 0
        ordinals[rows] = ~ordinals[rows]
        return replace(self, offsets=offsets, lengths=lengths, ordinals=ordinals)

    def take(self, rows: Indices) -> RecordRows:
        """Return some rows, in the order of the indices; the result holds their buffers alone."""
        return self.pick(rows).prune()

    def prune(self) -> RecordRows:
        """Return the same rows without the buffers that no row refers to."""
        if len(self.buffers) <= 1 and len(self):
            return self
        # NumPy releases the GIL to convert any other index type, and waits to have it back.
        index = self.buffer_index.astype(np.intp)
        used = np.zeros(len(self.buffers), np.bool_)
        used[index] = True
        buffers = tuple(self.buffers[k] for k in np.flatnonzero(used).tolist())
        # The numbers of the buffers among those that are kept.
        index = (np.cumsum(used) - 1)[index]
        return replace(self, buffers=buffers, buffer_index=index.astype(np.int32))

    def pick(self, rows: Indices | slice) -> RecordRows:
        """Return some rows, or all in another order; the result holds all buffers."""
        return RecordRows(
            buffers=self.buffers,
            buffer_index=self.buffer_index[rows],
            offsets=self.offsets[rows],
            lengths=self.lengths[rows],
            shards=self.shards[rows],
            ordinals=self.ordinals[rows],
            passes=None if self.passes is None else self.passes[rows],
            steps=None if self.steps is None else self.steps[rows],
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """The size of all payloads, in bytes; one that several windows have counts once."""
        return int(self.shares.sum())

    @property
    def shares(self) -> Indices:
        """int64 ``[n]``: the bytes of each payload, divided by its windows among these rows."""
        if self.steps is None:
            return self.lengths
        places = np.stack([self.buffer_index.astype(np.int64), self.offsets])
        _, of_row, counts = np.unique(places, axis=1, return_inverse=True, return_counts=True)
        return self.lengths // counts[of_row.reshape(-1)]

    def payloads(self) -> Iterator[memoryview]:
        """Yield each row's payload, without a copy."""
        views = [buffer.data for buffer in self.buffers]
        rows = zip(
            self.buffer_index.tolist(), self.offsets.tolist(), self.lengths.tolist(), strict=True
        )
        for index, offset, length in rows:
            yield views[index][offset : offset + length]


def _joined(columns: Sequence[Indices | None]) -> Indices | None:
    """Return the numbers of all parts; ``None`` if one has none."""
    there = [column for column in columns if column is not None]
    return np.concatenate(there) if there and len(there) == len(columns) else None


class EpochRows(NamedTuple):
    """Consecutive rows of a lane, all of one epoch."""

    rows: RecordRows
    epoch: int


def interleave(lanes: Sequence[Sequence[EpochRows]], keys: Indices) -> tuple[RecordRows, Indices]:
    """Put the rows of several lanes into the order of their keys.

    Args:
        lanes: The rows of each lane, in order.
        keys: int64 ``[rows]``, ascending: ``number * len(lanes) + lane``. The numbers of one lane
            are consecutive.

    Returns:
        The rows, and int64 ``[rows]``: the epoch of each.
    """
    # No step lets go of the GIL for a few hundred rows: the event loop would wait to have it back.
    number, lane = np.divmod(keys, len(lanes))
    last = np.zeros(len(lanes), np.int64)
    last[lane] = number  # the numbers of a lane ascend, so its last one stays
    ends = np.cumsum([sum(len(part.rows) for part in parts_of_lane) for parts_of_lane in lanes])
    order = number + (ends - 1 - last)[lane]
    parts = [part for parts_of_lane in lanes for part in parts_of_lane]
    epochs = np.array([part.epoch for part in parts], np.int64)
    every_epoch = np.repeat(epochs, [len(part.rows) for part in parts])
    rows = RecordRows.concatenate([part.rows for part in parts])
    return rows.pick(order), every_epoch[order]
