"""The names of a dataset's objects, and the division of its shards over tasks and splits. Pure."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from streamrec.config.places import SPECIAL, check_no_archive
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

MOST_SHARDS = 99_999
"""The most shards of a dataset: their numbers have five digits."""
_COMPRESSED = frozenset({".gz", ".gzip", ".zlib", ".zst", ".zstd"})
_PART = ".streamrec-part"
_SHARD = re.compile(r"(.+/|)([^/]+)-\d{5}-of-\d{5}[^/]*", re.DOTALL)


class Task(NamedTuple):
    """One of several writers of a dataset, each of which writes shards of its own."""

    number: int
    """From 0 up."""
    tasks: int
    """The number of tasks."""

    @classmethod
    def of(cls, pair: object) -> Self:
        """Check a pair ``(i, n)``.

        Raises:
            ConfigError: It is not such a pair, or ``i`` is not below ``n``.
        """
        match pair:
            case (int(number), int(count)) if 0 <= number < count <= MOST_SHARDS:
                return cls(number, count)
        raise ConfigError(f"task is {pair!r}; give a pair (i, n) with 0 <= i < n, as in (0, 8)")


def owned_shards(shards: int, task: Task) -> range:
    """Return the numbers of a task's shards: consecutive ones, as many as others have, or one more.

    Raises:
        ConfigError: There are fewer shards than tasks.
    """
    if shards < task.tasks:
        raise ConfigError(
            f"{shards} shards cannot be divided over {task.tasks} tasks; give at least one shard "
            "for each task, or fewer tasks"
        )
    # Rounded down at both ends, so that the ranges of all tasks meet and leave nothing out.
    return range(*(shards * n // task.tasks for n in (task.number, task.number + 1)))


@dataclass(frozen=True)
class ShardNames:
    """The names of a dataset's objects, which all stand in one directory."""

    directory: str
    """The URL or path up to its last slash, or nothing."""
    stem: str
    suffix: str

    @classmethod
    def parse(cls, template: str) -> Self:
        """Divide a template such as ``gs://bucket/train.tfrecord``, or ``train-*.tfrecord``.

        Raises:
            ConfigError: It names no shards, or shards in an archive.
        """
        check_no_archive(template)
        directory, slash, name = template.rpartition("/")
        stem, star, suffix = name.partition("*")
        if star:
            # shard() writes its own dash before the number.
            stem = stem.removesuffix("-")
        else:
            suffix = _suffix(name)
            stem = name.removesuffix(suffix)
        if special := SPECIAL.search(stem + suffix):
            raise ConfigError(
                f"the template {template!r} has {special[0]!r} in the shards' names, which stands "
                "for something else in patterns; choose another name, as in 'train.tfrecord'"
            )
        if not stem:
            raise ConfigError(
                f"the template {template!r} gives shards no name; give one such as "
                "'s3://bucket/train.tfrecord', or 'train-*.tfrecord' with a star for the number"
            )
        if (directory + slash).endswith("://"):
            raise ConfigError(
                f"the template {template!r} names no bucket or no shards in it; write both, as in "
                f"'{directory}/bucket/train.tfrecord'"
            )
        return cls(directory + slash, stem, suffix)

    def shard(self, number: int, count: int) -> str:
        """Return the name of a shard."""
        return f"{self.stem}-{number:05}-of-{count:05}{self.suffix}"

    def pattern(self, count: int | None = None) -> str:
        """Return a glob for the shards of a dataset that has ``count`` of them, or any number."""
        of = "?" * 5 if count is None else f"{count:05}"
        return f"{self.stem}-?????-of-{of}{self.suffix}"

    def shards_among(self, names: Iterable[str]) -> list[str]:
        """Return the names that are those of shards, of any number of them."""
        stem, suffix = re.escape(self.stem), re.escape(self.suffix)
        shard = re.compile(rf"{stem}-\d{{5}}-of-\d{{5}}{suffix}")
        return sorted(filter(shard.fullmatch, names))

    def part(self, task: Task) -> str:
        """Return the name of the record that a task keeps of its shards."""
        return f"{self._hidden(task)}{_PART}"

    def staged(self, task: Task, number: int) -> str:
        """Return the name of a task's complete shard until the number of all shards is known."""
        return f"{self._hidden(task)}-{number:05}{self.suffix}{_PART}"

    def parts_among(self, names: Iterable[str]) -> dict[str, Task]:
        """Return the names that are those of tasks' records, with the tasks."""
        part = re.compile(rf"\.{re.escape(self.stem)}\.task-(\d{{5}})-of-(\d{{5}}){_PART}")
        matches = {name: part.fullmatch(name) for name in names}
        return {name: Task(int(m[1]), int(m[2])) for name, m in sorted(matches.items()) if m}

    def staged_among(self, names: Iterable[str], task: Task) -> list[str]:
        """Return the names that are those of a task's shards without their last names."""
        begin = self.staged_prefix(task)
        return sorted(name for name in names if name.startswith(begin) and name.endswith(_PART))

    def staged_prefix(self, task: Task) -> str:
        """Return what the names of a task's shards without their last names begin with."""
        return f"{self._hidden(task)}-"

    def manifest(self) -> str:
        """Return the name of the dataset's manifest."""
        return f"{self.stem}.streamrec-manifest.json"

    def _hidden(self, task: Task) -> str:
        return f".{self.stem}.task-{task.number:05}-of-{task.tasks:05}"


