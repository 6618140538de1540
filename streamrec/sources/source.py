"""The interface of a source of records: pieces, read independently and in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
)

from streamrec.errors import ConfigError, RecordTooLarge
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from streamrec.errors import DataError
    from streamrec.formats.examples.feature_types import FeatureTypes
    from streamrec.plan.order.shard_names import Task
    from streamrec.stores.stored_files import StoredFile
    from streamrec.values.columns import BytesColumn


MIB = 1 << 20
PIECE = 16 * MIB
"""Bytes of the values of one piece of a table whose rows' sizes are known."""
PIECE_ROWS = 1024
"""Rows of one piece, however short they are."""
COPIES = 4
"""Copies of a record on its way: as it was read, its values, the record, and its frame."""


class Memory(NamedTuple):
    """The most memory that a source takes."""

    most: int = 1 << 30

    @property
    def record(self) -> int:
        """The most bytes of what becomes one piece: of its copies all take ``most``."""
        return self.most // COPIES

    @property
    def unit(self) -> int:
        """The most bytes that a file makes its reader decompress together."""
        return self.most // 2

    def check(self, size: int, allowed: int, what: str, file: StoredFile) -> None:
        """Compare bytes with those that are allowed, before they are taken.

        Raises:
            RecordTooLarge: They are more.
        """
        if size > allowed:
            needed = -(-size * (self.most // allowed) // MIB)
            raise RecordTooLarge(
                f"{what} takes {size / MIB:,.0f} MiB, and --memory allows {allowed / MIB:,.0f} MiB "
                f"for it; give --memory {needed}MiB or more, if you trust the file",
                url=str(file),
            )


DEFAULT_MEMORY = Memory()
"""The memory where no other is named."""

T = TypeVar("T")

Refuse: TypeAlias = Callable[["DataError"], None]
"""A function that is called with what is wrong with one record. It raises, or notes that the record
is skipped."""
ReadsIn: TypeAlias = Literal["processes", "threads", "itself"]
"""The place where pieces are read: processes, threads, or the writer's own thread in turn."""
PIECE_BYTES = 4 << 20
"""Bytes of a source that one piece has, about: so many that handing it on costs little."""


@dataclass(frozen=True)
class Block:
    """The records of one piece.

    Args:
        records: Serialized records.
        amount: The part of the source's ``total`` that is read with them.
        keys: What determines each record's split; ``None``: the records themselves.
    """

    records: BytesColumn
    amount: int
    keys: Sequence[bytes] | None = None


class Source(Protocol):
    """A source of records. It can be pickled, where it is read by processes."""

    reads_in: ClassVar[ReadsIn]
    """The place where :meth:`read` runs: processes where it is Python's work, threads where
    libraries do it that release the GIL, or in turn with the writer."""
    unit: ClassVar[str]
    """The unit of ``total``."""

    @property
    def total(self) -> int | None:
        """The amount of the whole source, where it is known."""

    @property
    def features(self) -> dict[str, str] | FeatureTypes | None:
        """The types of all features by name, or those of the records read so far.

        ``None``: each feature has the type of the first record with it.
        """

    @property
    def labels(self) -> dict[str, int] | dict[str, dict[str, int]] | None:
        """The numbers of the classes by name, or those of each feature that has classes."""

    @property
    def identity(self) -> Any:
        """The name and version of the records, as JSON has it: other records have another one.

        ``None``: they may be others each time, so shards of a run before are not kept.
        """

    def pieces(self) -> Iterator[Any]:
        """Yield the pieces, in order; the same ones each time."""

    def read(self, piece: Any, refuse: Refuse) -> Block:
        """Read the records of a piece."""


def part_of(items: Sequence[T], task: Task) -> list[T] | None:
    """Return a task's items: consecutive ones, so that the parts of all tasks keep their order.

    ``None``: There are fewer items than tasks.
    """
    if len(items) < task.tasks:
        return None
    from streamrec.plan.order.shard_names import owned_shards

    numbers = owned_shards(len(items), task)
    return list(items[numbers.start : numbers.stop])


@dataclass(frozen=True)
class Divisible:
    """A source of files whose pieces are found only by reading what stands before them."""

    files: list[StoredFile]

    def part(self, task: Task) -> Self | None:
        """Return the source with a task's files alone, so that no other task reads them.

        ``None``: There are fewer files than tasks.

        Raises:
            DataError: A file cannot be read.
            StoreError: It is in a store, and cannot be read.
        """
        files = part_of(self.files, task)
        return None if files is None else replace(self, files=files)


def files_of(
    source: str,
    suffixes: tuple[str, ...] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> list[StoredFile]:
    """Return the files of a path, a URL, a pattern, or a directory with files of these suffixes.

    Raises:
        ConfigError: There are no files.
        StoreError: The store cannot be listed, or has no such object.
    """
    from streamrec.stores.stored_files import find_files

    files = find_files(source, storage_options or {}, suffixes)
    if not files:
        raise ConfigError(
            f"{masked(source)}: there is no such file; correct the path or the pattern"
        )
    return files


def files_digest(files: Iterable[tuple[str, StoredFile]]) -> str:
    """Return a digest of names, sizes and versions of files: other contents have another one."""
    digest = hashlib.sha256()
    for name, file in files:
        digest.update(f"{name}\0{file.size}\0{file.fingerprint}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def table_identity(
    files: Sequence[StoredFile], features: Mapping[str, str], key: str | None = None
) -> dict[str, Any]:
    """Return the name and version of the rows of files, and of their splits by a feature."""
    return {
        "table": [file.name for file in files],
        "digest": files_digest((file.name, file) for file in files),
        "features": features,
        "key": key,
    }
