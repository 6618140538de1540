"""The reader of DLIO that streamrec is; ``reader.reader_classname`` names it.

DLIO's loader for TensorFlow takes the batches of any reader, so there is no loader beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from dlio_benchmark.common.enumerations import Shuffle
from dlio_benchmark.reader.reader_handler import FormatReader

import streamrec as sr

FEATURES = {"image": sr.FixedLenFeature((), "bytes"), "size": sr.FixedLenFeature((), "int64")}
"""The features of each record that DLIO writes: both are parsed, as DLIO's own reader does."""


def settings(arguments: Any, epoch: int) -> dict[str, Any]:
    """Return the settings of a stream that reads what DLIO's arguments say.

    Args:
        arguments: DLIO's ``ConfigArguments``.
        epoch: Number of the epoch, which changes the seed as it does in DLIO.
    """
    shuffles = {arguments.file_shuffle, arguments.sample_shuffle} != {Shuffle.OFF}
    return {
        "batch_size": arguments.batch_size,
        "shuffle": shuffles,
        "seed": arguments.seed + epoch if arguments.seed_change_epoch else arguments.seed,
        "rank": arguments.my_rank,
        "world_size": arguments.comm_size,
    }


class StreamrecReader(FormatReader):  # type: ignore[misc]
    """A reader whose batches are those of one stream an epoch.

    Where the objects are, and by which keys they are read, say the variables of AWS.
    """

    engine: ClassVar[Literal["process", "thread"] | None] = None

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index)
        self._epoch = epoch

    def next(self) -> StreamrecReader:
        """Return the reader: each loop over it is an epoch."""
        return self

    def __iter__(self) -> Iterator[sr.Batch]:
        """Open the next epoch, and yield its batches."""
        opened = settings(self._args, self._epoch)
        self._epoch += 1
        with sr.open(list(self._file_list), FEATURES, engine=self.engine, **opened) as stream:
            yield from stream

    def is_iterator_based(self) -> bool:
        """Return true: batches come in the reader's own order."""
        return True

    def is_index_based(self) -> bool:
        """Return false: samples are not asked for by number."""
        return False

    def open(self, filename: str) -> None:
        """Do nothing: the stream opens its shards."""

    def close(self, filename: str) -> None:
        """Do nothing: the stream closes its shards."""

    def get_sample(self, filename: str, sample_index: int) -> None:
        """Do nothing: no sample is asked for by number."""

    def read_index(self, global_sample_idx: int, step: int) -> None:
        """Do nothing: no sample is asked for by number."""

    def finalize(self) -> None:
        """Do nothing: a stream ends with its epoch."""


class ThreadReader(StreamrecReader):
    """The same with the engine in a thread: DLIO's trainer leaves the interpreter alone."""

    engine = "thread"
