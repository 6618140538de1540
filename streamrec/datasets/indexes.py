"""The comparison of an index with the shards beside it, and the values for what else is indexed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streamrec.config.places import split_chain
from streamrec.errors import AccessDenied, ConfigError, MalformedIndex, ObjectNotFound, StaleIndex
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.features import parser_of
from streamrec.formats.examples.specs import FixedLenFeature, RaggedFeature, VarLenFeature
from streamrec.formats.shards.index import LARGEST, Index, ShardEntry
from streamrec.formats.shards.index_names import index_places, plain_url
from streamrec.formats.shards.key_index import HASH, TYPES, KeyIndex, hashes_of
from streamrec.formats.shards.length_index import LengthIndex
from streamrec.formats.shards.tfrecord import FOOTER, HEADER, footers
from streamrec.masking import masked, masked_repr
from streamrec.stores.base.protocol import ObjectInfo, read_range
from streamrec.stores.base.source_text import names_alone, names_apart
from streamrec.stores.blocking import Folder
from streamrec.streams.sources import infer_features
from streamrec.values.columns import BytesColumn
from streamrec.values.record_rows import RecordRows
from streamrec.wire.error_fields import to_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.errors import StreamrecError
    from streamrec.formats.shards.key_index import Value
    from streamrec.stores.open import Stores
    from streamrec.values.columns import Ragged
    from streamrec.values.record_rows import RecordBlock

    Numbers = npt.NDArray[np.int64]

AGAIN = "write the index again with `streamrec index`"
FRAME = HEADER + FOOTER
"""Bytes of a record's frame beside its payload."""
COUNTED_TYPES = (*TYPES, "float32")
"""The types of values of which a record has a length."""


class EntryCheck:
    """The comparison of one shard's entry with its records, which are given in order.

    The ETags that an old index has are not compared: every stream does that when it opens a shard.

    Args:
        entry: The index's entry.
        url: The shard's URL, for errors.
    """

    def __init__(self, entry: ShardEntry, url: str) -> None:
        self._entry = entry
        self._url = url
        self._begins = np.asarray(entry.begins, np.int64)
        self._firsts = np.asarray(entry.first_records, np.int64)
        self._crcs = np.asarray(entry.crcs, np.int64)  # 0 where the index has none
        self._next = 0  # the first chunk that no block has reached
        self._faults: list[StaleIndex] = []

    def add(self, block: RecordBlock) -> None:
        """Compare the chunks that begin before or in the shard's next block of records."""
        if not len(block):
            return
        starts = block.offsets + (block.base - HEADER)
        first, self._next = self._next, int(np.searchsorted(self._begins, starts[-1], "right"))
        # Each chunk of the index begins at a record, so the block that holds its place tells
        # whether it is there.
        begins, records = (column[first : self._next] for column in (self._begins, self._firsts))
        at = np.searchsorted(starts, begins)
        wrong = np.flatnonzero((starts[at] != begins) | (at + block.first_ordinal != records))
        for k in wrong.tolist():
            place = f"record {at[k] + block.first_ordinal} begins at byte {starts[at[k]]}"
            self._note(f"record {records[k]} begins at byte {begins[k]}", place)
        crcs, stored = self._crcs[first : self._next], footers(block)[at]
        # Where the place is wrong already, its CRC would be a second fault for one cause.
        others = (starts[at] == begins) & (crcs != 0) & (crcs != stored)
        for k in np.flatnonzero(others).tolist():
            says = f"the record at byte {begins[k]} has the CRC 0x{crcs[k]:08x}"
            self._note(says, f"it has 0x{stored[k]:08x}")

    def finish(self, size: int, records: int, *, is_damaged: bool) -> list[StaleIndex]:
        """Return a fault for each number that the bytes contradict.

        Args:
            size: The shard's size in bytes.
            records: The number of its records.
            is_damaged: True where it has a fault: then only the size is certain, and compared.
        """
        # Behind damage, numbers and places of records are not certain.
        if is_damaged:
            self._faults.clear()
        else:
            for k in range(self._next, len(self._begins)):
                begins = f"record {self._firsts[k]} begins at byte {self._begins[k]}"
                self._note(begins, "no record begins there or after it")
            if self._entry.records != records:
                self._note(f"the shard has {self._entry.records} records", f"it has {records}")
        # Last, and in any case: the size tells of a shard that was written anew.
        if self._entry.size != size:
            says, place = f"the shard has {self._entry.size} bytes", f"it has {size}"
            if is_damaged:
                says += f" and {self._entry.records} records"
                place += f" and {records} intact ones; fetch the shard again if it was cut"
            self._note(says, place)
        return self._faults

    def _note(self, says: str, place: str) -> None:
        fault = StaleIndex(f"the index says that {says}, and {place}; {AGAIN}", url=self._url)
        self._faults.append(fault)


