"""The decoder, which turns the rows of a batch into columns in memory of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec import kernel
from streamrec.errors import BatchTooLarge, OutOfMemory
from streamrec.flow.pool import BatchMemory
from streamrec.flow.stages import WaitClock
from streamrec.formats.examples.descriptions import growth_of, is_pair
from streamrec.formats.examples.features import parser_of
from streamrec.formats.examples.needs import (
    UNLIMITED,
    Claims,
    DecodeLimits,
    decode_anew,
    one_by_one,
)
from streamrec.formats.examples.renaming import AS_STORED
from streamrec.formats.shards.tfrecord import corrupt_row
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.functions import NONE, Functions
from streamrec.pipeline.batch.origin import Origin
from streamrec.values.aligned import align
from streamrec.values.columns import Arrays, BytesColumn, Column, Ragged, Sparse, size_of
from streamrec.values.record_rows import RecordRows, are_columns, columns_of
from streamrec.values.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.config.record_choice import Window
    from streamrec.flow.pool import BatchInFlight
    from streamrec.formats.examples.episode_windows import EpisodeParser
    from streamrec.formats.examples.features import FeatureParser
    from streamrec.formats.examples.needs import FillPicture, Share
    from streamrec.formats.examples.renaming import Renames
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.functions import Function
    from streamrec.pipeline.batch.origin import Components
    from streamrec.pipeline.batch.record_caches import MappedCache
    from streamrec.plan.state.position import Position
    from streamrec.values.columns import Indices


PADDED = ("varlen", "sequence")
"""The kinds of specs whose columns are as wide as the longest row beside them."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows in the order of delivery, with running sums of their sizes.

    The size of a batch is thus a difference of two numbers. A reduction by NumPy would release the
    GIL, and the thread that cuts batches would wait for the decoding threads to get it back.
    """

    rows: RecordRows
    keys: Indices
    """int64 ``[rows]``: the rows' keys in the round robin, ascending."""
    epochs: Indices
    """int64 ``[rows]``: the epoch of each row."""
    ends: Indices
    """int64 ``[rows]``: running sums of the payloads' sizes in bytes, from any start."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """The total size of the payloads in bytes."""
        return int(self.ends[-1] - self.ends[0] + self.rows.lengths[0]) if len(self) else 0

    def cut(self, first: int, last: int | None) -> Chunk:
        """Return the rows from ``first`` to before ``last``; the chunk itself if these are all."""
        if first == 0 and last == len(self):
            return self
        rows = self.rows.part(first, last)
        return Chunk(rows, self.keys[first:last], self.epochs[first:last], self.ends[first:last])

    def keep(self, mask: npt.NDArray[np.bool_]) -> Chunk:
        """Return the rows for which the mask is True."""
        indices = np.flatnonzero(mask)
        return Chunk.of(self.rows.take(indices), self.keys[indices], self.epochs[indices])

    @classmethod
    def of(cls, rows: RecordRows, keys: Indices, epochs: Indices) -> Chunk:
        """Make a chunk of these rows."""
        return cls(rows, keys, epochs, np.cumsum(rows.shares))

    @classmethod
    def concatenate(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Join all rows of all chunks, in that order."""
        return cls.of(
            RecordRows.concatenate([chunk.rows for chunk in chunks]),
            np.concatenate([chunk.keys for chunk in chunks]),
            np.concatenate([chunk.epochs for chunk in chunks]),
        )


def empty_chunk() -> Chunk:
    """Return a chunk without rows and buffers."""
    return _EMPTY


_NONE = np.empty(0, np.int64)
_EMPTY = Chunk.of(RecordRows.concatenate([]), _NONE, _NONE)


class SuspectPayload(Exception):
    """A large payload that does not match its CRC, and must be read once more."""


class TooManyTogether(Exception):
    """Single records that may fit one by one take too much memory together."""

    def __init__(self, cause: BatchTooLarge) -> None:
        super().__init__(cause)
        self.cause = cause


