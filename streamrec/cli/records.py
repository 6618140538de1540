"""Reads records from shard to shard for ``streamrec cat``, and no more bytes than it needs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError
from streamrec.flow.bridge import Bridge
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.position import OFFSET
from streamrec.ranks import Rank
from streamrec.session import LoopSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.plan.position import Position
    from streamrec.types import Batch

__all__ = ["Record", "Selection", "bridge", "groups"]

FEW = 1000
"""Up to so many records are read one range after the other, and hardly anything ahead of them."""
THRIFTY = {"memory_budget": "8MiB", "max_concurrency": 1, "prefetch": 1}
READY = {"memory_budget": "128MiB"}


class Record(NamedTuple):
    """A record, and where it stands."""

    payload: bytes
    url: str
    number: int
    """In its shard, from 0; counted from the offset where one is given."""


@dataclass(frozen=True)
class Selection:
    """Which records to read."""

    urls: tuple[str, ...]
    count: int | None = None
    """At most so many; ``None``: all."""
    offset: int = 0
    """Bytes: where in its only shard to begin."""
    skip: int = 0
    """Records to leave out first."""
    check_crc: bool = True
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> int | None:
        """How many records to read in all, with those that are skipped."""
        return None if self.count is None else self.skip + self.count

    def settings(self) -> DatasetSettings:
        """Single raw records in the order of the shards: there is one lane."""
        few = self.last is not None and self.last <= FEW
        values = {
            "source": list(self.urls),
            "lanes": 1,
            "check_crc": self.check_crc,
            "storage_options": dict(self.storage_options),
        }
        return validate(DatasetSettings, {**values, **(THRIFTY if few else READY)})


@contextmanager
def bridge() -> Iterator[Bridge]:
    """An event loop in a thread: in the main thread, Ctrl-C ends whatever it waits for."""
    opened = Bridge()
    try:
        yield opened
    finally:
        opened.close()


def groups(selection: Selection) -> Iterator[list[Record]]:
    """The selected records in order, as they come; no group is empty.

    Raises:
        ConfigError: A URL cannot be understood, or there is an offset into several shards.
        StreamrecError: They cannot be read; the records before the fault are given first.
    """
    left, skip = selection.last, selection.skip
    with bridge() as loop:
        session = loop.call(_open(selection))
        urls = session.settings["shards"]
        while left is None or left > 0:
            try:
                batch = loop.call(session.receive())
            except EndOfStream:
                return
            found = _records(batch, urls)[skip:left]
            skip = max(0, skip - len(batch))
            left = None if left is None else left - len(batch)
            if found:
                yield found


async def _open(selection: Selection) -> LoopSession:
    dataset = await Dataset.open(selection.settings())
    try:
        return LoopSession(dataset, Rank(0, 1), _start(dataset, selection.offset))
    except BaseException:
        await dataset.aclose()
        raise


def _start(dataset: Dataset, offset: int) -> Position | None:
    if not offset:
        return None
    if len(dataset.shards) > 1:
        raise ConfigError(
            f"an offset is one in a single shard, and these are {len(dataset.shards)}; name the "
            "one that is meant"
        )
    start = dataset.run(rank=0, world_size=1, batch_size=None, position=None).position
    lanes = start.lanes.copy()
    lanes[OFFSET] = offset
    return replace(start, lanes=lanes)


def _records(batch: Batch, urls: list[str]) -> list[Record]:
    payloads = batch.records.to_list()
    shards, numbers = (array.tolist() for array in batch.origin)
    return [
        Record(payload, urls[shard], number)
        for payload, shard, number in zip(payloads, shards, numbers, strict=True)
    ]
