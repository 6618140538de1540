"""With Ray: datasets of Ray Data from shards and into shards, and tasks that write a dataset.

::

    from streamrec.adapters.ray import read_tfrecords, write_tfrecords

    dataset = read_tfrecords("s3://bucket/train-*.tfrecord", features)
    write_tfrecords(dataset.map_batches(clean), "s3://bucket/clean.tfrecord", shards=128)
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from streamrec.config.extras import needs
from streamrec.config.validation import byte_size

with needs("streamrec.adapters.ray", "ray"):
    import ray.data

    from streamrec.adapters.ray.datasource import TFRecordDatasink, TFRecordDatasource
    from streamrec.adapters.ray.tasks import run_tasks

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from streamrec.config.keywords import Features, Source

__all__ = ["read_tfrecords", "run_tasks", "write_tfrecords"]


def read_tfrecords(
    source: Source,
    features: Features | None = "infer",
    *,
    index: bool | str = False,
    batch_size: int = 1024,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Return a ``ray.data.Dataset`` of shards, each record of which is read once.

    Numbers are columns of their dtype, and Ray's tensors where a record has several; strings are
    ``large_binary``; ragged features are lists; pictures of different sizes are tensors of variable
    shape, which are copied, as nothing else is. Every record's CRCs are checked.

    Args:
        source: As for ``streamrec.open``.
        features: As for ``streamrec.open``; ``None`` gives one column ``records``, serialized.
        index: Read by the dataset's index, as for ``streamrec.open``: then the read tasks have
            equal parts of the records, however many shards there are. Without it, a task reads
            whole shards, so there are no more tasks than shards.
        batch_size: The records of each Arrow table that is read.
        override_num_blocks: The number of read tasks, as Ray's own readers have it.
        concurrency: The most tasks at once, as for ``ray.data.read_datasource``.
        ray_remote_args: Options of the tasks, as for ``ray.data.read_datasource``.
        **settings: Others of ``streamrec.open`` that leave order and ranks alone, such as
            ``storage_options``, ``memory_budget``, ``dtypes``, ``map`` and ``on_corrupt``.

    Raises:
        ConfigError: A setting is wrong.
        StreamrecError: The source cannot be listed, or its first records not be read.
    """
    datasource = TFRecordDatasource(source, features, index, batch_size, settings)
    return ray.data.read_datasource(
        datasource,
        override_num_blocks=override_num_blocks,
        concurrency=concurrency,
        **(ray_remote_args or {}),
    )


def write_tfrecords(
    dataset: Any,
    template: str | os.PathLike[str],
    *,
    shards: int | None = None,
    shard_bytes: int | str | None = None,
    tasks: int | None = None,
    serialized: str | None = None,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Write a ``ray.data.Dataset`` as shards, with an index and a manifest beside them.

    Each write task has shards of its own, and each object appears whole or not at all. A task that
    Ray runs again, as when its node died, ends with the same objects. When all tasks are done, this
    process completes the dataset. Ray divides the dataset into the tasks' parts, so all of it is in
    the object store, or spilled to disk, before the first part is written.

    Args:
        dataset: With numbers, strings, lists and tensors of them; a row becomes an Example. Where a
            value is null, the Example has no value of the feature.
        template: As for ``streamrec.ShardedWriter``, in a store or a directory of all nodes.
        shards: The number of shards. Either this or ``shard_bytes`` is given.
        shard_bytes: The most bytes of a shard, before compression.
        tasks: The number of write tasks. By default, one for each shard; with ``shard_bytes``, one
            for each so many bytes of the dataset in memory.
        serialized: The name of a column of serialized records, which are written as they are;
            other columns are left out.
        concurrency: The most tasks at once, as for ``Dataset.write_datasink``.
        ray_remote_args: Options of the tasks, as for ``Dataset.write_datasink``.
        **settings: Others of ``streamrec.ShardedWriter``: ``features``, ``index``, ``compression``,
            ``labels``, ``source``, ``overwrite``, ``storage_options``.

    Raises:
        ConfigError: An argument is wrong, or there is a dataset of these names.
        StoreError: The directory cannot be read or written.
        ray.exceptions.RayTaskError: A task failed, with its error as the cause.
    """
    tasks = tasks or shards
    settings |= {"shards": shards, "shard_bytes": shard_bytes}
    # Refuses wrong arguments before anything is computed.
    TFRecordDatasink(template, tasks or 1, serialized, **settings).check()
    if tasks is None:
        dataset = dataset.materialize()
        tasks = max(1, ceil(dataset.size_bytes() / byte_size("shard_bytes", shard_bytes)))
    dataset.repartition(tasks).write_datasink(
        TFRecordDatasink(template, tasks, serialized, **settings),
        ray_remote_args=dict(ray_remote_args or {}),
        concurrency=concurrency,
    )
