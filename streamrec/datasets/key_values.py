"""The values of a feature: their type, and the records that have them, for the index of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.features import parser_of
from streamrec.formats.examples.specs import FixedLenFeature, RaggedFeature, VarLenFeature
from streamrec.formats.shards.key_index import HASH, TYPES, KeyIndex, hashes_of
from streamrec.streams.sources import infer_features
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from streamrec.formats.shards.index import Index
    from streamrec.formats.shards.key_index import Value
    from streamrec.values.columns import Ragged
    from streamrec.values.record_rows import RecordBlock


class KeyCollector:
    """A collector of the values of a feature in a shard, from the shard's blocks in order.

    Args:
        url: The shard, for errors.
        feature: The feature. A record may have several values of it, or none.
        dtype: The type of its values.
    """

    def __init__(self, url: str, feature: str, dtype: str) -> None:
        self._url, self._feature = url, feature
        plain = describe({feature: RaggedFeature(dtype)})
        assert isinstance(plain, dict)
        self._parser = parser_of(plain)
        self._hashes = [np.empty(0, HASH)]
        self._records = [np.empty(0, np.int64)]

    def add(self, block: RecordBlock) -> None:
        """Look at the shard's next block of records.

        Raises:
            DataError: A record is not an Example, or has another type of values.
        """
        column: Any = self._parser.parse(RecordRows.from_block(block), lambda _: self._url)
        ragged = column[self._feature]
        self._hashes.append(hashes_of(values_of(ragged)))
        counts = np.diff(ragged.row_splits)
        self._records.append(np.repeat(np.arange(len(block)) + block.first_ordinal, counts))

    def collected(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        """Return the hash of each value, and the number of its record."""
        return np.concatenate(self._hashes), np.concatenate(self._records)


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


def key_type(
    source: str | Sequence[str],
    feature: str,
    *,
    compression: str | None = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Return the type of a feature's values, by the first records.

    Raises:
        ConfigError: They do not have it, or its values are neither int64 nor bytes.
    """
    source = source if isinstance(source, str) else list(source)
    inferred = infer_features(source, compression=compression, storage_options=storage_options)
    if feature not in inferred:
        raise ConfigError(
            f"the first records have no feature {feature!r}; they have {', '.join(inferred)}"
        )
    spec = inferred[feature]
    dtype = str(spec.dtype) if isinstance(spec, FixedLenFeature | VarLenFeature) else ""
    if dtype not in TYPES:
        raise ConfigError(
            f"the feature {feature!r} has no values of int64 or bytes; name one that has"
        )
    return dtype
