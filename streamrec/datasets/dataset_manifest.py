"""The documents beside a dataset's shards: its manifest, with class names, and tasks' records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticSerializationError

from streamrec.config.arguments import options_of, source_texts
from streamrec.errors import ConfigError, MalformedIndex, ObjectNotFound
from streamrec.flow.bridge import Bridge
from streamrec.flow.cleanup import all_of
from streamrec.formats.shards.index import ShardEntry, check_entry
from streamrec.formats.shards.index_names import plain_url, shared_ending
from streamrec.masking import masked
from streamrec.plan.order.shard_names import MOST_SHARDS, datasets_among, owned_shards
from streamrec.stores.open import Stores, read_beside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config.keywords import Source
    from streamrec.plan.order.shard_names import ShardNames, Task


MOST = 64 << 20
"""The most bytes of a manifest; one of 100,000 shards has 8 MB."""
_Count: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 63)]
_Crc: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 32)]
_Shards: TypeAlias = Annotated[int, Field(ge=1, le=MOST_SHARDS)]
Kind: TypeAlias = Literal["bytes", "float32", "int64"]


class _JSONDocument(BaseModel):
    """A JSON object, the same bytes for the same content."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    indent: ClassVar[int | None] = None

    def encode(self) -> bytes:
        """Serialize the document."""
        try:
            text = self.model_dump_json(indent=self.indent)
        except PydanticSerializationError:  # a name that is not UTF-8
            # json writes half of a character as an escape, which pydantic refuses.
            text = json.dumps(self.model_dump(), indent=self.indent)
        return text.encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes | None) -> Self | None:
        """Parse what :meth:`encode` gave; ``None`` for no bytes, damaged ones and other forms."""
        if data is None:
            return None
        try:
            if b"\\udc" in data:  # in a name that is not UTF-8
                return cls.model_validate(json.loads(data))
            return cls.model_validate_json(data)
        except (ValueError, RecursionError):
            return None


class WriteSettings(_JSONDocument):
    """The settings that determine a dataset's shards, and the name of the records' source."""

    shards: _Shards | None
    shard_bytes: int | None
    tasks: _Shards
    compression: str
    index: bool
    labels: dict[str, int] | dict[str, dict[str, int]] | None
    """The numbers of the classes by name, or those of each feature that has classes."""
    source: Any

    def difference(self, there: WriteSettings) -> str:
        """Return what another dataset's settings have that these have not, for people."""
        mine, other = self.model_dump(), there.model_dump()
        lines = [
            f"{self._words_for(name)} is {_show(other[name])} in that one, and "
            f"{_show(mine[name])} in this one"
            for name in mine
            # These may be thousands of names long; they are compared below.
            if mine[name] != other[name] and name not in ("source", "labels")
        ]
        if self.labels != there.labels:
            lines.append("it has other labels")
        return "; ".join([*lines, *_source_difference(self.source, there.source)])

    def _words_for(self, name: str) -> str:
        """Return a setting's name; of the shards that a user asks for, a split gets a part."""
        split = self.source.get("split") if isinstance(self.source, dict) else None
        if name != "shards" or not split:
            return name
        return f"the part of shards that the split {split!r} gets"


def _show(value: Any) -> str:
    return "not set" if value is None else str(value)


def _source_difference(mine: Any, there: Any) -> list[str]:
    """Return the names of what is different in two sources: their values may be long."""
    if mine == there:
        return []
    if not (isinstance(mine, dict) and isinstance(there, dict)):
        return ["it has another source"]
    names = [name for name in mine | there if mine.get(name) != there.get(name)]
    return [f"its source differs in {', '.join(names)}"]


class ShardFacts(_JSONDocument):
    """The facts of a complete shard."""

    name: str
    """The object's name; of a task's shard that has no number yet, the hidden one."""
    records: _Count
    bytes: _Count
    """The object's size."""


class IndexedShard(ShardFacts):
    """A complete shard with its entry in the index."""

    begins: list[_Count]
    first_records: list[_Count]
    crcs: list[_Crc]

    @property
    def entry(self) -> ShardEntry:
        """The entry."""
        return ShardEntry(
            name=self.name,
            size=self.bytes,
            records=self.records,
            begins=self.begins,
            first_records=self.first_records,
            crcs=self.crcs,
        )


class SourcePlace(_JSONDocument):
    """A place in a task's part of a source, and what comes before it."""

    version: str
    """That of streamrec: others may cut the source into other pieces."""
    pieces: _Count
    amount: _Count
    """The part of the source's total."""
    skipped: _Count
    """The records that were wrong."""
    records: list[_Count]
    """The records of each split."""


class TaskPart(_JSONDocument):
    """The record that a task keeps of its shards until the dataset is complete."""

    version: Annotated[int, Field(ge=2, le=2)] = 2
    settings: WriteSettings
    overwrite: bool = False
    """True to remove other shards of the same names when the dataset is complete."""
    complete: bool = False
    features: dict[str, Kind] = {}
    """The type of each feature."""
    shards: list[IndexedShard] = []
    place: SourcePlace | None = None
    """Records after it are not yet in the shards, or not all; ``None``: it was not marked."""

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        """Check what will be written into an index; compressed shards have none."""
        try:
            for shard in self.shards if self.settings.index else ():
                check_entry(shard.entry)
        except MalformedIndex as error:
            raise ValueError(error.message) from None
        return self

    def has_own_names(self, names: ShardNames, task: Task) -> bool:
        """Return whether all shards have names of this task's, each once, so that it wrote them.

        A record comes from outside, and shards that it names are renamed and removed.
        """
        present = [shard.name for shard in self.shards]
        if self.settings.tasks != task.tasks or any("/" in name for name in present):
            return False
        if len(set(present)) < len(present):
            return False
        count = self.settings.shards
        if count is None:
            return sorted(present) == names.staged_among(present, task)
        expected = {names.shard(n, count) for n in owned_shards(count, task)}
        return set(present) == expected if self.complete else set(present) <= expected


