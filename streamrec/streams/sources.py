"""Functions that look into a source, for plain code: its shards, its features, its records.

Or into a TFDS folder: its splits, its features and the names of classes.

The stores are imported when they are asked: a stream that another process reads needs none here.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, StreamSettings, validate
from streamrec.config.arguments import count_of, options_of, place_text, source_texts
from streamrec.config.places import absolute_options, absolute_source, as_given
from streamrec.errors import ConfigError, TruncatedShard
from streamrec.flow.bridge import Bridge
from streamrec.flow.channel import EndOfStream
from streamrec.plan.state.resume_point import Beginning
from streamrec.streams.ranks import Rank
from streamrec.streams.session import ThreadSession

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from os import PathLike

    from streamrec.config.keywords import Source
    from streamrec.formats.examples.specs import FeatureSpec
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.dataset import Dataset
    from streamrec.plan.state.position import Position
    from streamrec.plan.state.resume_point import ResumePoint


def shards(
    source: Source, *, split: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> list[str]:
    """List the shards that a source names, sorted: ``streamrec.shards``.

    Only globs ask the store. Single names are not looked up. Of a TFDS folder, its documents tell
    the shards, which stand in the order of the split.

    Args:
        source: As for ``streamrec.open``.
        split: As for ``streamrec.open``, with whole shards alone.
        storage_options: fsspec's, for the source's filesystem.

    Raises:
        ObjectNotFound: A glob matches nothing, or the source is not a TFDS folder.
        StoreError: The store cannot list.
        ConfigError: The source cannot be understood, or the split ends inside a shard.
    """
    options = options_of(storage_options)
    with Bridge() as loop:
        if split is None:
            return list(map(as_given, loop.call(_shards(source_texts(source), options))))
        folder: Any = source
        place = absolute_source(place_text(folder))
        validate(DatasetSettings, {"source": place, "split": split})
        found = loop.call(_split_shards(place, split, absolute_options(options)))
        return list(map(as_given, found))


async def _shards(source: str | list[str], options: dict[str, Any]) -> list[str]:
    from streamrec.stores.open import Stores

    stores = Stores(options)
    try:
        return [info.url for info in await stores.resolve(source)]
    finally:
        await stores.aclose()


async def _split_shards(folder: str, split: str, options: Mapping[str, Any]) -> list[str]:
    from streamrec.pipeline.tfds_folder import place_in, read_info, split_shards
    from streamrec.stores.open import Stores

    stores = Stores(options)
    try:
        info = await read_info(stores, folder)
        found = split_shards(info, folder, split)
    finally:
        await stores.aclose()
    if not all(part.is_whole for part in found.parts):
        raise ConfigError(
            f"split {split!r} ends inside a shard, and whole shards are read here; name a whole "
            "split, or slice by shards, as in 'train[:3shard]'"
        )
    if "[" in split:
        return [one.url for one in found.objects]
    # An index describes all shards of a split: empty ones, of which nothing is read, too.
    wholes = [info.splits[part.name].names for part in info.parts(split)]
    return [place_in(folder, name) for names in wholes for name in names]


def infer_features(
    source: Source,
    *,
    split: str | None = None,
    compression: str | None = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, FeatureSpec]:
    """Infer specs from the first Examples of some shards: ``streamrec.infer_features``.

    The specs fit these few hundred records, so look at them before you train: a feature whose
    number of values happens to be constant in them is a ``FixedLenFeature``. A feature of pictures
    is an ``Image``, which decodes them; ``features="infer"`` leaves them encoded.

    Args:
        source: As for ``streamrec.open``.
        split: As for ``streamrec.open``.
        compression: As for ``streamrec.open``.
        storage_options: fsspec's, for the source's filesystem.

    Raises:
        ConfigError: There is no record, or the records are SequenceExamples.
        DataError: A record is not an Example, or is damaged.
        StoreError: A shard cannot be read.
    """
    values: dict[str, Any] = {
        "source": source_texts(source),
        "split": split,
        "compression": compression,
        "storage_options": options_of(storage_options),
    }
    with Bridge() as loop:
        return loop.call(_infer(validate(DatasetSettings, values)))


async def _infer(settings: DatasetSettings) -> dict[str, FeatureSpec]:
    from streamrec.pipeline.dataset import Dataset

    dataset = await Dataset.open(settings)
    try:
        return await dataset.infer_features()
    finally:
        await dataset.aclose()


def length_of(settings: object, world_size: int) -> int | None:
    """Return the number of batches (or single records) of a rank's run, if settings or index tell.

    Args:
        settings: Those of a stream.
        world_size: The number of ranks.

    Raises:
        StreamrecError: The index cannot be read.
    """
    if not isinstance(settings, StreamSettings) or settings.epochs is None:
        return None
    if settings.steps_per_epoch is not None:
        return settings.epochs * settings.steps_per_epoch
    # Else only the shards could tell, and nobody expects that a length reads them.
    if settings.index is None and settings.split is None:
        return None
    with Bridge() as loop:
        return loop.call(_length(settings.dataset(), world_size))


async def _length(settings: DatasetSettings, world_size: int) -> int | None:
    from streamrec.pipeline.dataset import Dataset

    dataset = await Dataset.open(settings)
    await dataset.aclose()
    # The index is in memory, and the store is not needed any more.
    return dataset.length(settings.batch_size, world_size)


def can_jump(settings: object) -> bool:
    """Return whether settings tell the place after some steps: an index counts all records."""
    if not isinstance(settings, StreamSettings) or settings.index is None:
        return False
    stages = (settings.weights, settings.filter, settings.pack, settings.window)
    return stages == (None,) * 4


async def place_after(
    settings: StreamSettings, rank: Rank, point: ResumePoint, steps: int
) -> Position:
    """Return the place of a rank after steps that nobody reads.

    Args:
        settings: Those of a stream that :func:`can_jump`.
        rank: The rank.
        point: The place before these steps.
        steps: Number of batches (or single records).

    Raises:
        StreamrecError: The index cannot be read, or the place does not fit it.
    """
    from streamrec.pipeline.dataset import Dataset

    dataset = await Dataset.open(settings.dataset())
    try:
        size = settings.batch_size
        return dataset.run(**rank._asdict(), batch_size=size, position=point).after(steps)
    finally:
        await dataset.aclose()


def read_records(
    url: str | PathLike[str],
    offset: int = 0,
    *,
    compression: str | None = "auto",
    check_crc: bool = True,
    max_record_bytes: int | str = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[bytes]:
    """Go through the records of one shard, read ahead in a thread.

    Nothing is read before the first record is asked for; closing the iterator stops reading.

    Args:
        url: The shard, as a URL or a path.
        offset: The byte at which the frame of the first record begins. In a compressed shard it
            counts decompressed bytes, and the bytes before it are read and dropped.
        compression: As for ``streamrec.open``.
        check_crc: Check both CRCs of every record.
        max_record_bytes: As for ``streamrec.open``.
        storage_options: fsspec's, for the URL's filesystem.

    Raises:
        ConfigError: The URL cannot be understood, or stands for several shards.
        StreamrecError: It cannot be read; the records before the fault are given first.
    """
    values: dict[str, Any] = {
        "source": absolute_source(place_text(url)),
        "lanes": 1,
        "compression": compression,
        "check_crc": check_crc,
        "max_record_bytes": max_record_bytes,
        "storage_options": absolute_options(options_of(storage_options)),
    }
    begin = count_of(offset, "offset")
    # Only the reading is lazy: what is wrong is told here, and a place is what it is now.
    return _records(batches(validate(DatasetSettings, values), begin, single=True))


def _records(read: Iterable[tuple[Batch, list[str]]]) -> Iterator[bytes]:
    for batch, _ in read:
        yield from batch.records.to_list()


def batches(
    settings: DatasetSettings, offset: int = 0, *, single: bool = False
) -> Generator[tuple[Batch, list[str]], None, None]:
    """Yield the batches of one run over a dataset, read in a thread, with the shards' URLs.

    Args:
        settings: Those of the dataset; of one lane, if there is an offset.
        offset: Bytes to pass over in its only shard.
        single: Refuse several shards.

    Raises:
        ConfigError: There are several shards, and an offset.
        StreamrecError: As for any stream.
    """
    begin = partial(_begin, offset, single or offset > 0)
    with closing(ThreadSession(settings, Rank(0, 1), begin)) as session:
        came = False
        try:
            while True:
                batch = session.receive()
                came = True
                yield batch, session.settings["shards"]
        except EndOfStream:
            # The reader of a compressed shard knows its end.
            if offset and not came and not session.statistics().get("decompressed_to"):
                with Bridge() as loop:
                    loop.call(_check_offset(offset, session.settings["shards"][0], settings))


async def _check_offset(offset: int, url: str, settings: DatasetSettings) -> None:
    """Refuse an offset after the shard's end, which would look like the end of its records."""
    from streamrec.stores.base.protocol import ObjectInfo, read_range
    from streamrec.stores.open import Stores

    stores = Stores(settings.storage_options)
    try:
        # One byte: its answer has the size, and not each store that can be read can be listed.
        _, info = await read_range(stores.store_for(url), ObjectInfo(url), 0, 1)
    finally:
        await stores.aclose()
    if info.size is not None and offset > info.size:
        raise TruncatedShard(
            f"the shard has {info.size} bytes, but must be read from byte {offset} on; give the "
            "offset of a record, or a state of this very shard",
            url=url,
            offset=info.size,
        )