@dataclass
class IndexCheck:
    """The comparison of the index that stands beside the shards, if there is one."""

    url: str | None = None
    """The index's URL; ``None`` where none stands beside the shards."""
    faults: list[StreamrecError] = field(default_factory=list)
    _entries: dict[str, ShardEntry] = field(default_factory=dict)

    __repr__ = masked_repr

    async def find(self, stores: Stores, urls: Sequence[str]) -> None:
        """Read the index where ``index=True`` of a stream looks for it."""
        for place in index_places(urls) if _share_a_directory(urls) else ():
            # A store that may not be listed denies access to what does not exist.
            with suppress(ObjectNotFound, AccessDenied):
                # One byte more than the largest index, so that a longer object is noticed
                # without reading it all.
                data, _ = await read_range(
                    stores.store_for(place), ObjectInfo(place), 0, LARGEST + 1
                )
                self.url = place
                self._select(data.tobytes(), urls)
                return

    def to_dict(self) -> dict[str, Any] | None:
        """Return the result as plain data; ``None`` where no index stands beside the shards."""
        if self.url is None:
            return None
        return {"url": masked(self.url), "faults": [to_fields(fault) for fault in self.faults]}

    def entry(self, url: str) -> EntryCheck | None:
        """Return the check of a shard; ``None`` where the index has no entry for it."""
        stored = self._entries.get(url)
        return None if stored is None else EntryCheck(stored, url)

    def _select(self, data: bytes, urls: Sequence[str]) -> None:
        assert self.url is not None
        try:
            index = Index.parse(data, url=self.url)
        except MalformedIndex as fault:
            self.faults.append(fault)
            return
        names = names_apart(urls)
        for url, name in zip(urls, names, strict=True):
            if (shard := index.find(names_alone(name, url))) is not None:
                self._entries[url] = index.entries[shard]
            else:
                message = f"the index has no shard of this name ({name}); {AGAIN}"
                self.faults.append(StaleIndex(message, url=url))


def _share_a_directory(urls: Sequence[str]) -> bool:
    """Return whether the shards are in one store or archive, in one bucket or of one host."""
    places = {tuple(url.split("/")[:3]) if "://" in url else () for url in urls}
    return len(places) == 1 == len({split_chain(url).after for url in urls})


class FeatureCollector(ABC):
    """A collector of a feature of a shard's records, from the shard's blocks in order.

    Args:
        url: The shard, for errors.
        feature: The feature. A record may have several values of it, or none.
        dtype: The type of its values.
    """

    DTYPE: ClassVar[np.dtype[Any]]

    def __init__(self, url: str, feature: str, dtype: str) -> None:
        self._url, self._feature = url, feature
        plain = describe({feature: RaggedFeature(dtype)})
        assert isinstance(plain, dict)
        self._parser = parser_of(plain)
        self._parts: list[tuple[npt.NDArray[Any], Numbers]] = []

    def add(self, block: RecordBlock) -> None:
        """Look at the shard's next block of records.

        Raises:
            DataError: A record is not an Example, or has another type of values.
        """
        column: Any = self._parser.parse(RecordRows.from_block(block), lambda _: self._url)
        self._parts.append(self._take(column[self._feature], block))

    @abstractmethod
    def _take(self, ragged: Ragged, block: RecordBlock) -> tuple[npt.NDArray[Any], Numbers]:
        """Return what is collected of a block."""

    def collected(self) -> tuple[npt.NDArray[Any], Numbers]:
        """Return both columns of the shard."""
        nothing = np.empty(0, self.DTYPE), np.empty(0, np.int64)
        first, second = zip(nothing, *self._parts, strict=True)
        return np.concatenate(first), np.concatenate(second)


