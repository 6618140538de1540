"""The records of existing shards, in whole blocks, for the tools that write them anew."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from streamrec.config import DatasetSettings, validate
from streamrec.config.arguments import options_of, place_text, source_texts
from streamrec.config.dataset import LEAST_BUDGET
from streamrec.config.machine import automatic_budget
from streamrec.config.places import absolute, escape
from streamrec.flow.bridge import Bridge
from streamrec.flow.cleanup import all_of
from streamrec.masking import masked, masked_repr
from streamrec.pipeline.excluded_keys import read_excluded
from streamrec.pipeline.terms.exclusions import find_records, read_list
from streamrec.plan.order.shard_names import owned_shards
from streamrec.plan.state.fingerprint import relative_names
from streamrec.stores.base.protocol import ObjectInfo, bare_url, read_range
from streamrec.stores.base.source_text import content_name
from streamrec.stores.open import Stores
from streamrec.streams.sources import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from os import PathLike

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.terms.exclusions import Exclusions
    from streamrec.plan.order.shard_names import Task
    from streamrec.values.columns import BytesColumn

BUDGET = 128 << 20
"""Bytes of memory for reading by default."""
BLOCK = 2 << 20
"""Bytes of a block's records, if they are as long as the first ones."""
MOST_RECORDS = 1 << 13
"""The most records of a block: later ones may be longer."""
FEW = 128
"""Records whose mean length tells how many make a block."""
LOOKS = 32
"""Shards whose sizes are looked up at once."""

Progress: TypeAlias = "Callable[[str, int, int | None], None]"
"""A function that is called with a word for the work, the bytes done, and all bytes."""


