"""The record that a task keeps of its shards, and what it does about those of an earlier run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from streamrec.datasets.dataset_manifest import Manifest, TaskPart
from streamrec.errors import ConfigError, StoreError
from streamrec.masking import masked
from streamrec.plan.order.shard_names import owned_shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from streamrec.datasets.dataset_manifest import WriteSettings
    from streamrec.formats.examples.feature_types import FeatureTypes
    from streamrec.plan.order.shard_names import ShardNames, Task
    from streamrec.stores.folder import Folder


@dataclass
class TaskLog:
    """A task's record, kept beside the shards until the dataset is complete."""

    folder: Folder
    name: str
    part: TaskPart
    types: FeatureTypes
    """The types of the features in all records so far."""
    records: int = 0
    """The records in shards that are whole already."""
    present: AbstractSet[str] = frozenset()
    """The names of the objects in the directory when the task began."""

    def update(self, **changes: Any) -> None:
        """Change the record, and write it."""
        self.change(**changes)
        self.write()

    def change(self, **changes: Any) -> None:
        """Change the record, but do not write it yet."""
        changes["features"] = self.types.to_dict()
        self.part = self.part.model_copy(update=changes)

    def write(self) -> None:
        """Write the record."""
        try:
            self.folder.write(self.name, self.part.encode())
        except StoreError as error:
            # Nobody knows the record's name.
            raise error.about(self.folder.url("")) from None

    def give_up(self, *staged: str) -> None:
        """Remove the record, and shards that no other run could keep."""
        # What cannot be removed now is removed by the next run.
        with suppress(StoreError):
            self.folder.remove(*staged, self.name)
            if self.part.settings.tasks == 1:  # another task may be about to write there
                self.folder.unmake()


def begin(
    folder: Folder,
    names: ShardNames,
    task: Task,
    settings: WriteSettings,
    types: FeatureTypes,
    *,
    overwrite: bool,
) -> TaskLog:
    """Look at what earlier runs left, remove what is not needed, and begin a task's record.

    Raises:
        ConfigError: There is a dataset of these names, or an unfinished one of other settings.
        StoreError: The directory cannot be made, read or written.
    """
    folder.make()
    sizes = _after_cleaning(folder, names)
    log = TaskLog(folder, names.part(task), TaskPart(settings=settings, overwrite=overwrite), types)
    log.present = sizes.keys()
    before = _before(folder, names, task) if log.name in sizes else None
    if before is None:
        manifest = Manifest.parse(_read(folder, names.manifest(), sizes))
        if manifest is not None and _is_the_same(manifest, settings, sizes):
            log.part = log.part.model_copy(update={"complete": True})
            types.update(manifest.features)
            log.records = manifest.tasks[task.number]
            return log
        _refuse_others(folder, names, sizes, log.part, manifest)
    # Without a source nobody knows whether the records are the same.
    elif before.settings == settings and settings.source is not None:
        log.part = _keep(before, sizes)
    else:
        if before.settings != settings and before.shards and not overwrite:
            raise _refusal(
                folder.url(log.name), "an unfinished dataset", _why(log.part, before, sizes)
            )
        log.part = log.part.model_copy(update={"overwrite": True})
    kept = {shard.name for shard in log.part.shards}
    folder.remove(*(name for name in names.staged_among(sizes, task) if name not in kept))
    if before is not None and not kept:
        folder.remove(*(shard.name for shard in before.shards if shard.name in sizes))
    types.update(log.part.features)
    log.records = sum(shard.records for shard in log.part.shards)
    left = tuple(_names_of(names, task, settings))
    folder.at_once(log.update, partial(folder.remove_left, left))
    return log


def _before(folder: Folder, names: ShardNames, task: Task) -> TaskPart | None:
    """Return the task's record; ``None`` where it has shards that others wrote."""
    part = TaskPart.parse(folder.read(names.part(task)))
    return part if part is not None and part.has_own_names(names, task) else None


def _after_cleaning(folder: Folder, names: ShardNames) -> dict[str, int]:
    """Return the objects' sizes, when the parts of a dataset that is complete are removed."""
    sizes = folder.sizes()
    # No part is begun beside a manifest, so these are left from the last step.
    left = names.parts_among(sizes) if names.manifest() in sizes else {}
    folder.remove(*left)
    return {name: size for name, size in sizes.items() if name not in left}


def _read(folder: Folder, name: str, sizes: dict[str, int]) -> bytes | None:
    return folder.read(name) if name in sizes else None


def _keep(before: TaskPart, sizes: dict[str, int]) -> TaskPart:
    """Return an earlier run's record with the shards that are still whole."""
    if before.settings.shards is None and before.complete:
        return before  # its shards may have their last names already
    whole = 0
    for shard in before.shards:
        if sizes.get(shard.name) != shard.bytes:
            break
        whole += 1
    complete = before.complete and whole == len(before.shards)
    if before.settings.shards is not None and not complete:
        whole = 0  # each record in turn goes to another shard, so all are written again
    changes: dict[str, Any] = {"shards": before.shards[:whole], "complete": complete}
    if whole < len(before.shards):
        changes["place"] = None
    return before.model_copy(update=changes)


def _is_the_same(manifest: Manifest, settings: WriteSettings, sizes: dict[str, int]) -> bool:
    """Return whether a complete dataset is the one to write, with all shards."""
    is_known = settings.source is not None and manifest.settings == settings
    return is_known and manifest.find_damaged(sizes) is None


def _refuse_others(
    folder: Folder,
    names: ShardNames,
    sizes: dict[str, int],
    part: TaskPart,
    manifest: Manifest | None,
) -> None:
    """Refuse to write where there is another dataset, unless it is to be replaced."""
    parts = {
        name: (other, TaskPart.parse(folder.read(name)))
        for name, other in names.parts_among(sizes).items()
    }
    ours = [name for name, (_, of) in parts.items() if of and of.settings == part.settings]
    others = [name for name in parts if name not in ours]
    shards = [] if ours else names.shards_among(sizes)
    found = next(iter([*others, *shards, *({names.manifest()} & sizes.keys())]), None)
    if found is None:
        return
    if not part.overwrite:
        there = parts[found][1] if found in others else manifest
        what = "an unfinished dataset" if found in others else "a dataset"
        raise _refusal(folder.url(found), what, _why(part, there, sizes))
    for name in others:
        folder.remove(*names.staged_among(sizes, parts[name][0]))
    folder.remove(names.manifest(), *others)


def _refusal(url: str, what: str, why: str) -> ConfigError:
    return ConfigError(
        f"{masked(url)}: there is {what} of this name{why}; choose another name, or replace it "
        "with overwrite=True (--overwrite)"
    )


def _why(part: TaskPart, there: TaskPart | Manifest | None, sizes: dict[str, int]) -> str:
    """Return why a dataset that is there is not the one to write."""
    if there is None:
        return ""
    if difference := part.settings.difference(there.settings):
        return f" ({difference})"
    if part.settings.source is None:
        return ", and no source is given that tells whether it has the same records"
    lost = there.find_damaged(sizes) if isinstance(there, Manifest) else None
    return f", whose shard {lost} is missing or has another size" if lost else ""


def _names_of(names: ShardNames, task: Task, settings: WriteSettings) -> Iterator[str]:
    """Yield what the names of all objects that a task writes begin with."""
    yield names.staged_prefix(task)
    if settings.shards is not None:
        for number in owned_shards(settings.shards, task):
            yield names.shard(number, settings.shards)