class KeyCollector(FeatureCollector):
    """A collector of the hash of each value, and the number of its record."""

    DTYPE = HASH

    def _take(self, ragged: Ragged, block: RecordBlock) -> tuple[npt.NDArray[Any], Numbers]:
        records = np.arange(len(block)) + block.first_ordinal
        return hashes_of(values_of(ragged)), np.repeat(records, np.diff(ragged.row_splits))


class LengthCollector(FeatureCollector):
    """A collector of the length of each record, and its bytes with the frame.

    The length is the number of a record's values of a feature; of bytes, their bytes.
    """

    DTYPE = np.dtype(np.int64)

    def _take(self, ragged: Ragged, block: RecordBlock) -> tuple[npt.NDArray[Any], Numbers]:
        splits = ragged.row_splits
        if isinstance(ragged.values, BytesColumn):
            splits = ragged.values.offsets[splits]
        return np.diff(splits), block.lengths + FRAME


def values_of(column: Ragged) -> list[Value]:
    """Return all values of a column, of all its rows."""
    values: Any = column.values
    listed: list[Value] = values.tolist() if isinstance(values, np.ndarray) else values.to_list()
    return listed


def key_indexes(
    index: Index, collectors: Sequence[Sequence[KeyCollector]], types: Mapping[str, str]
) -> list[KeyIndex]:
    """Make the index of each key.

    Args:
        index: The index of the dataset.
        collectors: For each of its shards, those of all keys.
        types: The type of the values of each feature, by its name.
    """
    return [
        KeyIndex.of(feature, dtype, index.entries, [each[n].collected() for each in collectors])
        for n, (feature, dtype) in enumerate(types.items())
    ]


def length_indexes(
    index: Index, collectors: Sequence[Sequence[LengthCollector]], features: Iterable[str]
) -> list[LengthIndex]:
    """Make the index of the lengths of each feature.

    Args:
        index: The index of the dataset.
        collectors: For each of its shards, those of all features.
        features: The features.

    Raises:
        ConfigError: A record has 4 GiB or more.
    """
    return [
        LengthIndex.of(feature, index.entries, [each[n].collected() for each in collectors])
        for n, feature in enumerate(features)
    ]


def typed_feature(
    source: str | Sequence[str],
    feature: str,
    types: Sequence[str] = TYPES,
    *,
    split: str | None = None,
    compression: str | None = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[str, str]:
    """Return a feature, and the type of its values: as ``FEATURE:TYPE``, or by the first records.

    Raises:
        ConfigError: They do not have it, or its values have another type.
    """
    name, _, given = feature.rpartition(":")
    if given in types:
        return name, given
    source = source if isinstance(source, str) else list(source)
    inferred = infer_features(
        source, split=split, compression=compression, storage_options=storage_options
    )
    later = f"if later records have it, give its type, as {feature}:{types[0]}"
    if feature not in inferred:
        raise ConfigError(
            f"the first records have no values of {feature!r}; they have {', '.join(inferred)}; "
            f"{later}"
        )
    spec = inferred[feature]
    dtype = str(spec.dtype) if isinstance(spec, FixedLenFeature | VarLenFeature) else ""
    if dtype not in types:
        known = f"{', '.join(types[:-1])} or {types[-1]}"
        raise ConfigError(f"the feature {feature!r} has no values of {known}; name one that has")
    return feature, dtype


def check_replaced(url: str, index: Index, storage_options: Mapping[str, Any]) -> None:
    """Check that an index which stands at a place is not needed by shards that the new one lacks.

    Args:
        url: The place.
        index: The new index.
        storage_options: Those of its store.

    Raises:
        ConfigError: Shards that are still there are in the old index alone.
    """
    if url != plain_url(url):  # in an archive, or signed: nothing is written there
        return
    directory, slash, name = url.rpartition("/")
    folder = Folder(f"{directory}{slash}", storage_options)
    data = folder.read(name)
    with suppress(MalformedIndex):
        old = () if data is None else Index.parse(data, url=url).columns.names
        known = set(index.columns.names)
        if others := {one for one in old if one not in known} & folder.sizes().keys():
            raise ConfigError(
                f"{masked(url)} is the index of {masked(min(others))}, too, which was not given; "
                "give all shards, or name another place by --output"
            )
