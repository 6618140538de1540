"""Looks at shards for ``streamrec info``: all bytes of a small dataset, a sample of a large one."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from streamrec import kernel
from streamrec.cli.printing import no_progress
from streamrec.config import DatasetSettings, validate
from streamrec.config.memory_budget import automatic_budget
from streamrec.errors import ConfigError, MalformedExample, StoreError, WrongFeatureType
from streamrec.flow.channel import EndOfStream
from streamrec.flow.retry import Backoff
from streamrec.formats.examples.descriptions import as_python, describe
from streamrec.formats.examples.features import infer_features
from streamrec.formats.shards.compression import detect
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.masking import masked
from streamrec.pipeline.dataset import Dataset
from streamrec.stores.open import Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamrec.formats.examples.specs import FeatureSpec
    from streamrec.stores.base import ObjectInfo
    from streamrec.values.batch import Batch

__all__ = ["Survey", "survey"]

SMALL = 64_000_000
"""Bytes that are read wholly without being asked to: a second or so."""
SAMPLE_SHARDS = 8
SAMPLE_RECORDS = 512
SAMPLE_BYTES = 16_000_000
"""A sample ends with as many records, or with as many bytes if they are large."""
LOOKED_AT = 1000
"""Records that features are inferred from; parsing them in Python takes a moment."""
REQUESTS = 32
ATTEMPTS = 5


@dataclass(frozen=True)
class Survey:
    """What was found."""

    shards: tuple[str, ...]
    bytes: int
    records: int | None
    """``None``: not known."""
    estimated: bool
    """Whether ``records`` is extrapolated from a sample."""
    compression: str
    features: Mapping[str, FeatureSpec] | None
    """``None``: the records are no Examples, or there are none."""
    looked_at: int
    """The number of records that the features come from."""
    note: str | None
    """Why something is not known."""
    kernel: str = kernel.implementation

    def to_dict(self) -> dict[str, Any]:
        """As plain data; shards as their number, features in the plain form and as Python."""
        plain = asdict(self) | {"shards": len(self.shards), "features": describe(self.features)}
        plain["first_shard"], plain["last_shard"] = self.shards[0], self.shards[-1]
        plain["python"] = None if self.features is None else as_python(self.features)
        return plain


@dataclass
class Sample:
    """What was read of some shards."""

    most_records: int | None
    """Where to stop; ``None``: at the end."""
    most_bytes: int | None
    records: int = 0
    nbytes: int = 0
    """With the frames."""
    first: list[bytes] = field(default_factory=list)
    places: list[dict[str, Any]] = field(default_factory=list)
    """Where each of the first ones stands, in an error's fields."""
    ratio: float = 1.0
    """Bytes for each byte that is stored: more than one where shards are compressed."""

    @property
    def stored_bytes(self) -> int:
        """What the records take in their shards."""
        return round(self.nbytes / self.ratio)

    @property
    def complete(self) -> bool:
        """Whether it is large enough."""
        enough_records = self.most_records is not None and self.records >= self.most_records
        return enough_records or (self.most_bytes is not None and self.nbytes >= self.most_bytes)

    def add(self, batch: Batch, urls: Sequence[str]) -> None:
        """Count records, and keep the first of all."""
        column, origin = batch.records, batch.origin
        kept = min(len(column), LOOKED_AT - len(self.first))
        self.first += [column[row] for row in range(kept)]
        self.places += [
            {"url": masked(urls[shard]), "record": record}
            for shard, record in zip(
                origin.shards[:kept].tolist(), origin.records[:kept].tolist(), strict=True
            )
        ]
        self.records += len(column)
        self.nbytes += len(column.values) + len(column) * (HEADER + FOOTER)

    def extrapolate(self, size: int) -> int:
        """How many records so many stored bytes hold, if they are like these."""
        return round(size * self.records / max(1, self.stored_bytes))


async def survey(
    urls: Sequence[str],
    storage_options: Mapping[str, Any],
    *,
    scan: bool = False,
    largest: int | None = None,
    progress: Callable[[str, int, int], None] = no_progress,
) -> Survey:
    """Look at shards.

    Args:
        urls: As ``streamrec.open`` takes them.
        storage_options: fsspec's.
        scan: Read all of them, however large.
        largest: ``max_record_bytes``; ``None``: as many as a memory budget has by default.
        progress: Called with a word, the bytes read, and how many there are to read.

    Raises:
        ConfigError: A URL cannot be understood.
        StoreError: A shard cannot be read.
        DataError: The bytes that were read are not those of records.
    """
    objects, heads = await _look(list(urls), storage_options)
    shards, size = [found.url for found in objects], sum(found.size or 0 for found in objects)
    scan = scan or size <= SMALL
    sample = Sample(*((None, None) if scan else (SAMPLE_RECORDS, SAMPLE_BYTES)))
    total = size if scan else min(size, SAMPLE_BYTES)
    settings = _settings(shards if scan else _spread(shards), storage_options, scan, largest)
    await _read(settings, sample, lambda: progress("reading", sample.stored_bytes, total))
    features, why = _infer(sample)
    records = sample.records if scan else sample.extrapolate(size)
    kind = _compression(heads)
    names = tuple(map(masked, shards))
    return Survey(names, size, records, not scan, kind, features, len(sample.first), why)


