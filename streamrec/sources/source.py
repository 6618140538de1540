"""The interface of a source of records, and the declaration of a kind of source.

A source has pieces, which are read independently and in bounded memory. ``streamrec write`` reads
the declarations to print its help and to complete options. So the file of a kind imports NumPy,
stores and other heavy modules only inside the functions that need them.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
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
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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
    source: str, suffixes: tuple[str, ...] = (), storage_options: Mapping[str, Any] | None = None
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


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of ``streamrec write`` for sources of some kinds.

    Args:
        name: The argument of the opening.
        help: The text of ``--help``.
        flag: The name on the command line, without dashes; by default ``name``.
        metavar: The value in ``--help``.
        type: The type of the value; ``bool``: the option has no value.
        choices: The texts to choose among.
        least: The smallest number.
        most: The largest number.
        has_opposite: There is a ``--no-NAME``, too.
        is_repeatable: The opening gets a tuple of all values.
        is_place: The value is a path, or a URL.
        parse: Makes the opening's argument of the value.
    """

    name: str
    help: str
    flag: str | None = None
    metavar: str | None = None
    type: type[str | int | float | bool] = str
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    has_opposite: bool = False
    is_repeatable: bool = False
    is_place: bool = False
    parse: Callable[[Any], Any] | None = None

    @property
    def on_command_line(self) -> str:
        """The option as it is typed."""
        return f"--{self.flag or self.name.replace('_', '-')}"


@dataclass(frozen=True)
class SourceKind:
    """A kind of source, such as CSV.

    Args:
        name: The value of ``--kind``.
        open: Opens a source. Beside the place and the options it gets those of ``storage_options``,
            ``memory``, ``splits`` and ``function`` that it has a parameter for.
        suffixes: The ends of the names that tell the kind.
        options: Its options.
    """

    name: str
    open: Callable[..., Source]
    suffixes: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()

    @cached_property
    def parameters(self) -> Collection[str]:
        """The names of the opening's parameters."""
        return inspect.signature(self.open).parameters.keys()

    @property
    def is_function(self) -> bool:
        """True if SOURCE is a function of the user."""
        return "function" in self.parameters

    @property
    def is_stored(self) -> bool:
        """True if it can be read from a store."""
        return "storage_options" in self.parameters

    def has_suffix(self, *names: str) -> bool:
        """Return whether one of some names tells this kind."""
        return any(name.lower().endswith(self.suffixes) for name in names if self.suffixes)

    def refuse_others(self, typed_names: Collection[str], all_options: Collection[Option]) -> None:
        """Refuse options of other kinds.

        Raises:
            ConfigError: One is given.
        """
        names = {option.name for option in self.options}
        typed = {option.name: option.on_command_line for option in all_options}
        for name in typed_names:
            if name not in names:
                raise ConfigError(
                    f"{typed[name]} does not go with a source of the kind {self.name}; leave it "
                    "out, or name the kind with --kind"
                )
