"""The values that cross layers: blocks of records, rows that refer to them, columns and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.plan.position import Position

__all__ = [
    "Batch",
    "Bytes",
    "BytesColumn",
    "Column",
    "Origin",
    "Pictures",
    "Ragged",
    "RecordBlock",
    "RecordRows",
    "Sparse",
]

Bytes: TypeAlias = bytes | bytearray | memoryview
Indices: TypeAlias = "npt.NDArray[np.int64]"
Octets: TypeAlias = "npt.NDArray[np.uint8]"
Values: TypeAlias = "npt.NDArray[Any] | BytesColumn | Pictures | Ragged"


@dataclass(frozen=True, slots=True, eq=False)
class RecordBlock:
    """Consecutive records of one shard in one buffer: the unit in which records travel.

    The arrays that view ``buffer`` keep it, and the pooled memory behind it, alive; when the last
    of them is gone the memory goes back to its pool.
    """

    buffer: Octets
    """uint8, one dimension; holds at least the frames of all records of the block."""
    offsets: Indices
    """int64 ``[n]``: where each record's payload begins in ``buffer``."""
    lengths: Indices
    """int64 ``[n]``: the payloads' sizes in bytes."""
    shard: int
    """The shard's number in the dataset."""
    first_ordinal: int
    """The number of the block's first record in its shard."""
    base: int
    """The offset in the shard, in bytes, of ``buffer[0]``."""
    lost: bool = False
    """Whether its records are damaged, and only their places are left; ``buffer`` is then empty."""

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class RecordRows:
    """Records in the order in which they are delivered, as references into buffers."""

    buffers: tuple[Octets, ...]
    buffer_index: npt.NDArray[np.int32]
    """int32 ``[n]``: the buffer of each row."""
    offsets: Indices
    """int64 ``[n]``: where each payload begins in its buffer."""
    lengths: Indices
    """int64 ``[n]``: the payloads' sizes in bytes."""
    shards: npt.NDArray[np.int32]
    """int32 ``[n]``: the shard that each row came from."""
    ordinals: Indices
    """int64 ``[n]``: the number of each row in its shard, or ``~number`` where a record is lost."""

    @classmethod
    def of(cls, records: Sequence[Bytes]) -> RecordRows:
        """Rows over records that stand in memory of their own, numbered from 0."""
        lengths = np.fromiter((len(record) for record in records), np.int64, len(records))
        joined = np.frombuffer(b"".join(records), np.uint8)
        return cls.from_column(BytesColumn(joined, offsets_of(lengths)))

    @classmethod
    def from_column(cls, column: BytesColumn) -> RecordRows:
        """Rows over a column of serialized records, numbered from 0."""
        n = len(column.offsets) - 1
        return cls(
            (column.values,),
            np.zeros(n, np.int32),
            column.offsets[:-1],
            np.diff(column.offsets),
            np.zeros(n, np.int32),
            np.arange(n, dtype=np.int64),
        )

    @classmethod
    def from_block(cls, block: RecordBlock, first: int = 0, last: int | None = None) -> RecordRows:
        """Rows over the records ``first … last-1`` of a block, in their order."""
        lengths, offsets = block.lengths[first:last], block.offsets[first:last]
        n = len(lengths)
        ordinals = np.arange(n, dtype=np.int64) + (block.first_ordinal + first)
        if block.lost:
            lengths, offsets, ordinals = np.zeros_like(lengths), np.zeros_like(offsets), ~ordinals
        shards = np.full(n, block.shard, np.int32)
        return cls((block.buffer,), np.zeros(n, np.int32), offsets, lengths, shards, ordinals)

    @classmethod
    def concatenate(cls, parts: Sequence[RecordRows]) -> RecordRows:
        """All rows of all parts, in that order."""
        if len(parts) == 1:
            return parts[0]
        counts = np.fromiter((len(part.buffers) for part in parts), np.int32, len(parts))
        first_buffer = (np.cumsum(counts) - counts).tolist()
        indices = [part.buffer_index + k for part, k in zip(parts, first_buffer, strict=True)]
        return cls(
            tuple(buffer for part in parts for buffer in part.buffers),
            np.concatenate(indices or [np.empty(0, np.int32)]).astype(np.int32, copy=False),
            np.concatenate([part.offsets for part in parts] or [np.empty(0, np.int64)]),
            np.concatenate([part.lengths for part in parts] or [np.empty(0, np.int64)]),
            np.concatenate([part.shards for part in parts] or [np.empty(0, np.int32)]),
            np.concatenate([part.ordinals for part in parts] or [np.empty(0, np.int64)]),
        )

    def part(self, first: int, last: int | None) -> RecordRows:
        """The rows from ``first`` to before ``last``, as views; holds all the buffers."""
        return self._pick(slice(first, last))

    def take(self, rows: Indices) -> RecordRows:
        """Some of the rows, in the order of the indices; holds the buffers of these alone."""
        return self._pick(rows).prune()

    def reorder(self, order: Indices) -> RecordRows:
        """All of the rows in another order, which is a permutation of them."""
        return self._pick(order)

    def prune(self) -> RecordRows:
        """The same rows, without the buffers that none of them is in."""
        if len(self.buffers) <= 1 and len(self):
            return self
        used = np.bincount(self.buffer_index, minlength=len(self.buffers)) > 0
        index = (np.cumsum(used, dtype=np.int32) - 1)[self.buffer_index]
        buffers = tuple(self.buffers[k] for k in np.flatnonzero(used).tolist())
        return replace(self, buffers=buffers, buffer_index=index.astype(np.int32, copy=False))

    def _pick(self, rows: Indices | slice) -> RecordRows:
        return RecordRows(
            self.buffers,
            self.buffer_index[rows],
            self.offsets[rows],
            self.lengths[rows],
            self.shards[rows],
            self.ordinals[rows],
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """The payloads' sizes together."""
        return int(self.lengths.sum())

    def payloads(self) -> Iterator[memoryview]:
        """Each row's payload, without a copy."""
        views = [buffer.data for buffer in self.buffers]
        rows = zip(
            self.buffer_index.tolist(), self.offsets.tolist(), self.lengths.tolist(), strict=True
        )
        for index, offset, length in rows:
            yield views[index][offset : offset + length]


def offsets_of(lengths: Indices) -> Indices:
    """Running sums with a leading 0: ``[n]`` lengths to ``[n + 1]`` offsets."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True, slots=True, eq=False)
class BytesColumn:
    """Byte strings end to end in one buffer; indexing gives ``bytes``.

    Args:
        values: uint8, all strings joined.
        offsets: int64 ``[count + 1]``: string ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
        item_shape: With ``(k,)``, row ``i`` is the list of strings ``i*k … i*k+k-1``; more
            dimensions nest lists; ``()`` means one string a row.
    """

    values: Octets
    offsets: Indices
    item_shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, strings: Sequence[Bytes], item_shape: tuple[int, ...] = ()) -> BytesColumn:
        """Join strings into a column of its own memory."""
        lengths = np.fromiter((len(string) for string in strings), np.int64, len(strings))
        values = np.frombuffer(bytearray(b"").join(strings), np.uint8)
        return cls(values, offsets_of(lengths), item_shape)

    @property
    def strings_per_row(self) -> int:
        """How many strings one row holds."""
        return int(np.prod(self.item_shape, dtype=np.int64))

    def __len__(self) -> int:
        per_row = self.strings_per_row
        return (len(self.offsets) - 1) // per_row if per_row else 0

    def __getitem__(self, row: int) -> Any:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        first = (row % len(self)) * self.strings_per_row
        return _nest(self._strings(first, first + self.strings_per_row), self.item_shape)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def to_list(self) -> list[Any]:
        """All rows: ``bytes``, or nested lists of them."""
        return list(self) if self.item_shape else self._strings(0, len(self))

    def _strings(self, first: int, last: int) -> list[bytes]:
        bounds = self.offsets[first : last + 1].tolist()
        view = self.values.data
        return [bytes(view[a:b]) for a, b in pairwise(bounds)]


def _nest(strings: list[bytes], shape: tuple[int, ...]) -> Any:
    if not shape:
        return strings[0]
    if len(shape) == 1:
        return strings
    step = len(strings) // shape[0] if shape[0] else 0
    return [_nest(strings[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """Decoded pictures of any size; indexing gives an array ``[height, width, channels]``, a view.

    Args:
        values: uint8, all pictures end to end, row by row.
        offsets: int64 ``[count + 1]``: picture ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
        shapes: int64 ``[count, 3]``: the heights, widths and channels.
    """

    values: Octets
    offsets: Indices
    shapes: Indices

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, row: int) -> Octets:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        first, last = self.offsets[row % len(self) :][:2].tolist()
        return self.values[first:last].reshape(self.shapes[row])

    def __iter__(self) -> Iterator[Octets]:
        return (self[row] for row in range(len(self)))

    def to_list(self) -> list[Octets]:
        """All pictures, as views."""
        return list(self)


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of different lengths.

    Args:
        values: All rows' values end to end: an array, a :class:`BytesColumn`, :class:`Pictures`,
            or a :class:`Ragged` where the values are of different lengths too.
        row_splits: int64 ``[rows + 1]``: row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``.
    """

    values: Values
    row_splits: Indices

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __getitem__(self, row: int) -> Any:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        first, last = self.row_splits[row % len(self) :][:2].tolist()
        part = cut(self.values, first, last)
        return part.to_list() if isinstance(part, BytesColumn | Pictures) else part

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def to_list(self) -> list[list[Any]]:
        """Each row as a list, at every depth."""
        first = int(self.row_splits[0])
        values = cut(self.values, first, int(self.row_splits[-1]))
        items = values.tolist() if isinstance(values, np.ndarray) else values.to_list()
        return [items[a:b] for a, b in pairwise((self.row_splits - first).tolist())]

    def to_dense(self, default: Any = None, width: int | None = None) -> npt.NDArray[Any]:
        """One array ``[rows, width, ...]``, short rows filled up; every ragged dimension is.

        Args:
            default: The filling; ``None`` means 0 for numbers and ``b""`` for strings.
            width: Values a row; ``None`` means those of the longest row. Longer rows are cut.
                Dimensions further in are always as long as their longest row.
        """
        first, lengths = int(self.row_splits[0]), np.diff(self.row_splits)
        values = _array(cut(self.values, first, int(self.row_splits[-1])), default)
        places = np.arange(int(lengths.max(initial=0)) if width is None else width)
        dense = _filled((len(self), len(places), *values.shape[1:]), values, default)
        taken = places < lengths[:, None]
        dense[taken] = values[(self.row_splits[:-1, None] - first + places)[taken]]
        return dense


def cut(values: Values, first: int, last: int) -> Values:
    """The values ``first … last-1``, as views of the same memory."""
    if isinstance(values, Ragged):
        return Ragged(values.values, values.row_splits[first : last + 1])
    if isinstance(values, BytesColumn):
        strings = values.strings_per_row
        offsets = values.offsets[first * strings : last * strings + 1]
        return BytesColumn(values.values, offsets, values.item_shape)
    if isinstance(values, Pictures):
        return Pictures(values.values, values.offsets[first : last + 1], values.shapes[first:last])
    return values[first:last]


def _array(values: Values, default: Any = None) -> npt.NDArray[Any]:
    """The values as an array that NumPy can index: strings as objects, ragged ones filled up."""
    if isinstance(values, Ragged):
        return values.to_dense(default)
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Pictures):
        raise TypeError("pictures of any size make no array; give sr.Image a shape")
    objects = np.empty(len(values.offsets) - 1, object)
    objects[:] = BytesColumn(values.values, values.offsets).to_list()
    return objects.reshape(len(values), *values.item_shape)


