"""The records that have one of some values, for the lists of ``exclude``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.examples.specs import FixedLenFeature, RaggedFeature, VarLenFeature
from streamrec.streams.opening import open as open_stream
from streamrec.streams.sources import infer_features

if TYPE_CHECKING:
    from collections.abc import Collection

    from streamrec.config import DatasetSettings
    from streamrec.values.columns import Ragged

    Value: TypeAlias = int | bytes

RECORDS_AT_ONCE = 4096
"""Records of a batch: values of a feature are small, and each batch costs some work."""


class FoundRecord(NamedTuple):
    """A record that has a wanted value."""

    shard: str
    """The URL of its shard."""
    record: int
    """Its number in the shard, from 0."""
    values: tuple[int | str, ...]
    """The wanted values that it has, in their order."""


def find_values(
    settings: DatasetSettings, feature: str, values: Collection[str]
) -> list[FoundRecord]:
    """Read a dataset once, and return the records that have one of the values, by shard and number.

    Args:
        settings: The source and how it is read; what gives another order has no effect.
        feature: The feature, of int64 or bytes. A record may have several values of it, or none.
        values: The values as text: numbers in decimal form, bytes in UTF-8.

    Raises:
        ConfigError: The feature is missing in the first records, or has other values.
        DataError: A record is damaged.
        StoreError: A shard cannot be read.
    """
    source = settings.source
    if isinstance(source, dict):
        raise ConfigError("values are looked for in one source, not in a mix; give its URL")
    dtype = _dtype_of(settings, source, feature)
    wanted = {_value_of(text, feature, dtype) for text in values}
    read = settings.model_dump(include={"compression", "storage_options", "on_corrupt"})
    spec = {feature: RaggedFeature(dtype)}
    found: list[FoundRecord] = []
    with open_stream(source, spec, batch_size=RECORDS_AT_ONCE, engine="thread", **read) as stream:
        for batch in stream:
            assert batch.origin is not None  # there is no mix
            for row, values_of_row in _matches(batch[feature], wanted).items():
                shard, record = batch.origin.shards[row], batch.origin.records[row]
                found.append(FoundRecord(stream.shards[shard], int(record), tuple(values_of_row)))
    return sorted(found)


def _dtype_of(settings: DatasetSettings, source: str | list[str], feature: str) -> str:
    """Return the type of a feature's values, by the first records."""
    inferred = infer_features(
        source, compression=settings.compression, storage_options=settings.storage_options
    )
    if feature not in inferred:
        raise ConfigError(
            f"the first records have no feature {feature!r}; they have {', '.join(inferred)}"
        )
    spec = inferred[feature]
    dtype = str(spec.dtype) if isinstance(spec, FixedLenFeature | VarLenFeature) else ""
    if dtype not in ("int64", "bytes"):
        raise ConfigError(
            f"the feature {feature!r} has no values of int64 or bytes; name one that has"
        )
    return dtype


def _value_of(text: str, feature: str, dtype: str) -> Value:
    if dtype == "bytes":
        return text.encode()
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not an integer, but {feature!r} has integers") from None


def _matches(column: Ragged, wanted: Collection[Value]) -> dict[int, list[int | str]]:
    """Return the wanted values of each row that has one."""
    values: Any = column.values
    listed = values.tolist() if isinstance(values, np.ndarray) else values.to_list()
    places = [place for place, value in enumerate(listed) if value in wanted]
    rows = np.searchsorted(column.row_splits, places, side="right") - 1
    matches: dict[int, list[int | str]] = {}
    for place, row in zip(places, rows.tolist(), strict=True):
        value = listed[place]
        matches.setdefault(row, []).append(value if isinstance(value, int) else value.decode())
    return matches