class Work:
    """The notes of a thread that makes a batch, for the one who waits for it.

    Args:
        waits: The run's attribution of time, whose clock it has.
        memory: The account of the memory that the batch holds; ``None``: nobody counts it.
    """

    __slots__ = ("_waits", "memory", "transform_since")

    def __init__(self, waits: WaitClock, memory: BatchInFlight | None = None) -> None:
        self._waits = waits
        self.memory = memory
        self.transform_since: float | None = None
        """The time at which the first of the user's functions was called; ``None``: none was."""

    def admit(self, size: int) -> None:
        """Take so many bytes for the batch; wait until they are free."""
        if self.memory is not None:
            self.memory.admit(size)

    def settle(self, size: int) -> None:
        """Note the bytes that the decoded batch has."""
        if self.memory is not None:
            self.memory.settle(size)

    def note_transform(self) -> None:
        """Note that one of the user's functions is called next."""
        if self.transform_since is None:
            self.transform_since = self._waits.clock()

    def run(self, make: Callable[..., Batch], *arguments: Any) -> Batch:
        """Make the batch with these arguments and the notes, and tell the spans of it."""
        spans, began = self._waits.spans, self._waits.clock()
        try:
            return make(*arguments, self)
        finally:
            if spans is not None:
                ended = self._waits.clock()
                spans.add("batch", "decode", began, self.transform_since or ended)
                if self.transform_since is not None:
                    spans.add("batch", "transform", self.transform_since, ended)


