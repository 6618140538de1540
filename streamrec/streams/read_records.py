"""The records of one shard, for plain loops: ``streamrec.read_records``."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, validate
from streamrec.config.arguments import count_of, options_of, place_text
from streamrec.config.places import absolute_options, absolute_source
from streamrec.errors import ConfigError, TruncatedShard
from streamrec.flow.bridge import Bridge
from streamrec.flow.channel import EndOfStream
from streamrec.plan.state.resume_point import Beginning
from streamrec.stores.base.protocol import ObjectInfo, read_range
from streamrec.stores.open import Stores
from streamrec.streams.ranks import Rank
from streamrec.streams.session import Entry, ThreadSession

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from os import PathLike

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.dataset import Dataset


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
    """Refuse an offset behind the shard's end, which would look like the end of its records."""
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


def _begin(offset: int, single: bool, dataset: Dataset) -> Entry:
    if single and len(dataset.shards) > 1:
        raise ConfigError(
            f"read_records and an offset need one shard, but the source has {len(dataset.shards)}; "
            "name one of them"
        )
    if not offset:
        return Entry(Beginning())
    start = dataset.run(rank=0, world_size=1, batch_size=None, position=None).position
    lanes = start.lanes.copy()
    # Of the only lane, as only one shard is read.
    lanes["offset"] = offset
    return Entry(replace(start, lanes=lanes))
