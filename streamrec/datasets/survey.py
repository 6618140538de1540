"""Readings of shards for ``streamrec info`` and ``cat``: a survey, and selected records."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec import kernel
from streamrec.config import DatasetSettings, validate
from streamrec.config.machine import automatic_budget
from streamrec.config.places import escape
from streamrec.errors import ConfigError, DataError, MalformedExample, WrongFeatureType
from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import all_of
from streamrec.formats.examples.descriptions import as_python, describe
from streamrec.formats.examples.features import infer_features
from streamrec.formats.shards.compression import detect
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.masking import masked, masked_repr
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.sample import spread
from streamrec.stores.base.protocol import ObjectInfo, read_range
from streamrec.stores.open import Stores
from streamrec.streams.sources import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamrec.formats.examples.specs import FeatureSpec
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.values.columns import ByteArray


SMALL = 64_000_000
"""Bytes of the largest dataset that is read as a whole by default, in a second or so."""
FEW_SHARDS = 1000
"""The most shards of it: each costs a request."""
SAMPLE_RECORDS = 512
SAMPLE_BYTES = 16_000_000
"""A sample ends after this many records, or this many bytes if they are large."""
LOOKED_AT = 1000
"""The most records from which features are inferred; parsing them in Python takes a moment."""
REQUESTS = 32
RETRIES = 5


@dataclass(frozen=True)
class Survey:
    """The results of a survey."""

    shards: tuple[str, ...]
    bytes: int
    records: int
    estimated: bool
    """True if ``records`` is extrapolated from a sample."""
    compression: str
    features: Mapping[str, FeatureSpec] | None
    """``None``: the records are not Examples, or there are no records."""
    looked_at: int
    """The number of records from which the features are inferred."""
    note: str | None
    """The reason why something is not known."""
    kernel: str = kernel.implementation

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the number of shards, and features in the plain form and as Python."""
        plain = asdict(self) | {"shards": len(self.shards), "features": describe(self.features)}
        plain["first_shard"], plain["last_shard"] = self.shards[0], self.shards[-1]
        plain["python"] = None if self.features is None else as_python(self.features)
        return plain


@dataclass
class SampledRecords:
    """The records that were read of some shards."""

    limited: bool
    """True to stop after ``SAMPLE_RECORDS`` or ``SAMPLE_BYTES``."""
    records: int = 0
    nbytes: int = 0
    """The bytes of the records with their frames."""
    first: list[bytes] = field(default_factory=list)
    places: list[dict[str, Any]] = field(default_factory=list)
    """The place of each of the first records, as an error's fields."""
    ratio: float = 1.0
    """Bytes for each stored byte: more than one if shards are compressed."""

    @property
    def stored_bytes(self) -> int:
        """The bytes that the records take in their shards."""
        return round(self.nbytes / self.ratio)

    @property
    def complete(self) -> bool:
        """True if the sample is large enough."""
        return self.limited and (self.records >= SAMPLE_RECORDS or self.nbytes >= SAMPLE_BYTES)

    def add(self, batch: Batch, urls: Sequence[str]) -> None:
        """Count the records of a batch, and keep them if they are among the first."""
        column, origin = batch.records, batch.origin
        count = min(len(column), LOOKED_AT - len(self.first))
        self.first += [column[row] for row in range(count)]
        places = zip(origin.shards[:count].tolist(), origin.records[:count].tolist(), strict=True)
        self.places += [{"url": masked(urls[shard]), "record": n} for shard, n in places]
        self.records += len(column)
        self.nbytes += len(column.values) + len(column) * (HEADER + FOOTER)

    def extrapolate(self, size: int) -> int:
        """Return the number of records in ``size`` stored bytes, if they are like these."""
        return round(size * self.records / max(1, self.stored_bytes))


