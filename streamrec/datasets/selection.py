"""The reading of records for ``streamrec cat``, of no more bytes than it needs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.config import DatasetSettings, validate
from streamrec.config.memory_budget import automatic_budget
from streamrec.errors import DataError
from streamrec.masking import masked_repr
from streamrec.streams.sources import batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.pipeline.batch.batch import Batch

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
        DataError: There are no more records than are left out.
        StreamrecError: They cannot be read; the records before the fault are given first.
    """
    left, last, before, following = selection.count, ("", -1), 0, 0
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
                if following > selection.skip:
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


def _records(batch: Batch, urls: list[str]) -> list[PlacedRecord]:
    payloads = batch.records.to_list()
    shards, numbers = (array.tolist() for array in batch.origin)
    return [
        PlacedRecord(payload, urls[shard], number)
        for payload, shard, number in zip(payloads, shards, numbers, strict=True)
    ]
