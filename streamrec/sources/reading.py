"""The reading of a source by several workers, in an order that does not depend on them."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import connection, get_context, parent_process
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import DataError, StreamrecError
from streamrec.sources.source import DEFAULT_MEMORY, PIECE_BYTES, Divisible
from streamrec.values.columns import views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

    from streamrec.plan.order.shard_names import Splits, Task
    from streamrec.sources.source import Block, Memory, Source

AHEAD = 2
"""Pieces for each worker that are found, read, or wait to be written."""


class ReadBlock(NamedTuple):
    """A block, and what belongs to it."""

    block: Block
    splits: npt.NDArray[np.uint8] | None
    """The number of each record's split."""
    skipped: list[DataError]
    """The errors of records that were left out."""


class Reader:
    """A reader of a source's pieces.

    Args:
        source: The source.
        splits: The splits to divide the records over.
        skips: Leave out what is wrong, and tell it; else it is raised.
    """

    def __init__(self, source: Source, splits: Splits | None, *, skips: bool) -> None:
        self._source, self._splits, self._skips = source, splits, skips
        self.first = 0
        """The first of the task's pieces that is read."""

    def __call__(self, piece: Any) -> ReadBlock:
        """Read a piece."""
        skipped: list[DataError] = []

        def refuse(error: DataError) -> None:
            if not self._skips:
                raise error
            skipped.append(error)

        block = self._source.read(piece, refuse)
        return ReadBlock(block, self._splits_of(block), skipped)

    def _splits_of(self, block: Block) -> npt.NDArray[np.uint8] | None:
        if self._splits is None:
            return None
        keys: Any = block.keys
        if keys is None:
            keys = views(block.records)
        return self._splits.of(keys)


def read_source(
    source: Source,
    reader: Reader,
    task: Task,
    workers: int,
    *,
    is_mixed: bool = False,
    memory: Memory = DEFAULT_MEMORY,
) -> Iterator[ReadBlock]:
    """Read a task's part of a source, in order, whatever the number of workers.

    Where a file can only be read from its beginning, a task reads files of its own, if there are
    enough. Else it takes every n-th piece of all.

    Args:
        source: The source.
        reader: Its reader. The task begins with the ``first`` of its pieces.
        task: The task.
        workers: The number of threads or processes.
        is_mixed: Take every n-th piece in any case, so that each task has records of all files.
        memory: The bounds of the pieces that are read at once.

    Raises:
        DataError: A record is wrong, and is not to be skipped.
        StreamrecError: A worker process ended.
    """
    pieces = _pieces(source, task, reader.first, is_mixed=is_mixed)
    # A source that is read by itself may close a file when the next piece is asked for.
    first = [] if source.reads_in == "itself" else list(islice(pieces, 2))
    if workers == 1 or len(first) < 2:  # one piece needs no pool
        yield from map(reader, first)
        yield from map(reader, pieces)
        return
    with _pool(source, reader, workers) as (pool, read):
        waiting: deque[tuple[int, Future[ReadBlock]]] = deque()
        nbytes = 0
        for piece in chain(first, pieces):
            size = _size(piece)
            # In order: the first of those that wait, even if others are ready.
            while waiting and (
                len(waiting) == AHEAD * workers - 1 or nbytes + size > memory.record
            ):
                nbytes -= waiting[0][0]
                yield waiting.popleft()[1].result()
            waiting.append((size, pool.submit(read, piece)))
            nbytes += size
        while waiting:
            yield waiting.popleft()[1].result()


def _size(piece: Any) -> int:
    """Return the bytes of a piece; those without a number are small."""
    return int(getattr(piece, "nbytes", PIECE_BYTES))


def _pieces(source: Source, task: Task, first: int, *, is_mixed: bool) -> Iterator[Any]:
    """Yield a task's pieces, from one of them on."""
    part = source.part(task) if isinstance(source, Divisible) and not is_mixed else None
    if part is not None:
        yield from islice(part.pieces(), first, None)
    else:
        yield from islice(source.pieces(), task.number + first * task.tasks, None, task.tasks)


@contextmanager
def _pool(
    source: Source, reader: Reader, workers: int
) -> Iterator[tuple[Executor, Callable[[Any], ReadBlock]]]:
    pool: Executor
    read: Callable[[Any], ReadBlock]
    if source.reads_in == "threads":
        pool, read = ThreadPoolExecutor(workers, "streamrec-read"), reader
    else:
        start = get_context("spawn")  # a fork would copy locks of threads that run
        pool, read = ProcessPoolExecutor(workers, start, _begin, (reader,)), _read
    try:
        yield pool, read
    except BrokenProcessPool:
        raise StreamrecError(
            "a process that reads the source was ended by the system, perhaps for its memory; run "
            "the same command again with fewer --workers"
        ) from None
    finally:
        # A run that ends early must not wait for pieces that nobody takes.
        pool.shutdown(cancel_futures=True)


_READERS: list[Reader] = []
"""The reader of a worker process."""


def _begin(reader: Reader) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _READERS.append(reader)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _read(piece: Any) -> ReadBlock:
    return _READERS[0](piece)
