"""Datasets of MosaicML Streaming (MDS), whose columns become features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from streamrec.errors import ConfigError, DataError
from streamrec.masking import masked
from streamrec.sources.source import DEFAULT_MEMORY, PIECE_BYTES, Block, SourceKind
from streamrec.sources.table import OPTIONS, FeatureChoice, FeatureTable, TableOptions
from streamrec.sources.table_values import RowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Unpack

    from streamrec.sources.mds_shards import MDSColumns, MDSShard
    from streamrec.sources.source import Memory, ReadsIn, Refuse


class _SampleRange(NamedTuple):
    shard: int
    first: int
    stop: int
    """The first sample, and the one past the last."""
    nbytes: int
    """Bytes of the samples, about."""


@dataclass(frozen=True, kw_only=True)
class MDS(FeatureTable):
    """A directory of shards with its index."""

    reads_in: ClassVar[ReadsIn] = "threads"
    unit: ClassVar[str] = "samples"
    labels: ClassVar[None] = None
    shards: list[MDSShard]
    columns: MDSColumns
    memory: Memory = DEFAULT_MEMORY

    @property
    def total(self) -> int:
        """The number of samples."""
        return sum(shard.samples for shard in self.shards)

    def pieces(self) -> Iterator[_SampleRange]:
        """Yield samples of each shard: all of one that is compressed, or that has a hash."""
        for number, shard in enumerate(self.shards):
            each = PIECE_BYTES * shard.samples // max(1, shard.raw_data.bytes) or 1
            # It is decompressed, or hashed, as a whole: in pieces, it would be as often.
            if shard.zip_data is not None or shard.stored.hashes:
                each = shard.samples or 1
            for first in range(0, shard.samples, each):
                stop = min(first + each, shard.samples)
                size = shard.raw_data.bytes * (stop - first) // shard.samples
                yield _SampleRange(number, first, stop, size)

    def read(self, piece: _SampleRange, refuse: Refuse) -> Block:
        """Convert samples."""
        from streamrec.sources.mds_shards import samples_of
        from streamrec.sources.table_columns import encode_table

        file = self.files[piece.shard]
        shard = self.shards[piece.shard]
        samples = samples_of(file, shard, piece.first, piece.stop, self.memory)
        rows = []
        for number, sample in enumerate(samples, piece.first):
            try:
                rows.append(self.columns.values(sample, self.features, self.given))
            except RowError as error:
                refuse(DataError(f"sample {number}: {error}", url=str(file)))
        columns = self.columns.join(rows, self.features)
        records, keys = encode_table(columns, {}, self.key)
        return Block(records, len(samples), keys)


def open_mds(
    place: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    memory: Memory = DEFAULT_MEMORY,
    **table: Unpack[TableOptions],
) -> MDS:
    """Open a directory of shards; see :class:`MDS`.

    Raises:
        ConfigError: The directory is not an MDS dataset, holds no samples, or an argument is wrong.
        DataError: A shard is damaged.
        RecordTooLarge: A shard needs more memory than there is.
    """
    from streamrec.sources.mds_shards import INDEX, MDSColumns, read_index, samples_of
    from streamrec.stores.stored_files import files_below, names_in

    place, options = place.removesuffix(INDEX), storage_options or {}
    is_there = names_in(place or ".", options) is not None
    stored = files_below(place or ".", options) if is_there else {}
    shown = masked(place)
    shards = read_index(stored, shown, memory)
    files = [stored[shard.stored.basename] for shard in shards]
    first = next((pair for pair in zip(files, shards, strict=True) if pair[1].samples), None)
    if first is None:
        raise ConfigError(f"{shown}: there is no sample in it; correct SOURCE")
    choice = FeatureChoice(**table)
    columns = MDSColumns(first[1].columns)
    # The index does not tell the types of arrays, so the first sample does.
    (sample,) = samples_of(*first, 0, 1, memory)
    try:
        types = columns.types(sample, choice.takes)
    except RowError as error:
        raise DataError(f"sample 0: {error}", url=str(first[0])) from None
    unfit = {
        name: f"is of the type {encoding!r}, which no feature has"
        for name, encoding in columns.others.items()
    }
    return MDS(
        files=files,
        shards=shards,
        columns=columns,
        features=choice.choose_typed(types, unfit, shown),
        key=choice.key,
        given=frozenset(choice.given),
        memory=memory,
    )


KIND = SourceKind(
    "mds", open_mds, (".mds", ".mds.zstd", ".mds.gz", ".mds.bz2", "/index.json"), OPTIONS
)