def _spread(shards: Sequence[str]) -> list[str]:
    """Some of the shards, evenly spread over all."""
    count = min(SAMPLE_SHARDS, len(shards))
    return [shards[i * len(shards) // count] for i in range(count)]


def _settings(
    shards: Sequence[str],
    storage_options: Mapping[str, Any],
    scan: bool,
    largest: int | None,
) -> DatasetSettings:
    values: dict[str, Any] = {
        "source": list(shards),
        "storage_options": dict(storage_options),
        "max_record_bytes": largest or automatic_budget(),
    }
    sparing = {} if scan else {"memory_budget": "32MiB", "max_concurrency": len(shards)}
    return validate(DatasetSettings, values | sparing)


async def _read(settings: DatasetSettings, sample: Sample, progress: Callable[[], None]) -> None:
    dataset = await Dataset.open(settings)
    try:
        async with dataset.run(rank=0, world_size=1, batch_size=None, position=None) as run:
            while not sample.complete:
                sample.add(await run.receive(), dataset.shards)
                sample.ratio = _ratio(run.statistics())
                progress()
    except EndOfStream:
        pass
    finally:
        await dataset.aclose()


def _ratio(statistics: Mapping[str, Any]) -> float:
    """Bytes that have come out for each that was decompressed."""
    taken, given = statistics["decompressed_from"], statistics["decompressed_to"]
    return given / taken if given else 1.0


def _infer(sample: Sample) -> tuple[Mapping[str, FeatureSpec] | None, str | None]:
    if not sample.first:
        return None, "there are no records"
    try:
        return infer_features(sample.first, sample.places.__getitem__), None
    except MalformedExample as error:
        return None, (
            f"record {error.record} of {error.url} is not of tf.train.Example, so there are no "
            "features to name"
        )
    except (ConfigError, WrongFeatureType) as error:
        return None, f"the features cannot be inferred: {error}"


async def _look(
    urls: list[str], storage_options: Mapping[str, Any]
) -> tuple[list[ObjectInfo], list[bytes]]:
    """The shards with their sizes, and the first bytes of some.

    A listing gives sizes; of shards that are named, each must be asked.
    """
    stores = Stores(storage_options)
    try:
        objects = await stores.resolve(urls)
        some = set(_spread([found.url for found in objects]))
        limit = asyncio.Semaphore(REQUESTS)
        asked = [found for found in objects if found.size is None or found.url in some]
        answers = await _gather(_head(stores, found, limit) for found in asked)
    finally:
        await stores.aclose()
    known = {found.url: found for found, _ in answers}
    heads = [head for found, head in answers if found.url in some]
    return [known.get(found.url, found) for found in objects], heads


async def _gather(coroutines: Any) -> list[tuple[ObjectInfo, bytes]]:
    """All results; the first error cancels the others and is raised itself."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _head(
    stores: Stores, found: ObjectInfo, limit: asyncio.Semaphore
) -> tuple[ObjectInfo, bytes]:
    """The object with its size, and the first bytes of it, tried some times."""
    backoff = Backoff(Random())
    async with limit:
        while True:
            try:
                return await _first_bytes(stores, found)
            except StoreError as error:
                if not error.retryable or backoff.attempt == ATTEMPTS:
                    raise error.at(0) from None
                await asyncio.sleep(backoff.next(getattr(error, "retry_after", None)))


async def _first_bytes(stores: Stores, found: ObjectInfo) -> tuple[ObjectInfo, bytes]:
    memory, filled = bytearray(HEADER), 0
    async with stores.store_for(found.url).open_range(found.url, 0, HEADER) as body:
        while count := await body.readinto(memoryview(memory)[filled:]):
            filled += count
        return body.info, bytes(memory[:filled])


def _compression(heads: Sequence[bytes]) -> str:
    kinds = sorted({detect(head) for head in heads if head}) or ["none"]
    return kinds[0] if len(kinds) == 1 else f"mixed: {', '.join(kinds)}"
