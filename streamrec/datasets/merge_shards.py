"""The last step of writing a dataset: its shards' names, its index and its manifest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from streamrec.config.arguments import options_of, place_text
from streamrec.config.places import escape
from streamrec.datasets.dataset_manifest import Manifest, ShardFacts, TaskPart
from streamrec.errors import ConfigError, StoreError
from streamrec.flow.bridge import Bridge
from streamrec.formats.shards.index import Index
from streamrec.formats.shards.index_names import index_url
from streamrec.masking import masked
from streamrec.plan.order.shard_names import ShardNames, Task
from streamrec.stores.blocking import Folder
from streamrec.stores.open import Stores
from streamrec.version import __version__

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from streamrec.datasets.dataset_manifest import IndexedShard, Kind
    from streamrec.datasets.task_shards import TaskLog
    from streamrec.stores.base.protocol import ObjectInfo


def merge_index(
    template: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Complete a dataset that several tasks wrote with ``ShardedWriter``.

    Gives shards that were written with ``shard_bytes`` their final names, writes the index and the
    manifest, and removes the logs of the tasks. Run it once, when all tasks are done; if it is
    killed, run it again. A dataset that is complete already stays as it is.

    Args:
        template: The template that the tasks were given.
        storage_options: The options for fsspec, for a URL.

    Raises:
        ConfigError: A task is missing or not complete, or a feature has another type in another
            task.
        StoreError: A shard is missing, or an object cannot be written.
    """
    names = ShardNames.parse(place_text(template))
    merge_tasks(Folder(names.directory, options_of(storage_options)), names)


def merge_tasks(folder: Folder, names: ShardNames) -> None:
    """Complete a dataset; see ``merge_index``."""
    sizes = folder.sizes()
    tasks = names.parts_among(sizes)
    # The manifest is written last, so where it is, a run before was killed while it removed the
    # tasks' records.
    if names.manifest() not in sizes:
        _complete(folder, names, _parts(folder, names, tasks), sizes.keys())
    folder.remove(*tasks)


def complete(log: TaskLog, names: ShardNames) -> None:
    """Complete the dataset of one task, whose last record is at hand and not yet written."""
    # What was there at the beginning, and what was written since: no second listing is needed.
    present = {*log.present, *(shard.name for shard in log.part.shards)}
    _complete(log.folder, names, [log.part], present, log.write)
    log.folder.remove(log.name)


def _complete(
    folder: Folder,
    names: ShardNames,
    parts: Sequence[TaskPart],
    present: AbstractSet[str],
    *first: Callable[[], None],
) -> None:
    """Give shards their last names, and write the index and at last the manifest.

    Args:
        folder: The directory.
        names: The names in it.
        parts: The records of all tasks.
        present: The names of what may be there.
        first: Calls to be done before anything is removed.
    """
    features = _features(parts)
    staged = [shard for part in parts for shard in part.shards]
    last = _last_names(names, parts[0], staged)
    shards = [shard.model_copy(update={"name": last[shard.name]}) for shard in staged]
    members = [shard.name for shard in shards]
    index = _index_name(folder, members)
    # Each is independent of the others: what is left of a run that was killed is named again.
    renamed = {name: other for name, other in last.items() if name != other and name in present}
    # Shards by size know their number only now.
    if renamed:
        sizes = {shard.name: shard.bytes for shard in staged}
        folder.at_once(*first, partial(folder.publish, renamed, sizes))
        first = ()
    is_new = not any(part.overwrite for part in parts)
    others = () if is_new else _others(folder, names, members, present)
    folder.at_once(
        *first,
        partial(_check_stored, folder, names, shards),
        partial(folder.remove, *renamed, *others),
        # Uploads of an index, and copies of long shards, that were killed in this step.
        partial(folder.remove_left, [index, *members]),
    )
    # The manifest comes last: where it is, all else is.
    if parts[0].settings.index:
        entries = tuple(shard.entry for shard in shards)
        # Before the manifest: a dataset that counts as complete has its index.
        folder.write(index, Index(entries).encode())
    folder.write(names.manifest(), _manifest(parts, features, shards).encode())


