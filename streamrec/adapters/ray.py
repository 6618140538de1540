"""With Ray: datasets of Ray Data from and into shards, tasks that write a dataset, and feeders.

::

    from streamrec.adapters.ray import feed, read_tfrecords, write_tfrecords

    dataset = read_tfrecords("s3://bucket/train-*.tfrecord", features)
    write_tfrecords(dataset.map_batches(clean), "s3://bucket/clean.tfrecord", shards=128)

    with feed("feeder.toml", feeders=8) as feeders:
        TorchTrainer(train, train_loop_config={"feeders": feeders}).fit()
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.adapters.ray_feeders import Feeders, feed
from streamrec.config.arguments import absolute_sources, options_of, place_text
from streamrec.config.places import absolute, escape
from streamrec.config.plain_values import byte_size
from streamrec.datasets.merge_shards import merge_index
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.errors import ConfigError, StreamrecError, WrongFeatureType
from streamrec.flow.bridge import Bridge
from streamrec.stores.open import Stores
from streamrec.streams.opening import open as open_stream
from streamrec.streams.sources import infer_features
from streamrec.suggestions import needs
from streamrec.values.columns import Arrays, BytesColumn

with needs("streamrec.adapters.ray", "ray"):
    import pyarrow as pa
    import ray.data
    from ray.data import Datasink, Datasource, ReadTask
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

    # Arrow comes with Ray.
    from streamrec.sources.arrow_fields import arrow_of, columns_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from streamrec.config.keywords import Features, Source
    from streamrec.datasets.convert import Conversion, Outcome
    from streamrec.stores.base.protocol import ObjectInfo

__all__ = ["Feeders", "feed", "read_tfrecords", "run_tasks", "write_tfrecords"]


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
    """Return a ``ray.data.Dataset`` that reads each record of the shards once.

    Numbers are columns of their dtype, or Ray's tensors if a record has several; strings are
    ``large_binary``; ragged features are lists; pictures of different sizes are tensors of variable
    shape, and are the only columns that are copied. Every record's CRCs are checked.

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
        dataset: With numbers, strings, lists and tensors of them; a row becomes an Example. If a
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
        # Tasks without records told nothing, and the dataset needs each part.
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
    *("balance", "engine", "epochs", "filter", "lanes", "length_buckets", "ordered", "pack"),
    *("rank", "remainder", "shuffle", "steps_per_epoch", "window", "world_size"),
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
        reserved = sorted(OURS & settings.keys())
        if reserved:
            raise ConfigError(
                f"{', '.join(reserved)} cannot be set for a dataset of Ray, whose tasks divide the "
                "records; leave it out, and shuffle or filter with the dataset's own methods"
            )
        options = settings.get("storage_options")
        if features == "infer":
            opening = {
                "compression": settings.get("compression", "auto"),
                "storage_options": options,
            }
            # Once, here: tasks that each inferred them could differ.
            features = infer_features(source, **opening)
        with Bridge() as loop:
            self._shards = loop.call(_list(absolute_sources(source), options_of(options)))
        self._settings = {**settings, "features": features, "batch_size": batch_size}
        # The tasks run in other directories.
        self._index = absolute(index) if isinstance(index, str) else index
        # Here and not in a task, so that the error comes at once and in this process.
        open_stream(self._urls(), **self._settings)  # checks the settings

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
        # One lane reads the task's shards one after the other, in their order.
        alone = {**self._settings, "rank": 0, "world_size": 1, "lanes": 1}
        return [{**alone, "source": urls[a:b]} for a, b in pairwise(bounds)]

    def _ranks(self, tasks: int) -> list[dict[str, Any]]:
        """Divide the records of the index: a task is a rank of a stream with as many lanes."""
        shared = {**self._settings, "source": self._urls(), "index": self._index}
        options = shared.get("storage_options")
        records = open_stream(shared["source"], index=self._index, storage_options=options)
        # A rank without a record would be a task for nothing.
        tasks = max(1, min(tasks, len(records)))
        # Rows of padding are left out of the tables; "drop" would lose records.
        shared |= {"world_size": tasks, "lanes": tasks, "remainder": "pad" if tasks > 1 else "keep"}
        return [{**shared, "rank": rank} for rank in range(tasks)]

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
    # A task is a process of its own, which needs no other to read for it.
    with open_stream(**settings, engine="thread") as stream:
        for batch in stream:
            table = arrow_of(batch, _tensors)
            yield table if batch.mask is None else table.filter(pa.array(batch.mask))