class Decoder:
    """A decoder of rows into batches, used from several threads at once.

    Args:
        features: The specs in their plain form, or ``None`` for raw records.
        urls: The shards' URLs, for errors.
        single: Whether rows are delivered one by one, so that none is padded like its neighbours.
        share: Runs the decoding of a batch's pictures; by default one after the other.
        functions: The user's functions; map and transform are called here.
        masks: Whether every batch has a mask, since damaged records may leave rows.
        components: The components of a mix.
        checks_large: Whether to check the CRCs of large payloads, as the scan has not.
        allocate: Allocates the columns of batches. Single records and the columns that the user's
            functions get have memory of the decoder's own, as these may keep it.
        fill_picture: A function that fills an array with a picture; it is decoded by default.
        mapped: The cache of what the map makes; ``None``: there is none.
        limits: The limits of what the columns of a batch claim.
        window: The windows that rows are, of episodes; ``None``: rows are records.
        kept_pictures: Bytes of episodes' pictures to keep for the batches after one.
        renames: The names that features have in the records of each shard.

    Raises:
        ConfigError: A spec is wrong.
    """

    def __init__(
        self,
        features: dict[str, Any] | None,
        urls: Sequence[str],
        *,
        single: bool = False,
        share: Share = one_by_one,
        functions: Functions = NONE,
        masks: bool = False,
        components: Components | None = None,
        checks_large: bool = False,
        allocate: Allocate | None = None,
        fill_picture: FillPicture = decode_anew,
        mapped: MappedCache | None = None,
        limits: DecodeLimits = UNLIMITED,
        window: Window | None = None,
        kept_pictures: int = 0,
        renames: Renames = AS_STORED,
    ) -> None:
        self._mapped = mapped
        self._is_padded = not single and is_padded(features)
        self._claims = Claims(limits)
        self._single = single
        self._masks = masks
        self._components = components
        self._checks_large = checks_large
        self._urls = urls
        self._functions = functions
        self._memory = BatchMemory()
        if allocate is None or single or functions.map or functions.transform:
            allocate = self._memory.allocate
        self._allocate = allocate
        self._taken = self._made = 0  # bytes of decoded records, and of their columns
        self._row, self._factor = growth_of(features)  # bytes a row, and times the records' bytes
        self._parser: FeatureParser | EpisodeParser | None = None
        if features is not None:
            pictures = {"share": share, "fill_picture": fill_picture}
            self._parser = self._make_parser(
                features, window, kept_pictures, renames=renames, **pictures
            )

    def _make_parser(
        self, features: dict[str, Any], window: Window | None, kept_pictures: int, **how: Any
    ) -> FeatureParser | EpisodeParser:
        how |= {"allocate": self._allocate, "claims": self._claims}
        if window is None:
            scratch = self._memory.allocate
            return parser_of(features, pad=not self._single, scratch=scratch, **how)
        from streamrec.formats.examples import episode_windows  # few streams need it

        windows = episode_windows.EpisodeParser(features, window, capacity=kept_pictures, **how)
        self._row, self._factor = windows.row_bytes, 1
        return windows

    def count_steps(self, rows: RecordRows) -> Indices:
        """Return int64 ``[rows]``: the steps of each record, which is an episode."""
        parser: Any = self._parser
        counts: Indices = parser.count(rows, self._urls.__getitem__)
        return counts

    def size(self, chunk: Chunk) -> int:
        """Estimate the bytes of a batch of these rows when it is decoded."""
        if are_columns(chunk.rows):
            return chunk.nbytes
        return self.estimate(len(chunk), chunk.nbytes)

    def estimate(self, rows: int, nbytes: int) -> int:
        """Estimate the bytes of a decoded batch of so many rows, of records of ``nbytes`` bytes.

        A number of one byte becomes eight, a picture even more; earlier batches give the ratio.
        """
        as_before = nbytes * self._made // max(1, self._taken)
        return max(as_before, rows * self._row + nbytes * self._factor)

    def decode(
        self,
        chunk: Chunk,
        position: Position,
        padding: int | None,
        count: int | None = None,
        work: Work | None = None,
    ) -> Batch:
        """Decode a batch.

        Args:
            chunk: Its rows.
            position: The position after the batch.
            padding: Rows to add at the end; ``None``: the last batch is not filled up.
            count: The number of the chunk's rows that are delivered; 0 if its one row only gives
                its content to padding.
            work: The notes to take.

        Raises:
            SuspectPayload: A large payload does not match its CRC.
            TooManyTogether: Single records take too much memory together.
            DataError: A record cannot be parsed.
            OutOfMemory: There is no memory for its columns.
            FunctionFailed: One of the user's functions raised.
        """
        rows, mask, work = chunk.rows, None, work or Work(WaitClock())
        count = len(rows) if count is None else count
        shards, ordinals = rows.shards[:count], rows.ordinals[:count]
        if self._masks or padding is not None:
            padding = padding or 0
            mask = _pad(ordinals >= 0, padding, fill=False)
            shards = _pad(shards, padding)
            # A damaged record's number is stored as its complement, which is below 0.
            ordinals = _pad(np.maximum(ordinals, ~ordinals), padding)
        epochs = chunk.epochs if rows.passes is None else rows.passes
        with self._claims.admitted_by(work.admit):
            if mask is None:
                columns = self.columns(rows, epochs, work)
            else:
                columns = self._parse_filled(rows, epochs, mask, work)
        size = sum(map(size_of, columns.values()))
        work.settle(size)
        self._made += size  # an estimate: threads may lose a sum
        self._taken += chunk.nbytes
        origin = Origin(shards, ordinals)
        epoch = min(chunk.epochs.tolist())
        batch = Batch(
            columns=columns,
            rows=len(shards),
            epoch=epoch,
            origin=origin,
            next_position=position,
            mask=mask,
            components=self._components,
        )
        if self._functions.transform is None:
            return batch
        work.note_transform()
        columns = self._functions.transform.change(batch, self._urls.__getitem__)
        return replace(batch, columns=columns)

    def close(self) -> None:
        """Keep no memory for further batches; existing batches are not affected."""
        self._memory.close()

    def columns(
        self, rows: RecordRows, epochs: Indices | int = 0, work: Work | None = None
    ) -> Mapping[str, Column]:
        """Parse and map some rows into columns of their own.

        Args:
            rows: The rows.
            epochs: The epoch of each row, or of all of them.
            work: The notes to take.
        """
        if are_columns(rows):
            return columns_of(rows)
        if self._functions.map is None:
            return self._columns(rows)
        if self._mapped is None or not len(rows):
            return self._map(self._functions.map, rows, epochs, work)
        return self._map_cached(self._functions.map, self._mapped, rows, epochs, work)

    def _map(
        self, map_: Function, rows: RecordRows, epochs: Indices | int, work: Work | None
    ) -> dict[str, Column]:
        """Parse some rows, and map their columns."""
        columns = self._columns(rows)
        if work is not None:
            work.note_transform()
        origin = Origin(rows.shards, rows.ordinals)
        return map_.apply(columns, origin, self._urls.__getitem__, epochs)

    def _map_cached(
        self,
        map_: Function,
        cache: MappedCache,
        rows: RecordRows,
        epochs: Indices | int,
        work: Work | None,
    ) -> dict[str, Column]:
        """Return the mapped columns of some rows; make and keep those that the cache lacks."""
        keys = cache.keys(rows)
        by_number = {number: cache.load(key) for number, key in enumerate(keys)}
        lacking = np.array([number for number, row in by_number.items() if row is None], np.int64)
        # A padded column is as wide as its neighbours make it, so each record is mapped alone.
        parts = len(lacking) if self._is_padded else min(1, len(lacking))
        for part in np.array_split(lacking, parts) if parts else ():
            columns = self._map(map_, rows.take(part), epochs, work)
            for place, number in enumerate(part.tolist()):
                row = {name: row_of(column, place) for name, column in columns.items()}
                by_number[number] = row
                cache.keep(keys[number], row)
        # In the order of the rows: the dictionary has had all numbers from the beginning.
        each = [row for row in by_number.values() if row is not None]
        return map_.join_rows(each, Origin(rows.shards, rows.ordinals), self._urls.__getitem__)

    def _parse_filled(
        self, rows: RecordRows, epochs: Indices, mask: npt.NDArray[np.bool_], work: Work
    ) -> Mapping[str, Column]:
        """Parse the rows; a masked one gets the content of the intact row before it.

        Masked rows at the beginning get that of the first intact row. Without any, all rows are
        blank.
        """
        intact = np.flatnonzero(rows.ordinals >= 0)
        if not len(intact):
            columns = self.columns(rows.take(intact), epochs[intact], work)
            return {name: blank(column, len(mask)) for name, column in columns.items()}
        contents = intact[np.maximum(np.cumsum(mask) - 1, 0)]
        return self.columns(rows.take(contents), epochs[contents], work)

    def _columns(self, rows: RecordRows) -> Mapping[str, Column]:
        if self._checks_large and corrupt_row(rows) >= 0:
            raise SuspectPayload
        try:
            if self._parser is None:
                return {"records": kernel.gather(rows, self._allocate)}
            return self._parser.parse(rows, self._urls.__getitem__)
        except BatchTooLarge as cause:
            if self._single and len(rows) > 1:
                raise TooManyTogether(cause) from None
            raise
        except MemoryError as error:
            url, record = self._urls[rows.shards[0]], int(rows.ordinals[0])
            raise OutOfMemory.of(error, url=url, record=record) from None