def _parts(folder: Folder, names: ShardNames, tasks: Mapping[str, Task]) -> list[TaskPart]:
    """Return the records of all tasks, in their order.

    Raises:
        ConfigError: One is missing, not complete, or of other settings.
    """
    read = folder.at_once(*(partial(folder.read, name) for name in tasks))
    by_task = dict(zip(tasks.values(), map(TaskPart.parse, read), strict=True))
    counts = {task.tasks for task in by_task}
    if len(counts) != 1:
        totals = " and ".join(map(str, sorted(counts)))
        what = f"runs of {totals} tasks left their parts" if counts else "no task has left its part"
        raise ConfigError(
            f"{masked(folder.url(names.pattern()))}: {what}; run the tasks of one dataset, each "
            "to its end"
        )
    # Records of another number of tasks would be of another division of the source.
    (count,) = counts
    every = [by_task.get(Task(number, count)) for number in range(count)]
    parts = [part for part in every if part is not None and part.complete]
    if len(parts) < count:
        rest = [str(n) for n, part in enumerate(every) if part is None or not part.complete]
        raise ConfigError(
            f"{masked(folder.url(names.pattern()))}: {len(rest)} of {count} tasks are not "
            f"complete ({', '.join(rest[:20])}); run them to their end, and merge again"
        )
    for number, part in enumerate(parts):
        if part.settings != parts[0].settings:
            raise ConfigError(
                f"{masked(folder.url(names.pattern()))}: task {number} had other settings than "
                "task 0; run all tasks with the same arguments"
            )
        if not part.has_own_names(names, Task(number, count)):
            raise ConfigError(
                f"{masked(folder.url(names.pattern()))}: the record of task {number} names shards "
                "that it did not write; run the task again with overwrite=True"
            )
    return parts


def _features(parts: Sequence[TaskPart]) -> dict[str, Kind]:
    """Return the types of all tasks' features."""
    types: dict[str, tuple[Kind, int]] = {}
    for number, part in enumerate(parts):
        for name, kind in part.features.items():
            earlier, first = types.setdefault(name, (kind, number))
            if earlier != kind:
                raise ConfigError(
                    f"feature {name}: it is {earlier} in the shards of task {first}, but {kind} in "
                    f"those of task {number}; give it one type, and run one of them again"
                )
    return {name: types[name][0] for name in sorted(types)}


def _last_names(
    names: ShardNames, part: TaskPart, shards: Sequence[IndexedShard]
) -> dict[str, str]:
    """Return the last name of each shard by its present one."""
    if part.settings.shards is not None:
        return {shard.name: shard.name for shard in shards}
    return {shard.name: names.shard(number, len(shards)) for number, shard in enumerate(shards)}


def _manifest(
    parts: Sequence[TaskPart], features: dict[str, Kind], shards: Sequence[IndexedShard]
) -> Manifest:

    return Manifest(
        written_by=f"streamrec {__version__}",
        records=sum(shard.records for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        features=features,
        settings=parts[0].settings,
        tasks=[sum(shard.records for shard in part.shards) for part in parts],
        shards=[
            ShardFacts(name=shard.name, records=shard.records, bytes=shard.bytes)
            for shard in shards
        ],
    )


def _others(
    folder: Folder, names: ShardNames, ours: Sequence[str], present: AbstractSet[str]
) -> list[str]:
    """Return the names of an older dataset's shards and indexes."""
    others = sorted(set(names.shards_among(present)) - set(ours))
    by_count: dict[str, list[str]] = {}
    for name in (*others, *ours):
        # The last five characters are the number of shards: one dataset each.
        by_count.setdefault(name.removesuffix(names.suffix)[-5:], []).append(name)
    indexes = {_index_name(folder, group) for group in by_count.values()}
    return [*others, *sorted(indexes & present)]


def _check_stored(folder: Folder, names: ShardNames, shards: Sequence[IndexedShard]) -> None:
    """Check that a listing has all shards, of the sizes that were written.

    Raises:
        StoreError: A shard is missing, or has another size.
    """
    with Bridge() as loop:
        objects = loop.call(_list(folder, names.pattern(len(shards))))
    infos = {info.url.rpartition("/")[2]: info for info in objects}
    for shard in shards:
        info = infos.get(shard.name)
        if info is None or info.size != shard.bytes:
            raise StoreError(
                f"the shard {'is missing' if info is None else 'has another size than written'}; "
                "run its task again, with overwrite=True",
                url=folder.url(shard.name),
            )


async def _list(folder: Folder, pattern: str) -> list[ObjectInfo]:
    stores = Stores(folder.options)
    try:
        return await stores.resolve(escape(folder.url("")) + pattern)
    finally:
        await stores.aclose()


def _index_name(folder: Folder, shards: Sequence[str]) -> str:
    return index_url([folder.url(name) for name in shards]).rpartition("/")[2]
