"""The source of Ray Data that reads shards."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

import streamrec
from streamrec.config.arguments import absolute_sources, options_of
from streamrec.config.places import absolute, escape
from streamrec.errors import ConfigError
from streamrec.flow.bridge import Bridge
from streamrec.formats.examples.arrow_columns import arrow_of
from streamrec.stores.open import Stores
from streamrec.values.columns import Arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from streamrec.config.keywords import Features, Source
    from streamrec.stores.base import ObjectInfo

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
            self._shards = loop.call(_listed(absolute_sources(source), options_of(options)))
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


async def _listed(source: str | list[str], options: dict[str, Any]) -> list[ObjectInfo]:
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
