"""The records of one shard, for plain loops: ``streamrec.read_records``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, validate
from streamrec.config.arguments import count_of, options_of, place_text
from streamrec.errors import ConfigError
from streamrec.flow.bridge import Bridge
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.resume_point import Beginning
from streamrec.streams.ranks import Rank
from streamrec.streams.session import LoopSession

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from os import PathLike

    from streamrec.plan.resume_point import ResumePoint
    from streamrec.values.batch import Batch

__all__ = ["batches", "read_records"]


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
        offset: Bytes: where the frame begins of the record to begin with. In a compressed shard it
            is one in the decompressed bytes, and what stands before is read and passed over.
        compression: As for ``streamrec.open``.
        check_crc: Check both CRCs of every record.
        max_record_bytes: As for ``streamrec.open``.
        storage_options: fsspec's, for the URL's filesystem.

    Raises:
        ConfigError: The URL cannot be understood, or stands for several shards.
        StreamrecError: It cannot be read; the records before the fault are given first.
    """
    values: dict[str, Any] = {
        "source": place_text(url),
        "lanes": 1,
        "compression": compression,
        "check_crc": check_crc,
        "max_record_bytes": max_record_bytes,
        "storage_options": options_of(storage_options),
    }
    begin = count_of(offset, "offset")
    with Bridge() as loop:
        for batch, _ in batches(loop, validate(DatasetSettings, values), begin, single=True):
            yield from batch.records.to_list()


def batches(
    loop: Bridge, settings: DatasetSettings, offset: int = 0, *, single: bool = False
) -> Generator[tuple[Batch, list[str]], None, None]:
    """Yield the batches of one run over a dataset, with the shards' URLs.

    Args:
        loop: The event loop that reads it.
        settings: Those of the dataset; of one lane, if there is an offset.
        offset: Bytes to pass over in its only shard.
        single: Refuse several shards.

    Raises:
        ConfigError: There are several shards, and an offset.
        StreamrecError: As for any stream.
    """
    session = loop.call(_open(settings, offset, single=single))
    urls = session.settings["shards"]
    try:
        while True:
            yield loop.call(session.receive()), urls
    except EndOfStream:
        return
    finally:
        # Not left to the loop's end: until then garbage collection may meet the session's task.
        if loop.is_here:
            loop.call(session.aclose())


async def _open(settings: DatasetSettings, offset: int, *, single: bool) -> LoopSession:
    dataset = await Dataset.open(settings)
    try:
        if single or offset:
            _check_single(dataset)
        return LoopSession(dataset, Rank(0, 1), _start(dataset, offset))
    except BaseException:
        await dataset.aclose()
        raise


def _check_single(dataset: Dataset) -> None:
    if len(dataset.shards) > 1:
        raise ConfigError(
            f"these are {len(dataset.shards)} shards, and a single one is read, or has an offset; "
            "name the one that is meant"
        )


def _start(dataset: Dataset, offset: int) -> ResumePoint:
    if not offset:
        return Beginning()
    start = dataset.run(rank=0, world_size=1, batch_size=None, position=None).position
    lanes = start.lanes.copy()
    lanes["offset"] = offset
    return replace(start, lanes=lanes)
