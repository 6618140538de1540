"""Single records as a dataset, for a trainer that counts the epochs and collates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from streamrec.adapters.torch.loader import Loader
from streamrec.adapters.torch.worker import epoch_of
from streamrec.errors import ConfigError
from streamrec.pipeline.batch.batch import Batch
from streamrec.streams import handle
from streamrec.streams.state import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamrec.pipeline.batch.torch_columns import Casts


class Record(Mapping[str, Any]):
    """A record: its tensors by feature name, which are made when they are asked for.

    Args:
        row: The row of a batch of the stream.
        casts: The dtypes asked for.
    """

    __slots__ = ("casts", "row")

    def __init__(self, row: Row, casts: Casts) -> None:
        self.row = row
        self.casts = casts

    def __getitem__(self, name: str) -> Any:
        return self.casts.column(name, self.row.batch[name][self.row.number])

    def __iter__(self) -> Iterator[str]:
        return iter(self.row.batch.columns)

    def __len__(self) -> int:
        return len(self.row.batch.columns)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # else the whole batch would be pickled with each record


class Records(Loader):
    """Single records; made by :func:`streamrec.adapters.huggingface.as_dataset`."""

    def _go_to_epoch(self, epoch: int) -> None:
        """Go to the very beginning of an epoch: the trainer passes over what it has had of it.

        A state of that epoch that was loaded holds.
        """
        if self._is_loaded and epoch == epoch_of(self._stream.state_dict()):
            return
        self._forget()
        # set_epoch leaves a stream whose run began with that epoch where it is.
        self._stream.rewind()
        self._stream.set_epoch(epoch)

    def _tensors(self, item: Any) -> Any:
        if isinstance(item, Batch):
            raise ConfigError(
                "the stream gives batches, and the Trainer makes them of single records; open the "
                "stream without batch_size, and give the Trainer per_device_train_batch_size"
            )
        if not isinstance(item, Row):
            return super()._tensors(item)
        # Once a batch: its columns have the same types in all rows.
        if not item.number:
            self._casts.check(item.batch.columns)
        return Record(item, self._casts)

    def _next(self) -> Any:
        return handle.of(self._stream).next_row()


def collate(records: Sequence[Record]) -> dict[str, Any]:
    """Return the batch of some records; see :mod:`streamrec.adapters.huggingface`."""
    if not all(isinstance(record, Record) for record in records):
        raise ConfigError(
            "collate makes batches of the records of streamrec.adapters.huggingface.as_dataset; "
            "open the stream with features, and give the dataset to the Trainer as it is"
        )
    casts, runs = records[0].casts, _runs([record.row for record in records])
    batch: dict[str, Any] = {}
    for name in records[0]:
        if all(isinstance(rows.columns[name], np.ndarray) for rows, _, _ in runs):
            parts = [rows.columns[name][first:last] for rows, first, last in runs]
            tensors = [casts.column(name, part) for part in parts]
            # A single run is a view of the stream's own memory.
            batch[name] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        else:
            batch[name] = [record[name] for record in records]
    return batch


def _runs(rows: Sequence[Row]) -> list[tuple[Batch, int, int]]:
    """Return the rows as ranges of rows that follow each other in a batch."""
    runs: list[tuple[Batch, int, int]] = []
    for batch, number in rows:
        if runs and runs[-1][0] is batch and runs[-1][2] == number:
            runs[-1] = (batch, runs[-1][1], number + 1)
        else:
            runs.append((batch, number, number + 1))
    return runs