class Manifest(_JSONDocument):
    """The facts of a complete dataset."""

    indent = 2
    version: Annotated[int, Field(ge=1, le=1)] = 1
    written_by: str
    records: _Count
    bytes: _Count
    features: dict[str, Kind]
    """The type of each feature."""
    settings: WriteSettings
    tasks: list[_Count]
    """The records of each task."""
    shards: list[ShardFacts]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        totals = self.records, self.records, self.bytes, self.settings.tasks
        parts = (
            sum(self.tasks),
            sum(shard.records for shard in self.shards),
            sum(shard.bytes for shard in self.shards),
            len(self.tasks),
        )
        if parts != totals:
            raise ValueError("its parts do not add up")
        return self

    def find_damaged(self, sizes: Mapping[str, int]) -> str | None:
        """Return the name of a shard that is not among objects, or has another size there."""
        lost = (shard.name for shard in self.shards if sizes.get(shard.name) != shard.bytes)
        return next(lost, None)


WHO_KEEPS = (
    "streamrec write keeps those of picture folders and of ClassLabel columns, and ShardedWriter "
    "takes labels={'cat': 0, ...}"
)


def labels(
    source: Source, feature: str | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """Return the number of each class by its name: ``streamrec.labels``.

    The numbers are read from the manifest beside the shards. ``streamrec write`` puts them there
    for picture folders and for columns of Hugging Face's ``ClassLabel``, and
    ``ShardedWriter(labels=...)`` for any dataset.

    Args:
        source: As for ``streamrec.open``; if it names several datasets, all must have the same
            numbers.
        feature: The feature that holds the numbers; needed where several features have names.
        storage_options: fsspec's, for the source's filesystem.

    Raises:
        ConfigError: A dataset has no manifest or no label names, or two contradict each other.
        StoreError: The shards cannot be listed, or a manifest cannot be read.
    """
    texts, options = source_texts(source), options_of(storage_options)
    with Bridge() as loop:
        manifests = loop.call(_manifests(texts, options))
    union: dict[str, int] = {}
    for url, manifest in manifests.items():
        for name, number in _numbers(masked(url), manifest, feature).items():
            if union.setdefault(name, number) != number:
                raise ConfigError(
                    f"the datasets contradict each other: the class {name!r} is {union[name]} in "
                    f"one, and {number} in {masked(url)}; read them apart"
                )
    return union


async def _manifests(source: str | list[str], options: dict[str, Any]) -> dict[str, Manifest]:
    """Return the manifests of all datasets of a source, by their URLs."""
    stores = Stores(options)
    shards: list[str] = []
    remedy = "give labels a source in s3:// or gs://"

    async def manifest_at(url: str) -> Manifest:
        try:
            data = await read_beside(stores, url, shards, MOST, what="manifest", remedy=remedy)
        except ObjectNotFound:
            raise ConfigError(
                f"{masked(url)}: there is no manifest, so no label names; {WHO_KEEPS}"
            ) from None
        manifest = Manifest.parse(data)
        if manifest is None:
            raise ConfigError(f"{masked(url)}: this manifest is damaged; write the dataset anew")
        return manifest

    try:
        shards += [shard.url for shard in await stores.resolve(source)]
        names = sorted(datasets_among(map(plain_url, shards)), key=str)
        if None in names:
            raise ConfigError(
                f"{masked(shards[0])}: not all shards have names such as x-00000-of-00004, so "
                f"they do not belong to a dataset with a manifest and label names; {WHO_KEEPS}"
            )
        ending = shared_ending(shards)
        urls = [f"{each.directory}{each.manifest()}{ending}" for each in names if each is not None]
        return dict(zip(urls, await all_of(map(manifest_at, urls)), strict=True))
    finally:
        await stores.aclose()


def _numbers(where: str, manifest: Manifest, feature: str | None) -> dict[str, int]:
    """Return the numbers of a feature's classes."""
    classes = manifest.settings.labels
    if not classes:
        raise ConfigError(f"{where}: the manifest has no label names; {WHO_KEEPS}")
    of_feature = {name: value for name, value in classes.items() if isinstance(value, dict)}
    plain = {name: value for name, value in classes.items() if isinstance(value, int)}
    if feature is None and not of_feature:
        return plain
    if feature is None and len(of_feature) == 1:
        return next(iter(of_feature.values()))
    if feature in of_feature:
        return of_feature[feature]
    if plain and feature in manifest.features:
        return plain
    names = sorted(of_feature or manifest.features)
    trouble = (
        "several features have label names"
        if feature is None
        else (f"the feature {feature!r} has no label names")
    )
    raise ConfigError(f"{where}: {trouble}; name one of {', '.join(map(repr, names))}")
