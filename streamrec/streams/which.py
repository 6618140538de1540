"""The records of a step, the steps of a record, and the order of an epoch, from an index alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from streamrec.config.arguments import absolute_sources, count_of, plain_integer
from streamrec.errors import ConfigError
from streamrec.flow.bridge import Bridge
from streamrec.plan.state.resume_point import Beginning
from streamrec.streams.which_read import ends_in, point_in, range_of, read_places, world_size_of

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings
    from streamrec.config.keywords import Features, Source
    from streamrec.pipeline.dataset import Dataset
    from streamrec.pipeline.dataset_places import DeliveredRecord
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.streams.opening import Components
    from streamrec.streams.which_read import ReadRecord

Find: TypeAlias = "tuple[str, int] | Mapping[str, str | int]"
Numbers: TypeAlias = "npt.NDArray[np.int64]"

UNLIMITED = 1 << 60
"""The memory budget of a run that is only computed: no order depends on it."""
RECORDS_AT_ONCE = 1 << 20
"""Records whose shards are computed at once: some tens of MB."""


@overload
def which(
    source: Source | Components,
    steps: int | range | None = None,
    features: Features | None = None,
    *,
    read: Literal[False] = False,
    **values: Any,
) -> list[DeliveredRecord]: ...
@overload
def which(
    source: Source | Components,
    steps: int | range,
    features: Features | None = None,
    *,
    read: Literal[True],
    **values: Any,
) -> list[ReadRecord]: ...
def which(
    source: Source | Components,
    steps: int | range | None = None,
    features: Features | None = None,
    *,
    batch_size: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    find: Find | None = None,
    find_epochs: int = 1,
    read: bool = False,
    **settings: Any,
) -> list[DeliveredRecord] | list[ReadRecord]:
    """Tell which records were in a step, or in which step a record was: ``streamrec.which``.

    This is computed from the index of the shards, and no shard is read, unless ``read`` is True. A
    step is counted as in a state: from 0, from the very start of the stream.

    Args:
        source: As for ``streamrec.open``, or as for ``streamrec.mix``.
        steps: The step, or a range of at most 100,000 steps. Steps after the end of a run belong to
            further runs, as if the stream were iterated again.
        features: As for ``streamrec.open``.
        batch_size: As for ``streamrec.open``; ``None``: each step is a single record.
        rank: The rank; ``None``: all of them.
        world_size: The number of ranks; ``None``: that of ``state``, or 1.
        state: A state that the run saved, or the states of all ranks, also in a checkpoint of
            mappings and lists; ``None``: the run began at the beginning.
        find: A shard, by its URL or its name, and a record's number in it: the places of this
            record are returned instead of those of ``steps``. Or a value by its feature, as
            ``{"user_id": "a"}``: those of all records that have it, by steps. This needs the index
            of the key, which ``streamrec index --key`` writes. In a mix, give ``steps``, too: those
            to search, since each component has epochs of its own.
        find_epochs: The number of epochs to search, beginning with the first or the state's.
        read: True: read the stream from ``state`` to the last step, for an order that does not
            follow from an index. All between the state and the steps is read, so give the last
            state before them.
        **settings: The settings of ``streamrec.open`` or ``streamrec.mix`` that the run had; also
            ``epochs``, ``steps_per_epoch`` and ``remainder``, which decide where each run ends:
            with others, steps after the first run have other records. Those that are not given are
            the ones of ``state``.

    Returns:
        A named tuple for each row: ``step``, ``rank``, ``row``, ``epoch``, ``lane``, ``shard``,
        ``record``, ``chunk_offset`` (the byte at which the record's chunk begins),
        ``chunk_record`` (the records of the chunk before it), ``is_excluded``, ``chunk_end``
        (the byte after the chunk) and ``component`` (its name; ``None``: nothing is mixed). Padding
        is left out.
        Damaged and excluded records have a place, too: a masked row takes it in the batch.
        With ``read`` it has only ``step``, ``rank``, ``row``, ``shard``, ``record`` and
        ``component``. It then has a tuple for each record of a pack, and none for a damaged record.

    Raises:
        ConfigError: A setting is wrong; there is no index, or records do not follow from it; or
            ``find`` names no record.
        StateError: The state does not belong to this stream.
        StoreError: The index or the data cannot be read.
        DataError: A record is damaged, which only ``read`` can notice.
    """
    from streamrec.streams.opening import checked, checked_mix  # the command does not need it

    values = {**ends_in(state), "batch_size": batch_size, **settings}
    if isinstance(source, Mapping):
        dataset = checked_mix(source, features, values).dataset()
    else:
        dataset = checked(absolute_sources(source), features, values).dataset()
    if not read:
        return places(
            dataset,
            steps,
            rank=rank,
            world_size=world_size,
            state=state,
            find=find,
            find_epochs=find_epochs,
        )
    if find is not None or steps is None:
        raise ConfigError("read=True reads up to some steps; give steps, and leave out find")
    return read_places(dataset, steps, rank=rank, world_size=world_size, state=state)


def places(
    settings: DatasetSettings,
    steps: int | range | None,
    *,
    rank: int | None,
    world_size: int | None,
    state: Any = None,
    find: Find | None = None,
    find_epochs: int = 1,
) -> list[DeliveredRecord]:
    """Compute the places as :func:`which` does, for the settings of a dataset."""
    is_mixed = settings.weights is not None
    if (steps is None) == (find is None) and not (is_mixed and steps is not None):
        if find is None:
            raise ConfigError("give steps, or find with a shard and a record")
        raise ConfigError("only in a mix steps limit the search of find; leave out steps or find")
    if is_mixed and steps is None:
        raise ConfigError(
            "in a mix each component has epochs of its own; give find together with the steps to "
            "search, such as range(5000), or --steps 0:5000"
        )
    wanted = None if steps is None else range_of(steps)
    world_size = world_size_of(world_size, state)
    count_of(find_epochs, "find_epochs", 1)
    if find is not None:
        _check_find(find)
    ranks = range(world_size) if rank is None else range(rank, rank + 1)
    with Bridge() as loop:
        dataset, records = loop.call(_opened_to_find(settings, find))
    found = [
        place
        for number in ranks
        for place in _of_rank(
            dataset,
            wanted,
            records,
            find_epochs,
            rank=number,
            world_size=world_size,
            point=point_in(state, number, world_size),
        )
    ]
    return sorted(found) if isinstance(find, Mapping) else found


class EpochShards(NamedTuple):
    """The shards of an epoch's records, in the order of delivery."""

    batch_size: int
    """Records of a step, of all ranks together."""
    population: Numbers
    """int64 ``[shards]``: the records of each shard; one that is named twice is one shard."""
    steps: int
    """The steps of whole batches."""
    parts: Iterator[Numbers]
    """int64 ``[n]`` each: the shard of each record of the next whole batches."""


def epoch_shards(settings: DatasetSettings, world_size: int = 1) -> EpochShards:
    """Compute from which shards the records of each step of the first epoch come.

    It reads the index of the shards, and no shard. The memory that it takes does not grow with the
    number of records, except for the index.

    Args:
        settings: The settings of a dataset that has an index and a ``batch_size``.
        world_size: The number of ranks, whose batches together are those of a step.

    Raises:
        StreamrecError: As of :func:`which`.
    """
    batch_size = (settings.batch_size or 1) * world_size
    # For one global batch, each world size has the same records in each step.
    whole = settings.model_copy(update={"batch_size": batch_size})
    with Bridge() as loop:
        dataset = loop.call(opened(whole))
    return _epoch_shards(dataset, batch_size)


def _epoch_shards(dataset: Dataset, batch_size: int) -> EpochShards:
    from streamrec.pipeline.dataset_places import RankDeliveries

    of = RankDeliveries(dataset, batch_size, rank=0, world_size=1, point=Beginning())
    urls, numbers = np.unique(dataset.shards, return_inverse=True)
    population = np.zeros(len(urls), np.int64)
    np.add.at(population, numbers, of.records_by_shard)
    steps, at_once = of.steps_of_epoch(), max(1, RECORDS_AT_ONCE // batch_size)
    firsts = range(steps.start, steps.stop, at_once)
    parts = (
        numbers[shards]
        for first in firsts
        for _, shards, _ in of.rows_of(range(first, min(first + at_once, steps.stop)))
    )
    return EpochShards(batch_size, population, len(steps), parts)


def _check_find(find: object) -> None:
    match find:
        case (str(), number) if isinstance(plain_integer(number), int):
            return
        case {**named} if len(named) == 1:
            ((feature, value),) = named.items()
            if isinstance(feature, str) and isinstance(plain_integer(value), str | int):
                return
    raise ConfigError(
        f"find is {find!r}; give a pair of a shard's URL or name and a record's number, such as "
        "('train-00003.tfrecord', 17), or a value by its feature, such as {'user_id': 'a'}"
    )


async def opened(settings: DatasetSettings) -> Dataset:
    """Return a dataset whose index is in memory, and whose stores are closed again."""
    return (await _opened_to_find(settings, None))[0]


async def _opened_to_find(
    settings: DatasetSettings, find: Find | None
) -> tuple[Dataset, list[tuple[int, int]] | None]:
    """Return such a dataset, with the shard and the number of each record to find."""
    from streamrec.pipeline.dataset import Dataset
    from streamrec.pipeline.dataset_places import check_settings
    from streamrec.pipeline.terms.exclusions import ShardLookup

    check_settings(settings)
    # No record is read, so none needs to be parsed, kept, or held in the memory of a trainer.
    unneeded: dict[str, Any] = {"memory_budget": UNLIMITED, "cache": None}
    if settings.features == "infer":
        unneeded["features"] = None
    dataset = await Dataset.open(settings.model_copy(update=unneeded), is_read=False)
    try:
        if find is None:
            return dataset, None
        if not isinstance(find, Mapping):
            return dataset, [(ShardLookup(dataset.shards).find(find[0])[0], find[1])]
        ((feature, value),) = find.items()
        if not (records := await dataset.records_with(feature, value)):
            raise ConfigError(f"no record has the value {value!r} of {feature!r}; correct it")
        return dataset, records
    finally:
        await dataset.aclose()


def _of_rank(
    dataset: Dataset,
    steps: range | None,
    records: list[tuple[int, int]] | None,
    find_epochs: int,
    *,
    rank: int,
    world_size: int,
    point: ResumePoint,
) -> list[DeliveredRecord]:
    from streamrec.pipeline.dataset_places import RankDeliveries

    size, whose = dataset.settings.batch_size, {"rank": rank, "world_size": world_size}
    if dataset.components is not None:
        from streamrec.pipeline.mix_places import MixDeliveries

        mix, searched = MixDeliveries(dataset, size, **whose, point=point), steps or range(0)
        return list(
            mix.of_steps(searched) if records is None else mix.of_records(records, searched)
        )
    of = RankDeliveries(dataset, size, **whose, point=point)
    if records is None:
        return list(of.of_steps(steps or range(0)))
    epochs = range(point.epoch, point.epoch + find_epochs)
    return [place for record in records for place in of.of_record(*record, epochs)]