async def survey(
    urls: Sequence[str],
    storage_options: Mapping[str, Any],
    *,
    scan: bool = False,
    largest: int | None = None,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> Survey:
    """Survey shards.

    Args:
        urls: The shards, as ``streamrec.open`` takes them.
        storage_options: The options for fsspec.
        scan: Read all shards, however large.
        largest: ``max_record_bytes``; ``None``: the default memory budget of a stream.
        progress: Called with a word, the bytes read, and the bytes to read.

    Raises:
        ConfigError: A URL cannot be understood.
        StoreError: A shard cannot be read.
        DataError: The bytes that were read are not those of records.
    """
    objects, heads = await _look(list(urls), Stores(storage_options, progress=progress))
    shards, size = [shard.url for shard in objects], sum(shard.size or 0 for shard in objects)
    scan = scan or (size <= SMALL and len(shards) <= FEW_SHARDS)
    sample = SampledRecords(limited=not scan)
    # A sample may end earlier, by its number of records; the bar then ends there.
    total = size if scan else min(size, SAMPLE_BYTES)
    settings = _settings(shards if scan else spread(shards), storage_options, scan, largest)
    await _read(settings, sample, lambda: progress("reading", sample.stored_bytes, total))
    features, why = _infer(sample)
    records = sample.records if scan else sample.extrapolate(size)
    kind = _compression(heads)
    names = tuple(map(masked, shards))
    return Survey(
        shards=names,
        bytes=size,
        records=records,
        estimated=not scan,
        compression=kind,
        features=features,
        looked_at=len(sample.first),
        note=why,
    )


def _settings(
    shards: Sequence[str], storage_options: Mapping[str, Any], scan: bool, largest: int | None
) -> DatasetSettings:
    values: dict[str, Any] = {
        "source": list(map(escape, shards)),
        "storage_options": dict(storage_options),
        "max_record_bytes": largest or automatic_budget(),
    }
    # A sample should cost little: few requests, and little read ahead.
    sparing = {} if scan else {"memory_budget": "32MiB", "max_concurrency": len(shards)}
    return validate(DatasetSettings, values | sparing)


async def _read(
    settings: DatasetSettings, sample: SampledRecords, progress: Callable[[], None]
) -> None:
    dataset = await Dataset.open(settings)
    try:
        async with dataset.run(rank=0, world_size=1, batch_size=None, position=None) as run:
            while not sample.complete:
                sample.add(await run.receive(), dataset.shards)
                counters = run.statistics()
                # The sample counts decompressed bytes, and sizes are those of stored ones.
                if counters["decompressed_to"]:
                    sample.ratio = counters["decompressed_to"] / counters["decompressed_from"]
                progress()
    # A dataset that is smaller than the sample ends by itself.
    except EndOfStream:
        pass
    finally:
        await dataset.aclose()


def _infer(sample: SampledRecords) -> tuple[Mapping[str, FeatureSpec] | None, str | None]:
    if not sample.first:
        return None, "there are no records"
    try:
        return infer_features(sample.first, sample.places.__getitem__), None
    except MalformedExample as error:
        return None, (
            f"record {error.record} of {error.url} is not a tf.train.Example, so it has no features"
        )
    except (ConfigError, WrongFeatureType) as error:
        return None, f"the features cannot be inferred: {error}"


async def _look(urls: list[str], stores: Stores) -> tuple[list[ObjectInfo], list[bytes]]:
    """Return the shards with their sizes, and the first bytes of some; close the stores."""
    limit = asyncio.Semaphore(REQUESTS)

    async def start(shard: ObjectInfo) -> tuple[ByteArray, ObjectInfo]:
        async with limit:
            store = stores.store_for(shard.url)
            return await read_range(store, ObjectInfo(shard.url), 0, HEADER, retries=RETRIES)

    try:
        objects = await stores.resolve(urls)
        some = set(spread([shard.url for shard in objects]))
        # A listing gives sizes; a shard that is named must be asked for its own.
        unsized = [shard for shard in objects if shard.size is None or shard.url in some]
        answers = await all_of(map(start, unsized))
    finally:
        await stores.aclose()
    answered = {shard.url: shard for _, shard in answers}
    heads = [head.tobytes() for head, shard in answers if shard.url in some]
    return [answered.get(shard.url, shard) for shard in objects], heads


def _compression(heads: Sequence[bytes]) -> str:
    # An empty shard has no head.
    kinds = sorted({detect(head) for head in heads if head}) or ["none"]
    return kinds[0] if len(kinds) == 1 else f"mixed: {', '.join(kinds)}"


FEW = 1000
"""The most records that are read one range after the other, with hardly any read-ahead."""
THRIFTY = {"memory_budget": "8MiB", "max_concurrency": 1, "prefetch": 1}
READY = {"memory_budget": "128MiB"}


class PlacedRecord(NamedTuple):
    """A record and its place."""

    payload: bytes
    url: str
    number: int
    """The record's number in its shard, from 0; counted from the offset if one is given."""


@dataclass(frozen=True)
class Selection:
    """The records to read."""

    urls: tuple[str, ...] = field(repr=False)
    count: int | None = None
    """The most records; ``None``: all."""
    offset: int = 0
    """The byte of the only shard at which to begin."""
    skip: int = 0
    """The number of records to leave out first."""
    check_crc: bool = True
    skip_corrupt: bool = False
    """``True`` leaves damaged records out; they count among those of ``skip``."""
    max_record_bytes: int | None = None
    """Bytes of the longest record; ``None``: the default memory budget of a stream."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    __repr__ = masked_repr

    @property
    def last(self) -> int | None:
        """The number of records to read, with those that are left out first."""
        return None if self.count is None else self.skip + self.count

    def settings(self) -> DatasetSettings:
        """Return the settings that read single raw records in the order of the shards: one lane."""
        # Reading ahead would ask for bytes that nobody prints.
        few = self.last is not None and self.last <= FEW
        values = {
            "source": list(self.urls),
            "lanes": 1,
            "check_crc": self.check_crc,
            "max_record_bytes": self.max_record_bytes or automatic_budget(),
            "storage_options": dict(self.storage_options),
        }
        if self.skip_corrupt:
            values |= {"on_corrupt": "skip", "corrupt_budget": 1.0}
        return validate(DatasetSettings, {**values, **(THRIFTY if few else READY)})


def groups(selection: Selection) -> Iterator[list[PlacedRecord]]:
    """Yield the selected records in order, as they come; no group is empty.

    Raises:
        ConfigError: A URL cannot be understood, or there is an offset into several shards.
        DataError: There are no more records than are left out, or the first one is damaged.
        StreamrecError: They cannot be read; the records before the fault are given first.
    """
    left, last, before, following = selection.count, ("", -1), 0, 0
    is_found = selection.skip == 0
    # They are read in a thread: in the main thread, Ctrl-C ends whatever it waits for.
    with closing(batches(selection.settings(), selection.offset)) as stream:
        for batch, urls in stream:
            group = []
            for record in _records(batch, urls):
                # Its number does not grow where a shard comes once more.
                if record.url != last[0] or record.number <= last[1]:
                    before = following
                last = record.url, record.number
                # Records are counted over all shards, with the damaged ones that are left out.
                following = before + record.number + 1
                if not is_found and following > selection.skip + 1:
                    raise _left_out(selection.skip, following - 1, record.url)
                if following > selection.skip:
                    is_found = True
                    group.append(record)
            group = group[:left]
            left = None if left is None else left - len(group)
            if group:
                yield group
            # At once: the next batch would cost another request.
            if left == 0:
                return
    if selection.skip and following <= selection.skip:
        raise DataError(
            f"there is no record {selection.skip}, because there are {following} records; give a "
            "smaller number (the first record is 0)",
            url=selection.urls[0] if len(selection.urls) == 1 else None,
        )


def _left_out(wanted: int, following: int, url: str) -> DataError:
    return DataError(
        f"record {wanted} is damaged and left out; the next intact one is record {following}",
        url=url,
    )


def _records(batch: Batch, urls: list[str]) -> list[PlacedRecord]:
    payloads = batch.records.to_list()
    shards, numbers = (array.tolist() for array in batch.origin)
    return [
        PlacedRecord(payload, urls[shard], number)
        for payload, shard, number in zip(payloads, shards, numbers, strict=True)
    ]
