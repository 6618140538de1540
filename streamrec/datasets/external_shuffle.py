"""A shuffle of more records than memory holds, over a temporary file."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, NamedTuple, Self, TypeVar

import numpy as np

from streamrec import kernel
from streamrec.errors import ConfigError, StoreError
from streamrec.plan.order.permutation import numbers, seed_of
from streamrec.plan.order.shard_names import Task
from streamrec.surroundings import temporary_file, temporary_place
from streamrec.values.columns import BytesColumn, offsets_of
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from streamrec.values.columns import ByteArray, Indices

LEAST_MEMORY = 16 << 20
"""Bytes of the least memory that a shuffle takes."""
RECORD_COST = 64
"""Bytes that a record in memory takes besides its own: its key, its place, its length."""
PIECE = 1 << 20
"""Bytes that are put in order, and written or given, at a time."""
PREFIXES = 1 << 12
"""Ranges of keys of which a bucket has some: of 4 TiB, each has 1 GiB."""
NEEDS = "a shuffle of more than its memory holds"
SALT = 0x5F0E
"""Keeps the keys apart from other numbers drawn with the same seed."""


Scalar = TypeVar("Scalar", bound=np.generic)


class _SortedRun(NamedTuple):
    """Records of the temporary file that are sorted by key: the places of its parts in bytes."""

    table: int
    """int64 ``[PREFIXES + 1, 2]``: the records, and their bytes, before each range of keys."""
    keys: int
    lengths: int
    payloads: int


class _Bucket(NamedTuple):
    """A part of a run in memory."""

    keys: npt.NDArray[np.uint64]
    lengths: Indices
    payloads: ByteArray


class ExternalShuffle:
    """A global shuffle: records are added first, and then come in a random order.

    Each record has a pseudo-random key, of the seed and of its number in the order in which the
    records are added, and they come in the order of the keys. So the order is the same for any
    memory and on any machine, and nothing of the order before is left in it.

    What memory does not hold is sorted by key and goes to a temporary file without a name, which
    the system removes however the process ends. Then the records of one range of keys after the
    other are read, as many as fit into memory. A context manager; leaving it removes the file.

    Args:
        seed: The seed of the order.
        memory: The most bytes of memory, at least 16 MiB. Single records that are longer than half
            of it take more.
        directory: The directory of the file, by default that of ``TMPDIR``.
        task: The task's number and the number of tasks, each of which adds all records: the order
            is cut into as many parts, about equal ones, and this task's part is given.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        memory: int = 1 << 30,
        directory: str | None = None,
        task: tuple[int, int] = (0, 1),
    ) -> None:
        if memory < LEAST_MEMORY:
            raise ConfigError(
                f"the shuffle's memory is {memory:,} bytes; give at least {LEAST_MEMORY:,}"
            )
        self._seed = seed_of(seed, SALT)
        self._limit = memory // 2  # half for what is held, half for what is made of it
        # Each task adds all records, and keeps those whose keys are in its part: so the order is
        # that of one process.
        self._part = Task.of(task)
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._runs: list[_SortedRun] = []
        self._table = np.zeros((PREFIXES + 1, 2), np.int64)
        self._held: list[tuple[BytesColumn, npt.NDArray[np.uint64]]] = []
        self._held_bytes = 0
        self.records = 0
        """The number of records added, those of other tasks included."""
        self.nbytes = 0
        """Bytes of the records to give."""

    def __repr__(self) -> str:
        return f"<ExternalShuffle of {self.records} records, {len(self._runs)} runs on disk>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, records: BytesColumn) -> None:
        """Add records, which must not change any more.

        Raises:
            StoreError: The temporary file cannot be written.
        """
        count = len(records)
        ordinals = np.arange(self.records, self.records + count, dtype=np.uint64)
        # By number and not by content, so that equal records are shuffled apart.
        keys = numbers(ordinals, self._seed)
        self.records += count
        if self._part.tasks > 1:
            records, keys = self._pick_own(records, keys)
        if len(keys):
            self._held.append((records, keys))
            size = int(records.offsets[-1] - records.offsets[0])
            self.nbytes += size
            self._held_bytes += size + RECORD_COST * len(keys)
        if self._held_bytes >= self._limit:
            self._spill()

    def blocks(self) -> Iterator[BytesColumn]:
        """Yield all records in their new order, some MiB at a time; only once.

        Raises:
            StoreError: The temporary file cannot be written or read.
        """
        if not self._runs:
            yield from _pieces(self._sort()[0])
            return
        self._spill()
        for first, last in self._buckets():
            yield from self._bucket(first, last)

    def close(self) -> None:
        """Forget all records, and remove the temporary file."""
        self._held.clear()
        if self._file is not None:
            # Closing flushes, which fails again on a full disk; the file has no name, and is gone.
            with suppress(OSError):
                self._file.close()

    def _pick_own(
        self, records: BytesColumn, keys: npt.NDArray[np.uint64]
    ) -> tuple[BytesColumn, npt.NDArray[np.uint64]]:
        """Return the task's records among these."""
        number, tasks = self._part
        # Python's whole numbers: the end of the last part is 2**64, which no uint64 holds.
        first, last = (number << 64) // tasks, ((number + 1 << 64) // tasks) - 1
        rows = np.flatnonzero((keys >= np.uint64(first)) & (keys <= np.uint64(last)))
        return kernel.gather(RecordRows.from_column(records).pick(rows)), keys[rows]

    def _sort(self) -> tuple[RecordRows, npt.NDArray[np.uint64]]:
        """Return the records that are held, in the order of their keys, and hold them no more."""
        blocks, self._held, self._held_bytes = self._held, [], 0
        rows = RecordRows.concatenate([RecordRows.from_column(records) for records, _ in blocks])
        keys = np.concatenate([keys for _, keys in blocks] or [np.empty(0, np.uint64)])
        # Stable: equal keys keep the order of their numbers, for any memory.
        order = np.argsort(keys, kind="stable")
        return rows.pick(order), keys[order]

    def _spill(self) -> None:
        """Write the records that are held to the file, as a run."""
        if not self._held:
            return
        rows, keys = self._sort()
        table = _table(keys, rows.lengths)
        # The buckets of all runs are cut at the same keys.
        self._table += table
        with self._translate():
            if self._file is None:
                self._directory = self._directory or temporary_place(NEEDS)
                self._file = temporary_file(NEEDS, directory=self._directory)
            begin = self._file.tell()
            ends = begin + np.cumsum([table.nbytes, keys.nbytes, rows.lengths.nbytes])
            self._runs.append(_SortedRun(begin, *ends.tolist()))
            for part in (table, keys, rows.lengths):
                self._file.write(part.data)
            for piece in _pieces(rows):
                self._file.write(piece.values.data)
            # It is read by its descriptor, past the buffer.
            self._file.flush()

    def _buckets(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of prefixes, each with as many records as fit into memory."""
        # All runs together: a bucket takes a part of each of them.
        costs = self._table[:, 1] + RECORD_COST * self._table[:, 0]
        first = 0
        while first < PREFIXES:
            last = int(np.searchsorted(costs, costs[first] + self._limit, "right")) - 1
            # A single range may be more than fits, and is read all the same.
            last = max(last, first + 1)
            yield first, last
            first = last

    def _bucket(self, first: int, last: int) -> Iterator[BytesColumn]:
        """Yield the records of the prefixes ``first … last-1``."""
        with self._translate():
            parts = [self._read(run, first, last) for run in self._runs]
        keys = np.concatenate([part.keys for part in parts])
        columns = [BytesColumn(part.payloads, offsets_of(part.lengths)) for part in parts]
        rows = RecordRows.concatenate([RecordRows.from_column(column) for column in columns])
        yield from _pieces(rows.pick(np.argsort(keys, kind="stable")))

    def _read(self, run: _SortedRun, first: int, last: int) -> _Bucket:
        """Read a run's records of the prefixes ``first … last-1``."""
        begin, end = (
            self._array(np.int64, run.table + 16 * prefix, 2).tolist() for prefix in (first, last)
        )
        count = end[0] - begin[0]
        return _Bucket(
            self._array(np.uint64, run.keys + 8 * begin[0], count),
            self._array(np.int64, run.lengths + 8 * begin[0], count),
            self._array(np.uint8, run.payloads + begin[1], end[1] - begin[1]),
        )

    def _array(self, dtype: type[Scalar], place: int, count: int) -> npt.NDArray[Scalar]:
        """Read an array from the file."""
        assert self._file is not None
        # Empty: it is filled from the file at once, and zeros would be a second pass.
        array = np.empty(count, dtype)
        view = array.view(np.uint8).data
        while view:
            # A read may give less than was asked for.
            if not (done := os.preadv(self._file.fileno(), [view], place)):
                raise OSError(None, "it was cut short")
            view, place = view[done:], place + done
        return array

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"the shuffle's temporary file cannot be used: {error.strerror or error}; it takes "
                "as many bytes as the records: free as many there, or name another disk with "
                "TMPDIR",
                url=self._directory,
            ) from None


def _table(keys: npt.NDArray[np.uint64], lengths: Indices) -> Indices:
    """Return the number of records, and of their bytes, before each range of keys."""
    starts = np.arange(PREFIXES, dtype=np.uint64) * np.uint64((1 << 64) // PREFIXES)
    counts = np.append(np.searchsorted(keys, starts), len(keys))
    return np.stack([counts, offsets_of(lengths)[counts]], axis=1)


def _pieces(rows: RecordRows) -> Iterator[BytesColumn]:
    """Yield the records as columns of about ``PIECE`` bytes; at least one record in each."""
    ends = np.cumsum(rows.lengths + RECORD_COST)
    first = 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + PIECE, "right")))
        yield kernel.gather(rows.part(first, last).prune())
        first = last
