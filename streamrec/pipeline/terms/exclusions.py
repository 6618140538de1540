"""The records that are never delivered: their list, and their places among the shards."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.config.places import absolute
from streamrec.errors import ConfigError
from streamrec.masking import masked
from streamrec.plan.state.position import LARGEST
from streamrec.stores.base.source_text import content_name, names_apart
from streamrec.suggestions import close_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from streamrec.values.columns import Indices

MOST_BYTES = 64 << 20
"""Bytes of the longest list."""
MOST_LINE = 4096
"""Bytes of its longest line: a name of a shard has up to 1024."""
MOST_RECORDS = 1_000_000
"""The most records that a list may name; more belong into shards without them."""

_NOTHING = np.empty(0, np.int64)


class NamedRecord(NamedTuple):
    """A record as a list names it."""

    shard: str
    record: int
    place: str
    """The place in the list, for errors."""


@dataclass(frozen=True, eq=False)
class Exclusions:
    """The numbers of the excluded records of each shard."""

    numbers: Mapping[int, Indices]
    """int64, ascending, by the number of the shard."""
    place: str
    """The list, for errors."""

    @property
    def records(self) -> int:
        """The number of excluded records."""
        return sum(map(len, self.numbers.values()))

    def of_shards(self, shards: range) -> Exclusions:
        """Return those of consecutive shards, as if these were all."""
        own = {shard: each for shard, each in self.numbers.items() if shard in shards}
        return Exclusions({shard - shards.start: own[shard] for shard in own}, self.place)

    def pairs(self, urls: Sequence[str]) -> list[tuple[str, int]]:
        """Return the shard and the number of each, as the setting ``exclude`` names them."""
        every = ((urls[shard], numbers.tolist()) for shard, numbers in self.numbers.items())
        return [(url, number) for url, numbers in every for number in numbers]

    def within(self, shard: int, first: int, records: int) -> Indices:
        """Return which of so many records of a shard, from number ``first`` on, are excluded."""
        numbers = self.numbers.get(shard, _NOTHING)
        begin, end = np.searchsorted(numbers, [first, first + records]).tolist()
        return numbers[begin:end] - first

    def names_any(self, shard: int, first: int, end: int | None = None) -> bool:
        """Return whether a record from ``first`` on, and before ``end``, is excluded."""
        return bool(len(self.within(shard, first, (LARGEST if end is None else end) - first)))

    def check_end(self, shard: int, records: int, url: str) -> None:
        """Check, at a shard's end, that it has all records that the list names.

        Raises:
            ConfigError: It has fewer.
        """
        numbers = self.numbers.get(shard, _NOTHING)
        if len(numbers) and numbers[-1] >= records:
            raise ConfigError(_beyond(self.place, numbers.item(-1), records, url))


def read_list(data: bytes, url: str) -> Iterator[NamedRecord]:
    """Yield the records that a list of JSON lines names; it is checked as untrusted input.

    Raises:
        ConfigError: The list is too long, or a line names no record.
    """
    name = masked(url)
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"{name} has more than {MOST_BYTES} bytes; exclude fewer records, or write the shards "
            "again without them"
        )
    file = io.BytesIO(data)
    for number in count(1):
        line = file.readline(MOST_LINE + 1)
        if not line:
            return
        if line.strip():
            yield NamedRecord(*_parse(line, f"{name}, line {number}"))


def _parse(line: bytes, place: str) -> tuple[str, int, str]:
    try:
        value = json.loads(line) if len(line) <= MOST_LINE else None
    except (ValueError, RecursionError):
        value = None
    shard, record = (value.get("shard"), value.get("record")) if type(value) is dict else (0, 0)
    # By type(), since True is an int.
    if type(shard) is not str or not shard or type(record) is not int or not 0 <= record <= LARGEST:
        raise ConfigError(
            f"{place}: this is not a record to exclude; write one JSON object a line, of at most "
            f'{MOST_LINE} bytes, such as {{"shard": "train-00003.tfrecord", "record": 17}}'
        )
    return shard, record, place


def name_pairs(pairs: Sequence[tuple[str, int]]) -> Iterator[NamedRecord]:
    """Yield the records that the setting itself names."""
    return (NamedRecord(*pair, f"exclude[{number}]") for number, pair in enumerate(pairs))


def find_records(
    named: Iterable[NamedRecord], urls: Sequence[str], counts: Sequence[int] | None, place: str
) -> Exclusions:
    """Find the shards of the records that a list names.

    Args:
        named: The records.
        urls: The shards' URLs.
        counts: The number of records of each shard; ``None``: no index tells.
        place: The list, for errors.

    Raises:
        ConfigError: A name stands for no shard or for several, a shard has no such record, or there
            are too many.
    """
    shards_of = cache(ShardLookup(urls).find)
    found: defaultdict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(named):
        if number == MOST_RECORDS:
            raise ConfigError(
                f"{one.place}: more than {MOST_RECORDS} records are excluded; write the shards "
                "again without them"
            )
        try:
            shards = shards_of(one.shard)
        except ConfigError as error:
            raise ConfigError(f"{one.place}: {error.message}") from None
        for shard in shards:
            if counts is not None and one.record >= counts[shard]:
                raise ConfigError(_beyond(one.place, one.record, counts[shard], urls[shard]))
            found[shard].append(one.record)
    numbers = {shard: np.unique(np.array(each, np.int64)) for shard, each in found.items()}
    return Exclusions(numbers, place)


def _beyond(place: str, record: int, records: int, url: str) -> str:
    return (
        f"{place}: there is no record {record} in {masked(url)}, which has {records}, numbered "
        "from 0; correct the number, or leave it out"
    )


class ShardLookup:
    """The shards by their names, or the last parts of these."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._by_last: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for shard, (url, apart) in enumerate(zip(urls, names_apart(urls), strict=True)):
            # A stream has absolute paths, so a list may name what the command line has as relative.
            names = {content_name(url), content_name(absolute(url)), apart}
            # Lists of the command line have names as they are shown: a byte that is not UTF-8 as
            # its number.
            for name in names | {masked(name) for name in names}:
                self._by_last[_last(name)].append((name, shard))

    def find(self, name: str) -> list[int]:
        """Return the numbers of the shard of that name, as often as the source names it.

        Raises:
            ConfigError: There is none, or there are several.
        """
        wanted = content_name(name)
        alike = self._by_last.get(_last(wanted), [])
        exact = {shard for known, shard in alike if known == wanted}
        shards = exact or {shard for known, shard in alike if known.endswith(f"/{wanted}")}
        urls = sorted({self._urls[shard] for shard in shards})
        if not urls:
            close = close_names(_last(wanted), self._by_last, cutoff=0.8)
            hint = f"did you mean {close[0]!r}?" if close else "correct the name, or leave it out"
            raise ConfigError(f"the source has no shard {masked(name)!r}; {hint}")
        if len(urls) > 1:
            raise ConfigError(
                f"{masked(name)!r} may be {masked(urls[0])} or {masked(urls[1])}; write more of "
                "the URL"
            )
        return sorted(shards)


def _last(name: str) -> str:
    return name.rpartition("/")[2]
