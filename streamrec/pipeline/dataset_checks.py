"""Checks of a dataset's settings against the ranks and the batches that are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import has_pictures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.batch.functions import Functions
    from streamrec.plan.order.shard_order import ShardPart


STAGES = ("pack", "window", "filter")


def uncounting_stage(settings: DatasetSettings) -> str:
    """Name the stage that makes an unknown number of rows of its records; "" if there is none."""
    return next((name for name in STAGES if getattr(settings, name) is not None), "")


def check_ranks(settings: DatasetSettings, lanes: int, rank: int, world_size: int) -> None:
    """Check that the lanes divide over the ranks, and that all ranks end at the same step.

    Raises:
        ConfigError: They do not; the message says which settings help.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"rank must be from 0 to {world_size - 1}, not {rank}; correct rank or world_size"
        )
    if lanes % world_size:
        serve = ", ".join(str(n) for n in range(1, lanes + 1) if lanes % n == 0)
        raise ConfigError(
            f"world_size {world_size} does not divide the {lanes} lanes; these do: {serve}"
            " (or set lanes to a multiple of world_size: it determines the order)"
        )
    if world_size > 1:
        _check_ends(settings, lanes, world_size)


def _check_ends(settings: DatasetSettings, lanes: int, world_size: int) -> None:
    if settings.exhausted != "repeat":
        raise ConfigError(
            f"components end at different steps on {world_size} ranks, which would wait for "
            'each other for ever; set exhausted to "repeat", and steps_per_epoch to the number '
            "of batches every rank is to get"
        )
    stage, serves = uncounting_stage(settings), "set"
    is_counted = settings.index is not None and not stage
    if is_counted or settings.epochs is None or settings.steps_per_epoch is not None:
        return
    what = f"{stage} makes an unknown number of rows of a lane's records"
    if not stage:
        what = "shards hold different numbers of records"
    if not stage and settings.weights is None:
        serves = (
            "write an index with `streamrec index` and set index=True (less than a record of "
            f"each of the {lanes} lanes, and less than a batch of each rank, is then left "
            'out, or added by remainder="pad"), or set'
        )
    raise ConfigError(
        f"{what}, so {world_size} ranks would end at different steps and wait for each other "
        f"for ever; {serves} steps_per_epoch to the number of batches every rank is to get, or "
        "epochs to None"
    )


def check_batches(settings: DatasetSettings, batch_size: int | None, remainder: str) -> None:
    """Check that single records are not asked for where the settings are about whole batches.

    Raises:
        ConfigError: They are; the message names the setting.
    """
    if batch_size is not None:
        return
    if not settings.ordered:
        raise ConfigError("ordered=False delivers whole batches alone; set batch_size")
    if remainder == "pad":
        raise ConfigError('remainder "pad" fills up batches; set batch_size')
    if settings.transform is not None:
        raise ConfigError("transform takes whole batches; set batch_size, or use map")
    if settings.length_buckets is not None:
        raise ConfigError("length_buckets sort records into whole batches; set batch_size")
    if settings.cache is not None and settings.cache.of == "batches":
        raise ConfigError(
            'a cache of "batches" cannot keep single records; set batch_size, or use a cache of '
            '"pictures" or of "ranges"'
        )


def check_pictures(settings: DatasetSettings) -> None:
    """Refuse a cache of pictures where no feature is one, so that it would keep none.

    Raises:
        ConfigError: No feature is a picture.
    """
    if settings.cache is None or settings.cache.of != "pictures":
        return
    if not isinstance(settings.features, dict) or not has_pictures(settings.features):
        raise ConfigError(
            'a cache of "pictures" keeps what sr.Image decodes, and no feature has this spec; name '
            'such a feature, or use a cache of "ranges"'
        )


def check_mapped(settings: DatasetSettings, functions: Functions) -> None:
    """Refuse a cache of what ``map`` makes where that differs from epoch to epoch.

    Raises:
        ConfigError: The map is given a generator.
    """
    if settings.cache is None or settings.cache.of != "mapped" or functions.map is None:
        return
    if functions.map.is_random:
        raise ConfigError(
            'a cache of "mapped" keeps one result for each record, and '
            f"map {functions.map.name} takes rng, to give others in each epoch; draw in transform, "
            'which runs after the cache, or use a cache of "pictures" or of "ranges"'
        )


def check_parts(settings: DatasetSettings, parts: Sequence[ShardPart]) -> None:
    """Refuse to skip damage where a split cuts a shard: behind it, records' numbers are a guess.

    Raises:
        ConfigError: The settings ask for both, and no index tells the numbers.
    """
    if settings.on_corrupt == "raise" or settings.index is not None:
        return
    if not all(part.is_whole for part in parts):
        raise ConfigError(
            f"split {settings.split!r} ends inside shards, and with on_corrupt="
            f"{settings.on_corrupt!r} the numbers of the records behind damage are a guess; write "
            "an index with `streamrec index` and set index=True, or slice by shards, as in "
            "'train[:3shard]'"
        )


def check_places(settings: DatasetSettings, batch_size: int | None) -> None:
    """Refuse single records where damaged or excluded ones would have to leave a masked row.

    Raises:
        ConfigError: An index counts the records, some are left out, and there is no batch size.
    """
    counted = settings.index is not None and not uncounting_stage(settings)
    if not counted or batch_size is not None:
        return
    if settings.exclude is not None:
        raise ConfigError(
            "with an index, exclude leaves masked rows in place of records, but single records "
            "have no mask; set batch_size, or leave out index"
        )
    if settings.on_corrupt != "raise":
        raise ConfigError(
            f"with an index, on_corrupt={settings.on_corrupt!r} leaves masked rows where records "
            "are damaged, but single records have no mask; set batch_size, or leave out index"
        )