def _pad(values: npt.NDArray[Any], padding: int, fill: Any = -1) -> npt.NDArray[Any]:
    return np.concatenate([values, np.full(padding, fill, values.dtype)])


def blank(column: Column, rows: int) -> Column:
    """Make rows of zeros, empty strings or no values, in the form of a column without rows."""
    offsets = np.zeros(rows + 1, np.int64)
    match column:
        case np.ndarray():
            return align(np.zeros((rows, *column.shape[1:]), column.dtype))
        case BytesColumn():
            offsets = np.zeros(rows * column.strings_per_row + 1, np.int64)
            return BytesColumn(column.values, offsets, column.item_shape, rows)
        case Arrays():
            shapes = np.zeros((rows, column.shapes.shape[1]), np.int64)
            return Arrays(column.values, offsets, shapes)
        case Ragged():
            return Ragged(column.values, offsets)
        case Sparse():
            return Sparse(column.indices, column.values, (rows, *column.dense_shape[1:]))


def is_padded(features: Mapping[str, Any] | None) -> bool:
    """Return whether a record's columns depend on the records that are parsed with it.

    Args:
        features: The specs in their plain form; ``None``: records stay as they are.
    """
    plain = features or {}
    return is_pair(plain) or any(spec.get("kind") in PADDED for spec in plain.values())