def _tensors(column: NDArray[Any] | Arrays) -> Any:
    """Return arrays, one a row, in Ray's types; those of one shape are not copied."""
    if isinstance(column, Arrays):
        return ArrowVariableShapedTensorArray.from_numpy(column.to_list())
    return ArrowTensorArray.from_numpy(column)


def convert_on_ray(
    conversion: Conversion,
    tasks: int | None,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
    **ray_remote_args: Any,
) -> Outcome:
    """Write a dataset by tasks on Ray, and complete it.

    Args:
        conversion: The dataset. Its ``workers``, by default 1, are the CPUs of each task. All nodes
            see the source and the destination under the same names.
        tasks: The number of tasks; ``None``: one for each so many CPUs of the cluster, and for each
            shard at most.
        progress: Is called with a word, the tasks that are done, and all of them.
        **ray_remote_args: Options of the tasks, as for :func:`run_tasks`.

    Raises:
        StreamrecError: That of a task that failed; or a task died more often than it may.
    """
    if not ray.is_initialized():
        ray.init()
    cores = conversion.workers or 1
    # Other nodes have other working directories.
    conversion = replace(conversion.anywhere(), workers=cores)
    count = tasks or _tasks(conversion, cores)
    options = {"num_cpus": cores, **ray_remote_args}
    done: set[int] = set()

    def tell(task: int) -> None:
        done.add(task)
        progress("writing", len(done), count)

    try:
        parts = run_tasks(conversion.run_task, count, on_done=tell, **options)
    except ray.exceptions.RayError as error:
        raise StreamrecError(
            f"a task on Ray did not end: {error}; see Ray's logs, and run the same command again"
        ) from error
    whole = _join(parts)
    for split in whole.splits:
        merge_index(split.template, storage_options=conversion.destination.storage_options)
    return whole


def _tasks(conversion: Conversion, cores: int) -> int:
    cpus = int(ray.cluster_resources().get("CPU", 1))
    return max(1, min(cpus // cores, conversion.destination.shards or cpus))


def _join(parts: list[Outcome]) -> Outcome:
    """Return what all tasks did together."""
    whole, *others = parts
    for part in others:
        whole.skipped += part.skipped
        whole.refusals += part.refusals
        for split, more in zip(whole.splits, part.splits, strict=True):
            split.records += more.records
            split.was_complete &= more.was_complete
    return whole


Result = TypeVar("Result")
RETRIES = 10
"""The most reruns of a task whose node or process died. Without an end, one that always takes
its process down would run forever."""


def run_tasks(
    run: Callable[[int, int], Result],
    tasks: int,
    *,
    on_done: Callable[[int], object] | None = None,
    **ray_remote_args: Any,
) -> list[Result]:
    """Run ``run(i, tasks)`` for each task ``i`` on Ray, and return the results in the tasks' order.

    A task whose node or process dies is run again elsewhere, so it must end the same however often
    it begins: ``streamrec.ShardedWriter`` with ``task=(i, tasks)`` does. Ray is connected to if it
    is not yet: to ``RAY_ADDRESS``, to a cluster of this machine, or to one that is started here.

    Args:
        run: Sent to the nodes, with what it refers to. ``streamrec`` must be installed there.
        tasks: The number of tasks.
        on_done: Called in this process with the number of each task that is done.
        **ray_remote_args: Options of the tasks, as for ``ray.remote``, such as ``num_cpus`` and
            ``max_retries``, by default 10.

    Raises:
        Exception: That of the first task that failed; the others are cancelled.
        ray.exceptions.RayError: A task died more often than it may.
    """
    if not ray.is_initialized():
        ray.init()
    options = {"max_retries": RETRIES, **ray_remote_args}

    def call(task: int, tasks: int) -> Result:  # since Ray takes no methods
        return run(task, tasks)

    remote = ray.remote(**options)(call)
    running = {remote.remote(task, tasks): task for task in range(tasks)}
    results: dict[int, Result] = {}
    try:
        while running:
            done, _ = ray.wait(list(running))
            for reference in done:
                results[running[reference]] = ray.get(reference)
                task = running.pop(reference)
                if on_done is not None:
                    on_done(task)
    # Ray wraps the error of a task; its cause is what a user can mend.
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    finally:
        for reference in running:
            ray.cancel(reference)
    return [results[task] for task in range(tasks)]
