"""The index of lengths: how many values of a feature each record of a dataset has, and its bytes.

It is one object beside the index of the dataset. The layout stands in
docs/reference/dataset-index.md. It comes from outside, so :meth:`LengthIndex.parse` checks all of
it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from streamrec.errors import ConfigError, MalformedIndex
from streamrec.formats.shards.key_index import stamp_of
from streamrec.values.record_rows import RecordLengths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from streamrec.formats.shards.index import ShardEntry

    Numbers = npt.NDArray[np.int64]

LARGEST = 1 << 30
"""The most bytes of such an index, which has then 134 million records. A larger one is not read."""
MAGIC = b"STRMRLEN"
VERSION = 1
_HEAD = struct.Struct("<8sIIQQ")
"""Magic, version, shards, records, bytes of text."""
_DIGEST = 16


@dataclass(frozen=True, eq=False)
class LengthIndex:
    """The lengths of a feature, and the bytes of each record."""

    feature: str
    names: tuple[str, ...]
    """The shards, named as in the index of the dataset."""
    stamps: tuple[int, ...]
    """What an index said of each shard: see :func:`.key_index.stamp_of`."""
    counts: tuple[int, ...]
    """The records of each shard."""
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

    @cached_property
    def _shards(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def _firsts(self) -> list[int]:
        return [0, *accumulate(self.counts)]

    def of_shard(self, entry: ShardEntry) -> RecordLengths | None:
        """Return the lengths of a shard's records.

        Args:
            entry: What the index of the dataset says of the shard.

        Returns:
            ``None`` where this index has another content of the shard, or does not have it; or
            where its records are others in number, or in bytes than the chunks.
        """
        number = self._shards.get(entry.name)
        if number is None or self.stamps[number] != stamp_of(entry):
            return None
        if self.counts[number] != entry.records:  # as of a writer with a fault
            return None
        own = slice(self._firsts[number], self._firsts[number + 1])
        found = RecordLengths(self.records.lengths[own], self.records.sizes[own])
        ends = np.concatenate([[0], np.cumsum(found.sizes, dtype=np.int64)])
        begins = ends[np.asarray(entry.first_records, np.int64)]
        is_whole = ends[-1] == entry.size and bool((begins == entry.begins).all())
        return found if is_whole else None

    def encode(self) -> bytes:
        """Serialize the index."""
        # A file's name need not be UTF-8: Python holds other bytes as surrogates.
        names = [name.encode(errors="surrogateescape") for name in (*self.names, self.feature)]
        text = b"".join(names)
        body = b"".join(
            (
                _HEAD.pack(MAGIC, VERSION, len(self.names), sum(self.counts), len(text)),
                np.array(self.counts, "<i8").tobytes(),
                np.array(self.stamps, "<u8").tobytes(),
                np.array([len(name) for name in names[:-1]], "<u4").tobytes(),
                self.records.lengths.astype("<u4").tobytes(),
                self.records.sizes.astype("<u4").tobytes(),
                text,
            )
        )
        return body + blake2b(body, digest_size=_DIGEST).digest()

    @classmethod
    def parse(cls, data: bytes, *, url: str) -> Self:
        """Parse the bytes that :meth:`encode` gave.

        Raises:
            MalformedIndex: The bytes are not such an index, are damaged, or of a later version.
        """
        try:
            return cls._parse(data)
        except (ValueError, OverflowError):
            raise MalformedIndex(
                "this is not an index of lengths, or it is damaged; write it again with `streamrec "
                "index --lengths FEATURE`",
                url=url,
            ) from None

    @classmethod
    def _parse(cls, data: bytes) -> Self:
        if len(data) < _HEAD.size + _DIGEST:
            raise ValueError
        magic, version, shards, records, text_bytes = _HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise ValueError
        body = data[:-_DIGEST]
        if blake2b(body, digest_size=_DIGEST).digest() != data[-_DIGEST:]:
            raise ValueError
        # Each takes 8 bytes at least, so that no array below is larger than the object.
        if max(shards, records) > len(body) // 8:
            raise ValueError
        at, arrays = _HEAD.size, []
        columns = (("<i8", shards), ("<u8", shards), *[("<u4", n) for n in (shards, records)])
        for dtype, count in (*columns, ("<u4", records)):
            arrays.append(np.frombuffer(body, dtype, count, at))
            at += arrays[-1].nbytes
        counts, stamps, name_lengths, lengths, sizes = arrays
        text, bounds = body[at:], [0, *accumulate(name_lengths.tolist())]
        if not len(text) == text_bytes >= bounds[-1]:
            raise ValueError
        if counts.min(initial=0) < 0 or sum(counts.tolist()) != records:
            raise ValueError
        return cls(
            text[bounds[-1] :].decode(),
            tuple(text[a:b].decode(errors="surrogateescape") for a, b in pairwise(bounds)),
            tuple(stamps.tolist()),
            tuple(counts.tolist()),
            RecordLengths(lengths, sizes),
        )
