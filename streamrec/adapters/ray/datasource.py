"""The source of Ray Data that reads shards, and the sink that writes them by ``ShardedWriter``."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from ray.data import Datasink, Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

import streamrec
from streamrec.config.arguments import absolute_sources, options_of, place_text
from streamrec.config.places import absolute, escape
from streamrec.datasets.merge_shards import merge_index
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.flow.bridge import Bridge
from streamrec.formats.examples.arrow_columns import arrow_of, columns_of
from streamrec.stores.open import Stores
from streamrec.values.columns import Arrays, BytesColumn

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from streamrec.config.keywords import Features, Source
    from streamrec.stores.base.protocol import ObjectInfo


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


OURS = {
    *("engine", "epochs", "filter", "lanes", "length_buckets", "ordered", "pack", "rank"),
    *("remainder", "shuffle", "steps_per_epoch", "world_size"),
}
"""The settings of a stream that read tasks have of their own, or that would change their parts."""


class TFRecordDatasource(Datasource):  # type: ignore[misc]
    """A source of shards, or with an index of equal parts of all records.

    Args:
        source: As for ``streamrec.open``.
        features: As for ``streamrec.open``; ``"infer"`` reads the first records here, once.
        index: As for ``streamrec.open``.
        batch_size: The records of each Arrow table.
        settings: Others of ``streamrec.open``.
    """

    def __init__(
        self,
        source: Source,
        features: Features | None,
        index: bool | str,
        batch_size: int,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__()
        taken = sorted(OURS & settings.keys())
        if taken:
            raise ConfigError(
                f"{', '.join(taken)} cannot be set for a dataset of Ray, whose tasks divide the "
                "records; leave it out, and shuffle or filter with the dataset's own methods"
            )
        options = settings.get("storage_options")
        if features == "infer":
            given = {"compression": settings.get("compression", "auto"), "storage_options": options}
            features = streamrec.infer_features(source, **given)
        with Bridge() as loop:
            self._shards = loop.call(_list(absolute_sources(source), options_of(options)))
        self._settings = {**settings, "features": features, "batch_size": batch_size}
        # The tasks run in other directories.
        self._index = absolute(index) if isinstance(index, str) else index
        streamrec.open(self._urls(), **self._settings)  # checks the settings

    def estimate_inmemory_data_size(self) -> int | None:
        """Return the bytes of all shards; ``None`` if the listing has not told them."""
        sizes = [shard.size for shard in self._shards if shard.size is not None]
        return sum(sizes) if len(sizes) == len(self._shards) else None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,  # noqa: ARG002 - Ray's interface
    ) -> list[ReadTask]:
        """Return the tasks: at most ``parallelism``, each of consecutive records."""
        parts = self._ranks(parallelism) if self._index else self._groups(parallelism)
        return [
            ReadTask(
                partial(_tables, part),
                BlockMetadata(None, None, input_files=None, exec_stats=None),
                per_task_row_limit=per_task_row_limit,
            )
            for part in parts
        ]

    def get_name(self) -> str:
        """Return the name that Ray shows for the read tasks."""
        return "StreamrecTFRecords"

    def _groups(self, tasks: int) -> list[dict[str, Any]]:
        """Divide the shards into consecutive groups."""
        urls = self._urls()
        tasks = min(tasks, len(urls))
        bounds = [len(urls) * task // tasks for task in range(tasks + 1)]
        own = {**self._settings, "rank": 0, "world_size": 1, "lanes": 1}
        return [{**own, "source": urls[a:b]} for a, b in pairwise(bounds)]

    def _ranks(self, tasks: int) -> list[dict[str, Any]]:
        """Divide the records of the index: a task is a rank of a stream with as many lanes."""
        own = {**self._settings, "source": self._urls(), "index": self._index}
        options = own.get("storage_options")
        records = streamrec.open(own["source"], index=self._index, storage_options=options)
        tasks = max(1, min(tasks, len(records)))
        own |= {"world_size": tasks, "lanes": tasks, "remainder": "pad" if tasks > 1 else "keep"}
        return [{**own, "rank": rank} for rank in range(tasks)]

    def _urls(self) -> list[str]:
        return [escape(shard.url) for shard in self._shards]


async def _list(source: str | list[str], options: dict[str, Any]) -> list[ObjectInfo]:
    stores = Stores(options)
    try:
        return await stores.resolve(source)
    finally:
        await stores.aclose()


def _tables(settings: dict[str, Any]) -> Iterator[Any]:
    """Yield the batches of a stream as Arrow tables, without rows that are padding."""
    with streamrec.open(**settings, engine="thread") as stream:
        for batch in stream:
            table = arrow_of(batch, _tensors)
            yield table if batch.mask is None else table.filter(pa.array(batch.mask))


def _tensors(column: NDArray[Any] | Arrays) -> Any:
    """Return arrays, one a row, in Ray's types; those of one shape are not copied."""
    if isinstance(column, Arrays):
        return ArrowVariableShapedTensorArray.from_numpy(column.to_list())
    return ArrowTensorArray.from_numpy(column)
