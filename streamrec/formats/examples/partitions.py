"""Partitions, which say how the values of a RaggedFeature are cut into rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from streamrec.errors import ConfigError
from streamrec.formats.examples.defaults import is_text
from streamrec.kernel.contract import LARGEST_MESSAGE


@dataclass(frozen=True)
class _KeyPartition:
    key: str

    def __post_init__(self) -> None:
        check_key("a partition's key", self.key)


class RowSplits(_KeyPartition):
    """Row ``i`` is the values from ``key[i]`` to ``key[i + 1]``; the first split is 0."""


class RowLengths(_KeyPartition):
    """Row ``i`` has ``key[i]`` values."""


class RowStarts(_KeyPartition):
    """Row ``i`` begins at value ``key[i]``; the first at 0."""


class RowLimits(_KeyPartition):
    """Row ``i`` ends before value ``key[i]``; the last with the values."""


class ValueRowIds(_KeyPartition):
    """Value ``i`` belongs to row ``key[i]``; the rows go up."""


@dataclass(frozen=True)
class UniformRowLength:
    """Every row has so many values."""

    length: Any

    def __post_init__(self) -> None:
        is_number = isinstance(self.length, int) and not isinstance(self.length, bool)
        if not is_number or not 1 <= self.length <= LARGEST_MESSAGE:
            raise ConfigError(
                f"a uniform row length must be a number from 1 to {LARGEST_MESSAGE}, "
                f"not {self.length!r}"
            )


Partition: TypeAlias = (
    RowSplits | RowLengths | RowStarts | RowLimits | ValueRowIds | UniformRowLength
)

PARTITIONS: dict[str, Any] = {
    "row_splits": RowSplits,
    "row_lengths": RowLengths,
    "row_starts": RowStarts,
    "row_limits": RowLimits,
    "value_rowids": ValueRowIds,
    "uniform_row_length": UniformRowLength,
}
"""The classes of partitions by their names in the plain form."""


def check_key(what: str, key: Any) -> None:
    """Refuse a value that is not the name of a feature.

    Raises:
        ConfigError: It is empty, no str, or one that UTF-8 cannot hold.
    """
    if not key or not is_text(key):
        raise ConfigError(f"{what} must be the name of a feature, not {key!r}")


def check_optional_key(what: str, key: Any) -> None:
    """Refuse what is neither ``None`` nor the name of a feature.

    Raises:
        ConfigError: As of :func:`check_key`.
    """
    if key is not None:
        check_key(what, key)


def one_key(key: Any, value_key: Any) -> str | None:
    """Return the feature that two arguments of the same meaning name.

    Raises:
        ConfigError: Both name one, or one is not the name of a feature.
    """
    check_optional_key("key", key)
    check_optional_key("value_key", value_key)
    if key is not None and value_key is not None and key != value_key:
        raise ConfigError(
            f"key={key!r} and value_key={value_key!r} both name the feature of the values; leave "
            "one of them out"
        )
    return key if value_key is None else value_key  # type: ignore[no-any-return]