@dataclass(frozen=True)
class ShardSource:
    """Shards to read from the first record of the first one to the last record of the last one."""

    objects: tuple[ObjectInfo, ...]
    """The shards, sorted by URL, with their sizes and versions."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    max_record_bytes: int | None = None
    """Bytes of the longest record; ``None``: the default memory budget of a stream."""
    excluded: Exclusions | None = None
    """The records that are left out; ``None``: no list was named."""

    __repr__ = masked_repr

    @classmethod
    def find(
        cls,
        urls: str | PathLike[str] | Sequence[str | PathLike[str]],
        storage_options: Mapping[str, Any] | None = None,
        max_record_bytes: int | None = None,
        exclude: str | PathLike[str] | None = None,
        progress: Progress = lambda *_: None,
    ) -> ShardSource:
        """Find the shards, with their sizes and versions.

        Args:
            urls: As ``streamrec.open`` takes them.
            storage_options: fsspec's, for the URLs' filesystem.
            max_record_bytes: The longest record that is read.
            exclude: The list of the records to leave out, as ``streamrec.open`` takes it.
            progress: Called during a long listing.

        Raises:
            ConfigError: A URL or the list cannot be understood.
            StoreError: The shards cannot be listed, or one does not exist, or the list.
        """
        options = options_of(storage_options)
        listed = None if exclude is None else absolute(place_text(exclude))
        with Bridge() as loop:
            objects, excluded = loop.call(_find(source_texts(urls), options, listed, progress))
        return cls(tuple(objects), options, max_record_bytes, excluded)

    @property
    def urls(self) -> list[str]:
        """The shards' URLs."""
        return [shard.url for shard in self.objects]

    @property
    def nbytes(self) -> int:
        """The size of all shards, as they are stored."""
        return sum(shard.size or 0 for shard in self.objects)

    def part(self, task: Task) -> ShardSource:
        """Return a task's shards: consecutive ones.

        Raises:
            ConfigError: There are fewer shards than tasks.
        """
        numbers = owned_shards(len(self.objects), task)
        own = self.objects[numbers.start : numbers.stop]
        excluded = None if self.excluded is None else self.excluded.of_shards(numbers)
        return replace(self, objects=own, excluded=excluded)

    def facts(self) -> dict[str, Any]:
        """Return facts that tell whether the records are the same ones, as plain data."""
        names = relative_names([content_name(url) for url in self.urls])
        lines = [
            f"{name}\t{shard.size}\t{shard.etag}\n"
            for name, shard in zip(names, self.objects, strict=True)
        ]
        facts = {
            "first_shard": masked(bare_url(self.urls[0])),
            "shards": len(lines),
            "bytes": self.nbytes,
            "digest": _digest_of(lines),
        }
        if self.excluded is None:
            return facts
        left_out = (f"{shard}\t{number}\n" for shard, number in self.excluded.pairs(names))
        return facts | {
            "excluded": {"records": self.excluded.records, "digest": _digest_of(left_out)}
        }

    def blocks(
        self, *, memory: int = BUDGET, progress: Progress | None = None
    ) -> Generator[BytesColumn]:
        """Yield the records of :meth:`batches`."""
        with closing(self.batches(memory=memory, progress=progress)) as read:
            for batch in read:
                yield batch.records

    def batches(
        self, *, memory: int = BUDGET, what: str = "reading", progress: Progress | None = None
    ) -> Generator[Batch]:
        """Yield the records, some MiB at a time, when their CRCs are checked.

        Args:
            memory: The most bytes in flight.
            what: A word for the work.
            progress: Called with this word, the bytes read and all bytes.

        Raises:
            StreamrecError: A shard cannot be read, or is damaged.
        """
        total = self.nbytes
        ends = list(accumulate(info.size or 0 for info in self.objects))
        done = shard = 0
        with closing(self._batches(memory)) as read:
            for batch in read:
                last = int(batch.origin.shards[-1])
                if last != shard:
                    # The shards before are done, whatever their bytes were when decompressed.
                    shard, done = last, ends[last - 1]
                # Of a compressed shard, more bytes come than are stored.
                done = min(done + len(batch.records.values), ends[shard])
                if progress is not None:
                    progress(what, done, total)
                yield batch

    def first_records(self) -> list[bytes]:
        """Return the first records, a few hundred at most, of one small request or two."""
        settings = self._settings(LEAST_BUDGET, None)
        settings = settings.model_copy(update={"max_concurrency": 1, "prefetch": 1})
        records: list[bytes] = []
        with closing(batches(settings)) as read:
            for batch, _ in read:
                records += batch.records.to_list()
                if len(records) >= FEW:
                    break
        return records

    def _batches(self, memory: int) -> Generator[Batch]:
        few = self.first_records()
        mean = sum(map(len, few)) // max(1, len(few)) + 1
        # Batches are counted in records, so the first ones tell how many make a block of some MiB.
        settings = self._settings(memory, min(MOST_RECORDS, BLOCK // mean + 1))
        with closing(batches(settings)) as read:
            for batch, _ in read:
                yield batch

    def _settings(self, memory: int, batch_size: int | None) -> DatasetSettings:
        values = {
            "source": list(map(escape, self.urls)),
            # One lane: the records of one shard after those of the other, in order.
            "lanes": 1,
            "batch_size": batch_size,
            "memory_budget": memory,
            "max_record_bytes": self.max_record_bytes or automatic_budget(),
            "storage_options": dict(self.storage_options),
        }
        if self.excluded is not None:
            values["exclude"] = self.excluded.pairs(self.urls)
        return validate(DatasetSettings, values)


async def _find(
    source: str | list[str], options: Mapping[str, Any], exclude: str | None, progress: Progress
) -> tuple[list[ObjectInfo], Exclusions | None]:
    """Return the objects of a source, and the records of a list of those to leave out."""
    stores = Stores(options, progress=progress)
    try:
        objects = await _look(stores, source)
        if exclude is None:
            return objects, None
        named = read_list(await read_excluded(stores, exclude), exclude)
        urls = [shard.url for shard in objects]
        return objects, find_records(named, urls, None, masked(exclude))
    finally:
        await stores.aclose()


async def _look(stores: Stores, source: str | list[str]) -> list[ObjectInfo]:
    """Return the objects of a source, each with its size and version."""
    limit = asyncio.Semaphore(LOOKS)

    async def look(shard: ObjectInfo) -> ObjectInfo:
        # Sizes and versions tell later whether a run that was killed read the same shards.
        if shard.size is not None and shard.etag is not None:
            return shard
        async with limit:
            return (await read_range(stores.store_for(shard.url), shard, 0, 1))[1]

    return await all_of(map(look, await stores.resolve(source)))


def _digest_of(lines: Iterable[str]) -> str:
    text = "".join(lines).encode(errors="surrogateescape")
    return blake2b(text, digest_size=16).hexdigest()
