"""Reads records from shard to shard for ``streamrec cat``, and no more bytes than it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.config import DatasetSettings, validate
from streamrec.config.memory_budget import automatic_budget
from streamrec.flow.bridge import Bridge
from streamrec.masking import masked_repr
from streamrec.streams.read_records import batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.values.batch import Batch

__all__ = ["Record", "Selection", "groups"]

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
    skip_corrupt: bool = False
    """Leave damaged records out; they count where records are left out first."""
    max_record_bytes: int | None = None
    """``None``: as many as a stream's memory budget has by default."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    __repr__ = masked_repr

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
            "max_record_bytes": self.max_record_bytes or automatic_budget(),
            "storage_options": dict(self.storage_options),
        }
        if self.skip_corrupt:
            values |= {"on_corrupt": "skip", "corrupt_budget": 1.0}
        return validate(DatasetSettings, {**values, **(THRIFTY if few else READY)})


def groups(selection: Selection) -> Iterator[list[Record]]:
    """The selected records in order, as they come; no group is empty.

    The loop is in a thread: in the main thread, Ctrl-C ends whatever it waits for.

    Raises:
        ConfigError: A URL cannot be understood, or there is an offset into several shards.
        StreamrecError: They cannot be read; the records before the fault are given first.
    """
    left, numbering = selection.count, _Numbering()
    with Bridge() as loop:
        for batch, urls in batches(loop, selection.settings(), selection.offset):
            records = _records(batch, urls)
            found = [one for one in records if numbering.of(one) >= selection.skip][:left]
            left = None if left is None else left - len(found)
            if found:
                yield found
            if left == 0:
                return


class _Numbering:
    """The records' numbers over all shards, those of damaged ones included."""

    def __init__(self) -> None:
        self._url = ""
        self._before = self._next = 0

    def of(self, record: Record) -> int:
        """The number of the next record."""
        if record.url != self._url:
            self._url, self._before = record.url, self._next
        self._next = self._before + record.number + 1
        return self._next - 1


def _records(batch: Batch, urls: list[str]) -> list[Record]:
    payloads = batch.records.to_list()
    shards, numbers = (array.tolist() for array in batch.origin)
    return [
        Record(payload, urls[shard], number)
        for payload, shard, number in zip(payloads, shards, numbers, strict=True)
    ]
