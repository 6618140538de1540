"""The document ``dataset_info.json`` of a TFDS folder: the splits, and the names of their shards.

Its schema is ``dataset_info.proto`` of tensorflow_datasets, written as JSON by protobuf, which
writes 64-bit integers as texts. The names of shards follow ``naming.ShardedFileTemplate`` there.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from streamrec.config.record_choice import ALL, split_parts
from streamrec.errors import ConfigError, MalformedIndex, UnsupportedFormat
from streamrec.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamrec.config.record_choice import SplitPart

INFO = "dataset_info.json"
"""The document's name in its folder."""
READ = "tfrecord"
"""The format of shards that is read."""
DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_FEWEST_DIGITS = 5
_LARGEST = (1 << 63) - 1
_VARIABLE = re.compile(r"\{(\w*)\}")


class FolderShard(NamedTuple):
    """The records of one shard that a stream reads."""

    split: str
    name: str
    """The shard's name, relative to the folder."""
    first: int
    """The number in the shard of the first of them."""
    records: int
    """Their number."""
    total: int
    """All records of the shard."""


@dataclass(frozen=True)
class FolderSplit:
    """One split of a TFDS folder."""

    name: str
    shard_lengths: tuple[int, ...]
    """The records of each shard."""
    names: tuple[str, ...]
    """The name of each shard, relative to the folder."""
    stored_bytes: int
    """Bytes of all shards, as TFDS counts them; 0: it did not count."""

    @property
    def records(self) -> int:
        """The records of all shards."""
        return sum(self.shard_lengths)

    def cut(self, first: int, last: int) -> Iterator[FolderShard]:
        """Yield the shards with the records from ``first`` to before ``last`` of the split."""
        begin = 0
        for name, total in zip(self.names, self.shard_lengths, strict=True):
            low, high = max(first - begin, 0), min(last - begin, total)
            if low < high:
                yield FolderShard(self.name, name, low, high - low, total)
            begin += total


@dataclass(frozen=True)
class FolderInfo:
    """The facts about a TFDS folder."""

    name: str
    config: str
    """The name of the builder's configuration; empty: it has none."""
    version: str
    splits: Mapping[str, FolderSplit]

    @classmethod
    def parse(cls, data: bytes, url: str) -> Self:
        """Parse the document.

        Args:
            data: Its bytes.
            url: Its place, for errors.

        Raises:
            MalformedIndex: It is not such a document.
            UnsupportedFormat: The shards are not TFRecords.
        """
        table = object_of(data, url)
        try:
            form = table.get("fileFormat") or READ
            found = [_split(split, table["name"], form) for split in table["splits"]]
            splits = {split.name: split for split in found}
            _check_once("split", [split.name for split in found])
            info = cls(table["name"], _text(table, "configName"), _text(table, "version"), splits)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedIndex(
                f"this is not a {INFO} with splits and the lengths of their shards ({error!r}); "
                "write the folder with tensorflow_datasets 4 or later, or name the shards by a "
                "pattern and leave split out",
                url=url,
            ) from None
        if form != READ:
            raise UnsupportedFormat(
                f"the shards of this folder are in the format {form!r}, and {READ!r} is read; "
                "convert them with `streamrec write`, if it reads this format, or prepare the "
                f"dataset with file_format={READ!r}",
                url=url,
            )
        return info

    def shards(self, text: str) -> list[FolderShard]:
        """Return the shards of the splits that a text names, in the order of the text.

        Args:
            text: Names with slices, as :func:`.split_parts` reads them.

        Raises:
            ConfigError: There is no such split, it has fewer records than a slice names, or no
                record is left.
        """
        found = [shard for part in self.parts(text) for shard in self._cut(part)]
        if not found:
            raise ConfigError(
                f"split {text!r} selects no record of {self.name}; {self._there_are}; give a "
                "larger slice"
            )
        return found

    def parts(self, text: str) -> Iterator[SplitPart]:
        """Yield the parts that a text names, with each split in place of ``all``."""
        for part in split_parts(text):
            if part.name == ALL and ALL not in self.splits:
                yield from (part._replace(name=name) for name in self.splits)
            else:
                yield part

    def _cut(self, part: SplitPart) -> Iterator[FolderShard]:
        split = self.splits.get(part.name)
        if split is None:
            hint = did_you_mean(part.name, self.splits, "give one of these")
            raise ConfigError(f"{self.name} has no split {part.name!r}; {self._there_are}; {hint}")
        try:
            return split.cut(*part.records(split.shard_lengths))
        except ValueError as error:
            raise ConfigError(f"split of {self.name}: {error}") from None

    @property
    def _there_are(self) -> str:
        counts = [f"{name} ({split.records:,} records)" for name, split in self.splits.items()]
        return f"there are {', '.join(counts) or 'none'}"


def object_of(data: bytes, url: str) -> dict[str, Any]:
    """Return the object of a JSON document.

    Raises:
        MalformedIndex: It is something else.
    """
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    if isinstance(table, dict):
        return table
    raise MalformedIndex("this is not a JSON object; fetch the folder again", url=url)


def integer_of(number: Any) -> int:
    """Return an integer of a document, which may be a text.

    Raises:
        ValueError: It is something else, such as a fraction or infinity.
    """
    if type(number) not in (int, str):
        raise ValueError(f"{number!r} is not an integer")
    return int(number)


def _text(table: Mapping[str, Any], name: str) -> str:
    text = table.get(name, "")
    if not isinstance(text, str):
        raise TypeError(f"the {name} is not a text")
    return text


def _split(table: Mapping[str, Any], dataset: str, form: str) -> FolderSplit:
    if not isinstance(table["name"], str) or not isinstance(table["shardLengths"], list):
        raise TypeError("a split has no name, or no list of lengths")
    lengths = tuple(map(_count, table["shardLengths"]))
    _count(sum(lengths))
    template = table.get("filepathTemplate") or DEFAULT_TEMPLATE
    names = tuple(
        _name(template, {"DATASET": dataset, "SPLIT": table["name"], "FILEFORMAT": form}, *place)
        for place in ((number, len(lengths)) for number in range(len(lengths)))
    )
    _check_once("shard", names)
    return FolderSplit(table["name"], lengths, names, _count(table.get("numBytes", 0)))


def _count(number: Any) -> int:
    count = integer_of(number)
    if not 0 <= count <= _LARGEST:
        raise ValueError(f"{count} is not a number from 0 to {_LARGEST}")
    return count


def _check_once(what: str, names: Sequence[str]) -> None:
    if len({*names}) < len(names):
        raise ValueError(f"two of the {what}s have one name")


def _name(template: str, values: Mapping[str, str], number: int, shards: int) -> str:
    """Return the name of a shard, as a template of TFDS gives it."""
    digits = max(_FEWEST_DIGITS, len(str(shards)))
    index, count = f"{number:0{digits}}", f"{shards:0{digits}}"
    numbers = {"SHARD_INDEX": index, "NUM_SHARDS": count, "SHARD_X_OF_Y": f"{index}-of-{count}"}
    every = {**values, **numbers}
    name = _VARIABLE.sub(lambda match: every[match[1]], template)
    # A document must not name what is outside of its folder.
    if name.startswith("/") or ".." in name.split("/") or not name.isprintable():
        raise ValueError(f"{name!r} names no object in the folder")
    return name
