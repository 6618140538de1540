"""Compare an order with a perfect shuffle: the shards in each batch, and runs of one shard.

A perfect shuffle is a random permutation of an epoch's records. Both figures have their exact
expectation in one, by formulas of draws without replacement; docs/explanation/shuffling.md explains
them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

LONGEST_NUMBER = 18
"""Digits of the largest record number that is read; int64 has all of so many."""


@dataclass(frozen=True)
class Mixing:
    """Figures that compare an order with a perfect shuffle of the same shards."""

    records: int
    """The records of an epoch."""
    shards: int
    """The shards that have records."""
    batch_size: int
    batches: int
    """The whole batches that were measured."""
    chi_square: float
    """The mean chi-square of the batches, over its expectation in a perfect shuffle."""
    most_chi_square: float
    """The value for batches that have one shard each."""
    run_length: float
    """The mean number of successive records of one shard."""
    perfect_run_length: float
    """The records divided by the number of runs that is expected of a perfect shuffle."""


class MixingMeter:
    """Measures how well an order mixes, part by part.

    Args:
        population: int64 ``[shards]``: the records that each shard has in an epoch.
        batch_size: Records of a batch.

    Raises:
        ConfigError: Any order would do, as there are not two shards with records, or all records
            are in one batch.
    """

    def __init__(self, population: Numbers, batch_size: int) -> None:
        self._population, self._batch_size = population, batch_size
        self._records, self._shards = int(population.sum()), int(np.count_nonzero(population))
        if self._shards < 2:
            raise ConfigError(
                "a shuffle is measured by the shards that records come from, and all records are "
                "of one shard; measure a dataset of several"
            )
        if batch_size >= self._records:
            raise ConfigError(
                f"a batch of {batch_size} has all of the {self._records} records of an epoch, in "
                "any order; give a smaller batch_size"
            )
        self.batches, self._distance = 0, 0.0
        self._added, self._runs, self._last = 0, 0, -1

    def add(self, shards: Numbers) -> None:
        """Add the next records of the order.

        Args:
            shards: int64 ``[n]``: the number of each record's shard. The batch size divides ``n``
                of each part but the last.
        """
        batches = len(shards) // self._batch_size
        batch = np.repeat(np.arange(batches), self._batch_size)
        # Few of all shards have a record in a batch, so their counts are not kept as a matrix.
        shards_count = len(self._population)
        pairs, counts = np.unique(batch * shards_count + shards[: len(batch)], return_counts=True)
        expected = self._batch_size / self._records * self._population[pairs % shards_count]
        # The sum of (count - expected)² / expected, as counts and expected ones have equal sums.
        self._distance += float((counts**2 / expected).sum()) - len(batch)
        self.batches += batches
        self._runs += int(np.count_nonzero(np.diff(shards, prepend=self._last)))
        self._added += len(shards)
        self._last = int(shards[-1]) if len(shards) else self._last

    def mixing(self) -> Mixing:
        """Return the figures of what was added.

        Raises:
            ConfigError: There was no whole batch.
        """
        if not self.batches:
            raise ConfigError(
                f"there is no whole batch of {self._batch_size}; give a smaller batch_size"
            )
        records, size = self._records, self._batch_size
        of_one_shard = float((self._population * (self._population - 1)).sum())
        changes = (self._added - 1) * (1 - of_one_shard / (records * (records - 1)))
        expected = (self._shards - 1) * (records - size) / (records - 1)
        return Mixing(
            records=records,
            shards=self._shards,
            batch_size=size,
            batches=self.batches,
            chi_square=self._distance / self.batches / expected,
            most_chi_square=size * (records - 1) / (records - size),
            run_length=self._added / self._runs,
            perfect_run_length=self._added / (1 + changes),
        )


def mixing_of(shards: Numbers, batch_size: int) -> Mixing:
    """Return how well the order of a whole epoch mixes.

    Args:
        shards: int64 ``[n]``: the number of each record's shard, or of its class, from 0.
        batch_size: Records of a batch.

    Raises:
        ConfigError: There is nothing to mix, as of :class:`MixingMeter`.
    """
    meter = MixingMeter(np.bincount(shards), batch_size)
    meter.add(shards)
    return meter.mixing()


def read_order(lines: Iterable[bytes], population: Numbers | None = None) -> Numbers:
    """Return the shard of each record of an order that is written as ids, one a line.

    Args:
        lines: An id each: ``SHARD:RECORD``, where SHARD is any text; or the record's number, from
            0, counted over all shards in their order. Empty lines are left out.
        population: int64 ``[shards]``: the records of each shard, for numbers.

    Returns:
        int64 ``[n]``: the number of each record's shard.

    Raises:
        ConfigError: There is no id; a line has none, or a number of no record; or lines are of
            both kinds.
    """
    names: dict[bytes, int] = {}
    named, numbers = array("q"), array("q")
    for count, line in enumerate(lines, 1):
        text = line.strip()
        shard, _colon, record = text.rpartition(b":")
        if shard and record:
            named.append(names.setdefault(shard, len(names)))
        elif text.isdigit() and len(text) <= LONGEST_NUMBER:
            numbers.append(int(text))
        elif text:
            raise ConfigError(
                f"line {count} of the order is {text[:80].decode(errors='replace')!r}; write "
                "SHARD:RECORD, or a number of a record"
            )
    if not named and not numbers:
        raise ConfigError("the order is empty; write a line for each record of an epoch")
    if named and numbers:
        raise ConfigError("the order has both SHARD:RECORD and numbers; write all lines alike")
    if named:
        return np.array(named, np.int64)
    return _shards_of_numbers(np.array(numbers, np.int64), population)


def _shards_of_numbers(numbers: Numbers, population: Numbers | None) -> Numbers:
    if population is None:
        raise ConfigError(
            "the order has numbers of records, so the records of each shard must be known; give "
            "the URL of shards that have an index, or write SHARD:RECORD on each line"
        )
    ends = np.cumsum(population)
    if numbers.max() >= ends[-1]:
        raise ConfigError(
            f"the order has a record {numbers.max()}, but the index has {ends[-1]} records, "
            "numbered from 0; give the shards of which this is the order"
        )
    shards: Numbers = np.searchsorted(ends, numbers, "right").astype(np.int64)
    return shards
