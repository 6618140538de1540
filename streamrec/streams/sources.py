"""Functions that look into a source: ``streamrec.shards`` and ``streamrec.infer_features``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, Settings, StreamSettings, validate
from streamrec.config.arguments import options_of, source_texts
from streamrec.flow.bridge import Bridge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config.keywords import Source
    from streamrec.formats.examples.specs import FeatureSpec


def shards(source: Source, *, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """List the shards that a source names, sorted, as for splits by hand: ``streamrec.shards``.

    Only globs ask the store. Single names are not looked up.

    Args:
        source: As for ``streamrec.open``.
        storage_options: fsspec's, for the source's filesystem.

    Raises:
        ObjectNotFound: A glob matches nothing.
        StoreError: The store cannot list.
        ConfigError: The source cannot be understood.
    """
    texts, options = source_texts(source), options_of(storage_options)
    with Bridge() as loop:
        return loop.call(_shards(texts, options))


async def _shards(source: str | list[str], options: dict[str, Any]) -> list[str]:
    from streamrec.stores.open import Stores

    stores = Stores(options)
    try:
        return [info.url for info in await stores.resolve(source)]
    finally:
        await stores.aclose()


def infer_features(
    source: Source,
    *,
    compression: str | None = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, FeatureSpec]:
    """Infer specs from the first Examples of some shards: ``streamrec.infer_features``.

    They fit these few hundred records, so look at them before you train: a feature whose number
    of values happens to be constant there is a ``FixedLenFeature``. A feature of pictures is an
    ``Image``, which decodes them; ``features="infer"`` leaves them encoded.

    Args:
        source: As for ``streamrec.open``.
        compression: As for ``streamrec.open``.
        storage_options: fsspec's, for the source's filesystem.

    Raises:
        ConfigError: There is no record, or the records are SequenceExamples.
        DataError: A record is not an Example, or is damaged.
        StoreError: A shard cannot be read.
    """
    values: dict[str, Any] = {
        "source": source_texts(source),
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


def length_of(settings: Settings, world_size: int) -> int | None:
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
    if settings.index is None:
        return None
    with Bridge() as loop:
        return loop.call(_length(settings.dataset(), world_size))


async def _length(settings: DatasetSettings, world_size: int) -> int | None:
    from streamrec.pipeline.dataset import Dataset

    dataset = await Dataset.open(settings)
    await dataset.aclose()
    # The index is in memory, and the store is not needed any more.
    return dataset.length(settings.batch_size, world_size)
