"""From the rows of a batch to its columns, in memory of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec import kernel
from streamrec.flow.pool import BatchMemory
from streamrec.formats.image_columns import growth_of
from streamrec.formats.needs import one_by_one
from streamrec.formats.sequences import parser_of
from streamrec.pipeline.column_rows import ColumnRows
from streamrec.pipeline.functions import NONE, Functions
from streamrec.types import Batch, Column, Origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.formats.needs import Share
    from streamrec.pipeline.batch import Chunk
    from streamrec.pipeline.column_rows import Rows
    from streamrec.plan.position import Position
    from streamrec.types import RecordRows

__all__ = ["Decoder"]


class Decoder:
    """Turns rows into batches; used from several threads at once.

    Args:
        features: The specs in their plain form, or ``None`` for raw records.
        urls: Of the shards, for errors.
        single: The rows are delivered one by one, so none may depend on those beside it.
        share: Decodes the pictures of a batch; one after the other by default.
        functions: Of the user; what is mapped is so here, since it is mapped record by record.

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
    ) -> None:
        self._urls = urls
        self._functions = functions
        self._allocate = allocate = BatchMemory().allocate
        self._parser = None
        self._growth = growth_of(features)
        if features is not None:
            self._parser = parser_of(features, pad=not single, allocate=allocate, share=share)

    def size(self, chunk: Chunk) -> int:
        """The bytes of a batch of these rows, about, when it is decoded."""
        if isinstance(chunk.rows, ColumnRows):
            return chunk.nbytes
        return self._growth.size(len(chunk), chunk.nbytes)

    def decode(
        self, chunk: Chunk, position: Position, padding: int | None, count: int | None = None
    ) -> Batch:
        """Decode a batch.

        Args:
            chunk: Its rows.
            position: That of what comes after it.
            padding: Rows to add behind, or ``None`` where nothing is ever padded.
            count: How many of the chunk's rows are delivered: all, or none of a row that only lends
                its content to padding.
        """
        rows, mask = chunk.rows, None
        count = len(rows) if count is None else count
        shards, ordinals = rows.shards[:count], rows.ordinals[:count]
        if padding is not None:
            mask = np.arange(count + padding) < count
            shards, ordinals = _padded(shards, padding), _padded(ordinals, padding)
            rows = rows.take(np.minimum(np.arange(len(mask)), len(rows) - 1))
        origin = Origin(shards, ordinals)
        epoch = min(chunk.epochs.tolist())
        batch = Batch(self.columns(rows), len(rows), epoch, origin, position, mask)
        if self._functions.transform is None:
            return batch
        columns = self._functions.transform.apply(batch, origin, self._urls.__getitem__)
        return replace(batch, columns=columns)

    def columns(self, rows: Rows) -> Mapping[str, Column]:
        """The columns of some rows, parsed and mapped, in memory of their own."""
        if isinstance(rows, ColumnRows):
            return rows.columns()
        columns, map_ = self._columns(rows), self._functions.map
        if map_ is None:
            return columns
        origin = Origin(rows.shards, rows.ordinals)
        return map_.apply(columns, origin, self._urls.__getitem__)

    def _columns(self, rows: RecordRows) -> Mapping[str, Column]:
        if self._parser is None:
            return {"records": kernel.gather(rows, self._allocate)}
        return self._parser.parse(rows, self._urls.__getitem__)


def _padded(numbers: Any, padding: int) -> Any:
    return np.concatenate([numbers, np.full(padding, -1, numbers.dtype)])
