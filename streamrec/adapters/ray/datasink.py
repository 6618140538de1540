"""The sink of Ray Data that writes shards: a task of ``ShardedWriter`` for each write task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.data import Datasink
from ray.data.block import BlockAccessor

from streamrec.config.arguments import place_text
from streamrec.config.places import absolute
from streamrec.datasets.merge_shards import merge_index
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.formats.examples.arrow_columns import columns_of
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable


class TFRecordDatasink(Datasink):  # type: ignore[misc]
    """A sink whose write tasks are the tasks of one dataset.

    Args:
        template: As for :class:`ShardedWriter`.
        tasks: The most write tasks that there may be; tasks without records get empty parts.
        serialized: The name of a column of serialized records, which is written alone.
        **settings: The others of :class:`ShardedWriter`.
    """

    def __init__(
        self,
        template: str | os.PathLike[str],
        tasks: int,
        serialized: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        # The tasks run in other directories.
        self._template = absolute(place_text(template))
        self._tasks = tasks
        self._serialized = serialized
        self._settings = settings

    def check(self) -> None:
        """Refuse wrong arguments and a dataset that is there, and clean up what is to be replaced.

        Raises:
            ConfigError: An argument is wrong, or there is a dataset of these names.
        """
        # Ray may give tasks other records than in a run before. A source would keep their shards.
        settings = {**self._settings, "source": None}
        ShardedWriter(self._template, task=(0, self._tasks), **settings).discard()

    def on_write_start(self, schema: Any = None) -> None:  # noqa: ARG002 - Ray's interface
        """Check once more: the dataset may have been computed for hours."""
        self.check()

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Write the blocks of one task, and return its number."""
        task: int = ctx.task_idx
        if task >= self._tasks:
            raise ConfigError(
                f"the dataset has more blocks than the {self._tasks} tasks of the sink; use "
                f"write_tfrecords, or repartition({self._tasks}) before"
            )
        with self._writer(task) as writer:
            for block in blocks:
                for batch in BlockAccessor.for_block(block).to_arrow().to_batches():
                    writer.write_many(self._records(batch))
        return task

    def on_write_complete(self, write_result: Any) -> None:
        """Give tasks that had no records their empty parts, and complete the dataset."""
        for task in sorted(set(range(self._tasks)) - set(write_result.write_returns)):
            self._writer(task).close()
        options = self._settings.get("storage_options")
        merge_index(self._template, storage_options=options)

    def get_name(self) -> str:
        """Return the name that Ray shows for the write tasks."""
        return "StreamrecTFRecords"

    def _writer(self, task: int) -> ShardedWriter:
        # A task that ran before in this write is replaced; other datasets were refused before.
        settings = {**self._settings, "overwrite": True}
        return ShardedWriter(self._template, task=(task, self._tasks), **settings)

    def _records(self, batch: Any) -> Any:
        if self._serialized is None:
            return columns_of(batch)
        name = self._serialized
        if name not in batch.schema.names:
            raise ConfigError(
                f"the dataset has no column {name!r} of serialized records, only "
                f"{', '.join(batch.schema.names)}; name one of them"
            )
        column = columns_of(batch.select([name]))[name]
        if not isinstance(column, BytesColumn):
            raise WrongFeatureType(
                "the column holds no serialized records; name a column of bytes without nulls",
                feature=name,
            )
        return column