def _begin(offset: int, single: bool, dataset: Dataset) -> ResumePoint:
    if single and len(dataset.shards) > 1:
        raise ConfigError(
            f"read_records and an offset need one shard, but the source has {len(dataset.shards)}; "
            "name one of them"
        )
    if not offset:
        return Beginning()
    start = dataset.run(rank=0, world_size=1, batch_size=None, position=None).position
    lanes = start.lanes.copy()
    # Of the only lane, as only one shard is read.
    lanes["offset"] = offset
    return replace(start, lanes=lanes)


@dataclass(frozen=True)
class TFDSInfo:
    """The facts about a TFDS folder: ``streamrec.TFDSInfo``."""

    name: str
    config: str
    """The name of the builder's configuration; empty: it has none."""
    version: str
    splits: Mapping[str, int]
    """The number of records of each split."""
    features: Mapping[str, FeatureSpec]
    """The spec of each feature, by its name in the records, as in ``"steps/reward"``."""
    refused: Mapping[str, str]
    """The reason why a feature has no spec, by its name."""
    labels: Mapping[str, list[str]]
    """The names of the classes, by the feature that holds their numbers."""


def tfds_info(
    folder: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> TFDSInfo:
    """Read the documents of a TFDS folder: ``streamrec.tfds_info``.

    Args:
        folder: The folder of one version of a dataset, as a URL or a path; it holds
            ``dataset_info.json``.
        storage_options: fsspec's, for the folder's filesystem.

    Raises:
        ConfigError: The folder's name cannot be understood.
        StoreError: A document cannot be read.
        DataError: A document cannot be understood, or the shards are not TFRecords.
    """
    place = absolute_source(place_text(folder))
    options = absolute_options(options_of(storage_options))
    with Bridge() as loop:
        return loop.call(_read(place, options))


async def _read(folder: str, options: Mapping[str, Any]) -> TFDSInfo:
    from streamrec.pipeline.tfds_folder import read_features, read_info, read_labels
    from streamrec.stores.open import Stores

    stores = Stores(options)
    try:
        info = await read_info(stores, folder)
        features = await read_features(stores, folder)
        labels = await read_labels(stores, folder, features)
    finally:
        await stores.aclose()
    return TFDSInfo(
        name=info.name,
        config=info.config,
        version=info.version,
        splits={name: split.records for name, split in info.splits.items()},
        features=features.specs,
        refused=features.refused,
        labels=labels,
    )