def datasets_among(urls: Iterable[str]) -> set[ShardNames | None]:
    """Return the datasets that shards are of, without suffix; ``None`` for shards of no dataset."""
    matches = map(_SHARD.fullmatch, urls)
    return {ShardNames(match[1], match[2], "") if match else None for match in matches}


def _suffix(name: str) -> str:
    """Return the suffix, of a compressed shard with the one before it: ``.tfrecord.gz``."""
    suffixes = PurePosixPath(name).suffixes
    count = 2 if suffixes and suffixes[-1].lower() in _COMPRESSED else 1
    return "".join(suffixes[-count:])


_HASHES = 1 << 64


@dataclass(frozen=True)
class Splits:
    """The splits of a dataset, such as train and test, and the fraction of the records in each.

    A key's hash is the number that the first eight bytes of its SHA-256 give, big-endian. The
    hashes are cut into one range for each split, in the order of the splits. So a record's split
    follows from its key and the fractions alone, whatever other records there are.
    """

    fractions: dict[str, Fraction]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``train=0.9,test=0.1``.

        Raises:
            ConfigError: It has another form, or the fractions do not add up to 1.
        """
        fractions: dict[str, Fraction] = {}
        for part in text.split(","):
            name, _, fraction = (piece.strip() for piece in part.partition("="))
            try:
                value = Fraction(fraction)
            except (ValueError, ZeroDivisionError):
                # Refused below, with whatever else is wrong with the part.
                value = Fraction(0)
            if not name.replace("_", "").isalnum() or name in fractions or value <= 0:
                raise ConfigError(
                    f"--split: {part.strip()!r} must be a new name and a fraction above 0; give "
                    "them as in train=0.9,validation=0.05,test=0.05"
                )
            fractions[name] = value
        if sum(fractions.values()) != 1:
            total = float(sum(fractions.values()))
            raise ConfigError(f"--split: the fractions add up to {total:g}; make it 1")
        return cls(fractions)

    @property
    def names(self) -> list[str]:
        """The splits' names, in their order."""
        return list(self.fractions)

    def to_dict(self) -> dict[str, str]:
        """Return the fractions as plain data."""
        return {name: str(fraction) for name, fraction in self.fractions.items()}

    def of(self, keys: Iterable[bytes | memoryview]) -> npt.NDArray[np.uint8]:
        """Return the number of each key's split."""
        ends, end = [], Fraction(0)
        for fraction in self.fractions.values():
            end += fraction
            # Exact: a last end below 2^64 would leave the highest hashes without a split.
            ends.append(int(end * _HASHES))
        return np.array([bisect_right(ends, hash_of(key)) for key in keys], np.uint8)


def hash_of(key: bytes | memoryview) -> int:
    """Return a key's hash, from 0 to 2**64 - 1."""
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")


class SplitShards(NamedTuple):
    """The shards of one split."""

    name: str | None
    """``None``: the dataset has no splits."""
    template: str
    """As for ``ShardedWriter``."""
    shards: int | None


def split_shards(
    template: str, splits: Splits | None, shards: int | None, tasks: int
) -> list[SplitShards]:
    """Return the shards of each split, or of the one dataset.

    Args:
        template: The shards' template; or a directory, with a slash at the end. A split's name is
            put after the template's stem.
        splits: The splits; ``None``: there are none.
        shards: The number of shards of all splits together; ``None``: by size. Each split has its
            fraction of them, and one for each task at least.
        tasks: The number of tasks that write them.

    Raises:
        ConfigError: The template gives the shards no name.
    """
    if splits is None:
        whole = template + ("data.tfrecord" if template.endswith("/") else "")
        ShardNames.parse(whole)
        return [SplitShards(None, whole, shards)]
    return [
        SplitShards(
            name,
            _template_of(template, name),
            None if shards is None else max(tasks, round(shards * fraction)),
        )
        for name, fraction in splits.fractions.items()
    ]


def _template_of(template: str, split: str) -> str:
    if template.endswith("/"):
        return f"{template}{split}.tfrecord"
    names = ShardNames.parse(template)
    return f"{names.directory}{names.stem}-{split}{names.suffix}"
