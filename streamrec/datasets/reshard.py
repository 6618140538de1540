"""The writing of existing shards anew: in other numbers, sizes, compressions, orders and splits."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.config.dataset import LEAST_BUDGET
from streamrec.config.places import FILE, is_http, local_path
from streamrec.config.schemes import line_of
from streamrec.datasets.dataset_manifest import MOST, Manifest
from streamrec.datasets.external_shuffle import ExternalShuffle
from streamrec.datasets.shard_source import BUDGET
from streamrec.datasets.sharded_writer import ShardedWriter, divide
from streamrec.errors import ConfigError, StoreError
from streamrec.flow.bridge import Bridge
from streamrec.formats.examples.features import FeatureParser, infer_features
from streamrec.formats.examples.specs import FixedLenFeature, VarLenFeature
from streamrec.formats.shards.index_names import plain_url, shared_ending
from streamrec.masking import masked, masked_repr
from streamrec.plan.order.shard_names import (
    ShardNames,
    SplitShards,
    Task,
    datasets_among,
    split_shards,
)
from streamrec.stores.blocking import Folder
from streamrec.stores.open import Stores, read_beside
from streamrec.values.columns import BytesColumn, views
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from streamrec.datasets.shard_source import Progress, ShardSource
    from streamrec.plan.order.shard_names import Splits


log = logging.getLogger("streamrec.write")


def types_of(source: ShardSource) -> dict[str, Any]:
    """Return ``features`` and ``labels`` for the writer of a source's records.

    They are told where each of the source's datasets has a manifest, and no two contradict each
    other; else nothing is known.
    """
    datasets = sorted(datasets_among(map(plain_url, source.urls)), key=str)
    manifests = [_manifest(source, names) for names in datasets]
    present = [manifest for manifest in manifests if manifest is not None]
    if len(present) < len(manifests):
        return {}
    features = _union("types", [manifest.features for manifest in present])
    labels = _union("label maps", [manifest.settings.labels or {} for manifest in present])
    return {
        "features": {name: VarLenFeature(kind) for name, kind in features.items()} or None,
        "labels": labels or None,
    }


def _manifest(source: ShardSource, names: ShardNames | None) -> Manifest | None:
    if names is None:
        return None
    url = f"{names.directory}{names.manifest()}"
    if is_http(url) or plain_url(source.urls[0]) != source.urls[0]:
        with suppress(ConfigError, StoreError), Bridge() as loop:
            return loop.call(_read(source, f"{url}{shared_ending(source.urls)}"))
        return None
    return Manifest.parse(Folder(names.directory, source.storage_options).read(names.manifest()))


async def _read(source: ShardSource, url: str) -> Manifest | None:
    stores = Stores(source.storage_options)
    try:
        data = await read_beside(stores, url, source.urls, MOST, what="manifest", remedy="")
        return Manifest.parse(data)
    finally:
        await stores.aclose()


def _union(what: str, mappings: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all items, or none if two mappings have other values for a name, which is told."""
    union: dict[str, Any] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            if union.setdefault(name, value) != value:
                log.warning(
                    "the %s of the datasets contradict each other: %r is %s in one and %s in "
                    "another; their records are copied as they are, and the new manifest has no %s",
                    *(what, name, union[name], value, what),
                )
                return {}
    return union


@dataclass(frozen=True)
class Resharding:
    """The description of a dataset that is written from existing shards.

    Args:
        template: The new shards' template, as for :class:`ShardedWriter`; or a directory, with a
            slash at the end. A split's name is put after the template's stem.
        shards: The number of shards; each split has its fraction of them, and one at least.
        shard_bytes: The most bytes of a shard before compression; this or ``shards`` is given.
        compression: As for :class:`TFRecordWriter`.
        task: The task's number and the number of tasks.
        shuffle: The seed of a global shuffle; ``None`` keeps the order.
        memory: The most bytes of memory for reading and shuffling.
        splits: The splits by a hash of each record, or of the feature ``split_by``.
        split_by: The name of a feature with one value in each record.
        overwrite: Replace a dataset of the same names, when this one is complete.
        storage_options: fsspec's, for the template's filesystem.
    """

    template: str
    shards: int | None = None
    shard_bytes: int | None = None
    compression: str | None = "auto"
    task: tuple[int, int] = (0, 1)
    shuffle: int | None = None
    memory: int = 1 << 30
    splits: Splits | None = None
    split_by: str | None = None
    overwrite: bool = False
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    __repr__ = masked_repr

    def targets(self) -> list[SplitShards]:
        """Return the dataset to write, or the one of each split.

        Raises:
            ConfigError: The template gives the shards no name.
        """
        return split_shards(self.template, self.splits, self.shards, self.task[1])


class WrittenDataset(NamedTuple):
    """A dataset, or a task's part of it, that was written."""

    template: str
    records: int
    was_complete: bool = False
    """A run before wrote it, and nothing was read."""


def reshard(
    source: ShardSource, plan: Resharding, progress: Progress | None = None
) -> list[WrittenDataset]:
    """Write the records of shards anew.

    Tasks read consecutive shards of the source each; to shuffle, each task reads all of them. A run
    that was killed is run again: it reads the records again and keeps the shards that are whole. A
    run that was complete reads none.

    Returns:
        What was written of each split, in their order.

    Raises:
        ConfigError: The source's shards would be replaced, there are fewer of them than tasks, or
            as for :class:`ShardedWriter`.
        StreamrecError: A shard cannot be read or written, or is damaged; nothing of this run that
            another one could not continue is left.
    """
    targets = plan.targets()
    for target in targets:
        _refuse_own_source(source, target.template)
    writing = {"source": _facts(source, plan), **types_of(source)}
    with ExitStack() as stack:
        writers = [stack.enter_context(_writer(plan, one, writing)) for one in targets]
        # All splits or none: one pass over the source writes them all.
        was_complete = all(writer.is_complete for writer in writers)
        if not was_complete:
            _write(source, plan, writers, progress)
    return [
        WrittenDataset(target.template, writer.records, was_complete)
        for target, writer in zip(targets, writers, strict=True)
    ]


