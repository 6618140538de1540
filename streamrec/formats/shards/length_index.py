"""The index of lengths: how many values of a feature each record of a dataset has, and its bytes.

It is one object beside the index of the dataset. The layout stands in
docs/reference/dataset-index.md. It comes from outside, so :meth:`LengthIndex.parse` checks all of
it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.shards.key_index import FeatureIndex, stamp_of, texts_of
from streamrec.values.record_rows import RecordLengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.formats.shards.index import ShardEntry

    Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LengthIndex(FeatureIndex):
    """The lengths of a feature, and the bytes of each record."""

    MAGIC = b"STRMRLEN"
    HEAD = struct.Struct("<8sIIQQ")
    """With the shards and the records."""
    ABOUT = "an index of lengths"
    OPTION = "--lengths"

    records: RecordLengths
    """Those of all shards, one after the other."""

    def __repr__(self) -> str:
        return f"<LengthIndex of {len(self.records.sizes)} records, {self.feature!r}>"

    @classmethod
    def of(
        cls, feature: str, entries: Sequence[ShardEntry], parts: Sequence[tuple[Numbers, Numbers]]
    ) -> Self:
        """Make the index of what was read of each shard.

        Args:
            feature: The feature.
            entries: What the index of the dataset says of each shard.
            parts: For each shard the length of each record, and its bytes with the frame.

        Raises:
            ConfigError: A record has 4 GiB or more.
        """
        for entry, part in zip(entries, parts, strict=True):
            if max(column.max(initial=0) for column in part) >= 1 << 32:
                raise ConfigError(
                    f"a record of {entry.name} has 4 GiB or more, and an index of lengths has "
                    "room for less; leave --lengths out"
                )
        return cls(
            feature,
            tuple(entry.name for entry in entries),
            tuple(map(stamp_of, entries)),
            tuple(entry.records for entry in entries),
            RecordLengths.joined(
                [RecordLengths(*(column.astype(np.uint32) for column in part)) for part in parts]
            ),
        )

    def of_shard(self, entry: ShardEntry) -> RecordLengths | None:
        """Return the lengths of a shard's records.

        Args:
            entry: What the index of the dataset says of the shard.

        Returns:
            ``None`` where this index has another content of the shard, or does not have it; or
            where its records are others in number, or in bytes than the chunks.
        """
        number = self.shard_of(entry)
        # Another count comes from a writer with a fault.
        if number is None or self.counts[number] != entry.records:
            return None
        own = slice(self._firsts[number], self._firsts[number + 1])
        found = RecordLengths(self.records.lengths[own], self.records.sizes[own])
        ends = np.concatenate([[0], np.cumsum(found.sizes, dtype=np.int64)])
        begins = ends[np.asarray(entry.first_records, np.int64)]
        is_whole = ends[-1] == entry.size and bool((begins == entry.begins).all())
        return found if is_whole else None

    def encode(self) -> bytes:
        """Serialize the index."""
        numbers = len(self.names), sum(self.counts)
        columns = (self.records.lengths, self.records.sizes)
        return self._encode(numbers, *(column.astype("<u4") for column in columns))

    @classmethod
    def _parse(cls, body: bytes, *numbers: int) -> Self:
        shards, records, text_bytes = numbers
        columns = ("<i8", shards), ("<u8", shards), ("<u4", shards)
        (counts, stamps, name_lengths, lengths, sizes), text = cls._columns(
            body, *columns, ("<u4", records), ("<u4", records)
        )
        names, feature = texts_of(text, text_bytes, name_lengths.tolist())
        if counts.min(initial=0) < 0 or sum(counts.tolist()) != records:
            raise ValueError
        shown = tuple(stamps.tolist()), tuple(counts.tolist())
        return cls(feature, names, *shown, RecordLengths(lengths, sizes))