def _filled(shape: tuple[int, ...], values: npt.NDArray[Any], default: Any) -> npt.NDArray[Any]:
    """An array for such values, filled with the default, or with their kind's own."""
    none = b"" if values.dtype == object else 0
    return np.full(shape, none if default is None else default, values.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Coordinates and values.

    Args:
        indices: int64 ``[count, dimensions]``, sorted.
        values: ``[count]``: an array or a :class:`BytesColumn`.
        dense_shape: The shape of the whole; rows first.
    """

    indices: Indices
    values: npt.NDArray[Any] | BytesColumn
    dense_shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.dense_shape[0]

    def __getitem__(self, row: int) -> Sparse:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        places = np.flatnonzero(self.indices[:, 0] == row % len(self))
        return Sparse(self.indices[places, 1:], _pick(self.values, places), self.dense_shape[1:])

    def __iter__(self) -> Iterator[Sparse]:
        return (self[row] for row in range(len(self)))

    def to_dense(self, default: Any = None) -> npt.NDArray[Any]:
        """One array of ``dense_shape``; what has no value gets ``default`` (0 or ``b""``)."""
        values = _array(self.values)
        dense = _filled(self.dense_shape, values, default)
        dense[tuple(self.indices.T)] = values
        return dense


def _pick(values: npt.NDArray[Any] | BytesColumn, places: Indices) -> Any:
    if isinstance(values, np.ndarray):
        return values[places]
    return BytesColumn.of([values[place] for place in places.tolist()])


Column: TypeAlias = "npt.NDArray[Any] | BytesColumn | Pictures | Ragged | Sparse"


class Origin(NamedTuple):
    """Where the rows of a batch came from."""

    shards: npt.NDArray[np.int32]
    """int32 ``[n]``: the shard's number in ``stream.shards``; -1 for padding."""
    records: Indices
    """int64 ``[n]``: the record's number in its shard; -1 for padding."""


class Components(NamedTuple):
    """Those of a mix, sorted by name; each has a stretch of the shards' numbers."""

    names: tuple[str, ...]
    first_shards: tuple[int, ...]
    """The number of each one's first shard; they do not fall."""

    def of(self, shards: npt.NDArray[np.int32]) -> Indices:
        """Which one each shard belongs to; -1 where the shard is."""
        return np.searchsorted(np.array(self.first_shards), shards, "right") - 1

    def rows_of(self, shards: npt.NDArray[np.int32]) -> dict[str, int]:
        """How many of the shards, named once a row, are of each."""
        counts = np.bincount(self.of(shards) + 1, minlength=len(self.names) + 1)
        return dict(zip(self.names, counts[1:].tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Mapping[str, Any]):
    """A batch: a mapping from feature name to column, in memory that is the user's own.

    ``len(batch)`` is the number of rows; raw streams have the one column ``records``.
    """

    columns: Mapping[str, Column]
    rows: int
    epoch: int
    """The lowest epoch of the rows, from 0."""
    origin: Origin
    next_position: Position
    """The position of what comes after this batch; ``next_position.to_dict()`` is a checkpoint."""
    mask: npt.NDArray[np.bool_] | None = None
    """bool ``[rows]``: False where a row is padding, or takes the place of a damaged record, which
    ``origin`` then names; ``None`` where nothing is ever padded."""
    components: Components | None = None
    """Of a mix; ``None`` where nothing is mixed."""

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return self.rows

    @property
    def records(self) -> BytesColumn:
        """The serialized records of a raw stream (``features=None``)."""
        column = self.columns["records"]
        if not isinstance(column, BytesColumn):
            raise AttributeError(  # noqa: TRY004 - the attribute is not there
                "this stream is parsed into features, not raw"
            )
        return column

    @property
    def source(self) -> npt.NDArray[np.str_]:
        """``[rows]``: the name of the component that each row came from; ``""`` for padding."""
        if self.components is None:
            raise AttributeError("this stream is of one source; sr.mix mixes several")
        names = np.array([*self.components.names, ""])
        return names[self.components.of(self.origin.shards)]

    def __repr__(self) -> str:
        return f"<Batch of {self.rows} rows: {', '.join(self.columns)}>"
