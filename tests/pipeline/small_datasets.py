"""Small datasets on disk, and what a stream over them must deliver."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, validate
from streamrec.datasets.verify import check, index_of
from streamrec.flow.channel import EndOfStream
from streamrec.formats.shards.index_names import index_url
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.order.shard_order import ShardOrder, open_at_once
from streamrec.plan.order.window import Buckets, Windows, bytes_of_shard
from streamrec.plan.state.position import Position
from tests.plan.oracle import Oracle, RecordOracle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.resume_point import ResumePoint

Record = tuple[int, int, int]
"""(epoch, shard, number): what identifies a delivery."""


def payload(shard: int, number: int, length: int) -> bytes:
    """Make a record of a given length that names itself, as far as it fits."""
    return (f"{shard}/{number}|" * (length // 4 + 1)).encode()[:length]


def write(directory: Path, shards: tuple[tuple[int, ...], ...]) -> str:
    """Write shards of records of these lengths, and return a glob that finds them."""
    directory.mkdir(parents=True, exist_ok=True)
    for index, lengths in enumerate(shards):
        frames = [frame(payload(index, i, length)) for i, length in enumerate(lengths)]
        (directory / f"part-{index:05}.tfrecord").write_bytes(b"".join(frames))
    return f"{directory}/part-*.tfrecord"


def write_index(source: str, chunk_bytes: int) -> None:
    """Write the index of shards beside them."""
    reports = asyncio.run(check([source], chunk_bytes=chunk_bytes))
    url = index_url([report.url for report in reports])
    Path(url).write_bytes(index_of(reports).encode())


def record_oracle(
    shards: tuple[tuple[int, ...], ...],
    settings: DatasetSettings,
    lanes: int,
    chunk_bytes: int,
    keep: Callable[[int], bool] | None = None,
) -> RecordOracle:
    """Make the oracle of the order by record that the settings ask for."""
    seed, windows = settings.seed if settings.shuffle else 0, windows_of(settings, lanes)
    buckets = buckets_of(settings, lanes)
    return RecordOracle(shards, chunk_bytes, lanes, settings.shuffle, seed, windows, keep, buckets)


def oracle(
    shards: tuple[tuple[int, ...], ...],
    settings: DatasetSettings,
    lanes: int,
    keep: Callable[[int], bool] = lambda length: True,
) -> Oracle:
    """Make the oracle of the order by shard that the settings ask for."""
    order = ShardOrder(
        len(shards), lanes, settings.shuffle, settings.seed if settings.shuffle else 0
    )
    buckets = buckets_of(settings, lanes)
    open_shards = (
        open_at_once(len(shards), lanes, int(settings.shuffle_window)) if settings.shuffle else 1
    )
    windows = windows_of(settings, lanes, open_shards)
    if windows is not None and settings.shuffle and buckets is None:
        windows = replace(windows, shard_bytes=bytes_of_shard(len(shards), windows.total))
    return Oracle(shards, order, windows, keep, buckets)


def windows_of(settings: DatasetSettings, lanes: int, open_shards: int = 1) -> Windows | None:
    """Make the windows that the settings ask for."""
    if not settings.has_windows:
        return None
    window, seed = int(settings.shuffle_window), settings.seed
    return Windows(window, lanes, seed, settings.shuffle, open_shards)


def buckets_of(settings: DatasetSettings, lanes: int) -> Buckets | None:
    """Make the buckets that the settings ask for, of one rank's batches."""
    if settings.length_buckets is None or settings.batch_size is None:
        return None
    return Buckets(settings.length_buckets, settings.batch_size, lanes, settings.seed)


def settings_of(source: str | list[str], **values: Any) -> DatasetSettings:
    """Make validated settings with a small budget, for small shards.

    Few requests at once: shards of some hundred bytes are read hundreds of times ahead otherwise,
    over and over again, which is most of a test's time.
    """
    few = {"memory_budget": "32MiB", "max_concurrency": 8}
    return validate(DatasetSettings, {"source": source, **few, **values})


async def receive_all(
    dataset: Dataset,
    *,
    rank: int = 0,
    world_size: int = 1,
    position: ResumePoint | None = None,
    most: int | None = None,
    budget: int | None = None,
) -> list[Batch]:
    """Receive the batches of one run, or the first ``most``."""
    batches: list[Batch] = []
    run = dataset.run(
        rank=rank,
        world_size=world_size,
        batch_size=dataset.settings.batch_size,
        position=position,
        budget=budget,
    )
    async with run:
        while most is None or len(batches) < most:
            try:
                batches.append(await run.receive())
            except EndOfStream:
                break
    return batches


async def receive_ranks(
    settings: DatasetSettings,
    world_size: int,
    global_batch: int,
    positions: Sequence[Position] = (),
    *,
    most: int,
) -> list[list[Batch]]:
    """Receive the next batches of all ranks, one rank after the other."""
    size = {"batch_size": global_batch // world_size}
    dataset, ranks = await Dataset.open(settings.model_copy(update=size)), []
    for rank in range(world_size):
        where: dict[str, Any] = {"rank": rank, "world_size": world_size}
        start = Position.merge(positions, **where) if positions else None
        ranks.append(await receive_all(dataset, position=start, most=most, **where))
    await dataset.aclose()
    return ranks


def position_after(batch: Batch) -> Position:
    """Return the position behind a batch, as it comes back from a file."""
    return Position.from_dict(json.loads(json.dumps(batch.next_position.to_dict())))


def global_batches(ranks: list[list[Batch]]) -> list[list[tuple[int, int]]]:
    """Return the sorted (shard, record) pairs of each step of all ranks."""
    return [sorted(identities(list(step))) for step in zip(*ranks, strict=True)]


def identities(batches: list[Batch]) -> list[tuple[int, int]]:
    """Return the (shard, record) pairs of all rows, in order."""
    return [
        pair
        for batch in batches
        for pair in zip(batch.origin.shards.tolist(), batch.origin.records.tolist(), strict=True)
    ]


def contents(batches: list[Batch]) -> list[bytes]:
    """Return the raw records of all rows, in order."""
    return [record for batch in batches for record in batch.records.to_list()]