def excluded_by(source: ShardSource, plan: Resharding) -> int | None:
    """Return how many records of a task's shards are left out; ``None``: no list was named."""
    if plan.shuffle is None:
        source = source.part(Task.of(plan.task))
    return None if source.excluded is None else source.excluded.records


def _write(
    source: ShardSource, plan: Resharding, writers: list[ShardedWriter], progress: Progress | None
) -> None:
    keys = None if plan.splits is None else _SplitKeys(source, plan.split_by)
    # A shuffle takes records of all shards, so each task reads all of them.
    if plan.shuffle is None:
        source = source.part(Task.of(plan.task))
    with closing(_blocks(source, plan, progress)) as blocks:
        for block in blocks:
            numbers = plan.splits.of(keys.of(block)) if keys and plan.splits else None
            # Splits are drawn by a hash of the key, so each task and each run divides alike.
            for number, records in divide(block, numbers, len(writers)):
                writers[number].write_many(records)


def _blocks(
    source: ShardSource, plan: Resharding, progress: Progress | None
) -> Generator[BytesColumn]:
    """Yield the records to write, in the order to write them in."""
    if plan.shuffle is None:
        # Of twice the memory ranges are twice as long, so that a store is asked half as often.
        yield from source.blocks(memory=min(plan.memory, 2 * BUDGET), progress=progress)
        return
    # The shuffle holds half of its memory while the source is read.
    budget = max(LEAST_BUDGET, min(plan.memory // 4, BUDGET))
    with ExternalShuffle(plan.shuffle, memory=plan.memory, task=plan.task) as shuffle:
        with closing(source.blocks(memory=budget, progress=progress)) as blocks:
            for block in blocks:
                shuffle.add(block)
        done = 0
        for block in shuffle.blocks():
            yield block
            done += len(block.values)
            if progress is not None:
                progress("writing", done, shuffle.nbytes)


def _writer(plan: Resharding, target: SplitShards, writing: dict[str, Any]) -> ShardedWriter:
    return ShardedWriter(
        target.template,
        shards=target.shards,
        shard_bytes=plan.shard_bytes,
        task=plan.task,
        compression=plan.compression,
        overwrite=plan.overwrite,
        storage_options=plan.storage_options,
        **writing,
    )


def _facts(source: ShardSource, plan: Resharding) -> dict[str, Any]:
    """Return what determines the records of the new dataset and their order."""
    facts = {"resharded": source.facts()}
    if plan.shuffle is not None:
        facts["shuffle"] = {"seed": plan.shuffle}
    if plan.splits is not None:
        facts["splits"] = {"fractions": plan.splits.to_dict(), "by": plan.split_by}
    return facts


def _refuse_own_source(source: ShardSource, template: str) -> None:
    """Refuse to replace what is being read: a run that is killed could not be run again."""
    names = ShardNames.parse(template)
    # A shard may be named by a link or another spelling of its scheme; it is the same object.
    directory = _one_name(local_path(names.directory))
    below = map(_one_name, source.urls)
    names_there = [url.removeprefix(directory) for url in below if url.startswith(directory)]
    if replaced := names.shards_among(names_there):
        raise ConfigError(
            f"{masked(names.directory + replaced[0])} is read, but a new shard would replace it; "
            "write to another name, check it with streamrec verify --against, and then delete the "
            "old shards"
        )


def _one_name(url: str) -> str:
    """Return the name by which a place is compared, as users may name it in several ways."""
    kind = line_of(url).name
    if kind != "file":
        return f"{kind}://{url.partition('://')[2]}"
    directory, name = os.path.split(url.removeprefix(FILE))
    return os.path.join(os.path.realpath(directory), name)  # noqa: PTH118 - keeps a slash at the end


class _SplitKeys:
    """The keys by which records are divided: their bytes, or a feature's value."""

    def __init__(self, source: ShardSource, feature: str | None) -> None:
        self._feature = feature
        if feature is None:
            return
        # The type from the first records: the parser then refuses a record of another one.
        spec = infer_features(source.first_records()).get(feature)
        if not isinstance(spec, FixedLenFeature | VarLenFeature):
            raise ConfigError(
                f"there is no feature {feature!r} in the first records; name one that each record "
                "has"
            )
        self._parser = FeatureParser({feature: FixedLenFeature((), spec.dtype)})

    def of(self, records: BytesColumn) -> Iterable[bytes | memoryview]:
        """Return the key of each record: integers are decimal text.

        Raises:
            ConfigError: The feature is of another type.
        """
        if self._feature is None:
            return views(records)
        columns = self._parser.parse_parts(RecordRows.from_column(records)).context
        column: Any = columns[self._feature]
        if isinstance(column, BytesColumn):
            return views(column)
        # Floats as text depend on the program that writes them, so they are no keys.
        if column.dtype.kind != "i":
            raise ConfigError(
                f"feature {self._feature} is {column.dtype}, which cannot divide records; name a "
                "feature of bytes or integers"
            )
        return [b"%d" % value for value in column.tolist()]
