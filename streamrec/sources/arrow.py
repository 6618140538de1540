"""Tables of Parquet and Arrow, whose columns become features without an object a value."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from streamrec.errors import ConfigError, DataError, WrongFeatureType
from streamrec.sources.source import (
    DEFAULT_MEMORY,
    PIECE,
    PIECE_ROWS,
    Block,
    Divisible,
    Memory,
    SourceKind,
    files_of,
    part_of,
)
from streamrec.sources.table import NOTHING, OPTIONS, FeatureChoice, FeatureTable, TableOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Unpack

    from streamrec.plan.order.shard_names import Task
    from streamrec.sources.source import ReadsIn, Refuse
    from streamrec.stores.stored_files import StoredFile


log = logging.getLogger("streamrec.write")


def class_labels(schema: Any) -> dict[str, dict[str, int]]:
    """Return the numbers of the classes of each feature that is a ``ClassLabel``.

    Args:
        schema: One of Arrow, whose metadata hold the features of Hugging Face's ``datasets`` as
            JSON: ``{"info": {"features": {name: {"_type": ...}}}}``.
    """
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(text)["info"]["features"].items()
    except (ValueError, KeyError, TypeError, AttributeError):  # of another form
        return {}
    return {name: names for key, kind in features for name, names in _classes(key, kind)}


def _classes(name: str, kind: Any) -> Iterator[tuple[str, dict[str, int]]]:
    if isinstance(kind, list) and kind:  # a list in the form of older versions
        yield from _classes(name, kind[0])
    elif not isinstance(kind, dict):
        return
    elif "_type" not in kind:  # a struct
        for inner, each in kind.items():
            yield from _classes(f"{name}/{inner}", each)
    elif kind["_type"] == "ClassLabel":
        yield name, {text: number for number, text in enumerate(kind.get("names") or ())}
    else:
        yield from _classes(name, kind.get("feature"))


def join_labels(tables: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the class names of all files, without those of features that differ between files."""
    joined: dict[str, dict[str, int]] = {}
    differs = set()
    for table in tables:
        for name, numbers in table.items():
            if joined.setdefault(name, numbers) != numbers:
                differs.add(name)
    for name in sorted(differs):
        log.warning(
            "the class names of column %r differ between files, so a number means another class "
            "in another file; the manifest has no names for them",
            name,
        )
    return {name: numbers for name, numbers in joined.items() if name not in differs}


class _RowBatch(NamedTuple):
    path: StoredFile
    first: int
    batch: Any
    nbytes: int
    """Bytes of its plain values."""


@dataclass(frozen=True, kw_only=True)
class Arrow(FeatureTable, Divisible):
    """Files of Parquet or Arrow (Feather). Structs are named ``outer/inner``."""

    reads_in: ClassVar[ReadsIn] = "threads"
    unit: ClassVar[str] = "rows"
    total: int | None
    groups: Mapping[StoredFile, range] = field(default_factory=dict)
    """The row groups of Parquet to read, where they are not all of a file."""
    labels: dict[str, dict[str, int]] | None = None
    memory: Memory = DEFAULT_MEMORY

    def part(self, task: Task) -> Self | None:
        """Return a task's files, or row groups of Parquet, or ``None`` where there are fewer."""
        part = super().part(task)
        # Files are better than row groups: each is opened by one task alone.
        if part is not None or self.total is None:  # not all is Parquet
            return part
        from streamrec.sources.arrow_batches import count_row_groups

        items = part_of([(f, n) for f in self.files for n in range(count_row_groups(f))], task)
        if items is None:
            return None
        groups: dict[StoredFile, range] = {}
        for file, number in items:
            groups[file] = range(groups.get(file, range(number, number)).start, number + 1)
        return replace(self, files=list(groups), groups=groups)

    def pieces(self) -> Iterator[_RowBatch]:
        """Yield rows of each file; Arrow's own threads decode them."""
        from streamrec.sources.arrow_batches import batches_of, cut

        for file in self.files:
            for first, batch in batches_of(file, self.memory, self.groups.get(file)):
                for begin, stop, size in cut(batch, PIECE_ROWS, PIECE):
                    # A piece of several rows is within its bound; a single row may exceed it.
                    if stop == begin + 1:
                        self.memory.check(size, self.memory.record, f"row {first + begin}", file)
                    yield _RowBatch(file, first + begin, batch.slice(begin, stop - begin), size)

    def read(self, piece: _RowBatch, refuse: Refuse) -> Block:
        """Convert columns, without the rows that are refused."""
        from streamrec.values.columns import BytesColumn

        parts = list(self._good(piece, refuse))
        if len(parts) == 1:
            return Block(parts[0][0], piece.batch.num_rows, parts[0][1])
        records = BytesColumn.of([one for part, _ in parts for one in part.to_list()])
        keys = None if self.key is None else [key for _, some in parts for key in some]
        return Block(records, piece.batch.num_rows, keys)

    def _good(self, piece: _RowBatch, refuse: Refuse) -> Iterator[Any]:
        """Yield the records and keys of a batch, in parts between the rows that are refused.

        Arrow cuts slices of any column, while it cannot take single rows out of some.
        """
        from streamrec.sources.arrow_batches import encode_batch

        waiting = [(piece.first, piece.batch)]
        while waiting:
            first, batch = waiting.pop()
            try:
                yield encode_batch(batch, self.features, self.given, self.key)
            except WrongFeatureType as error:
                row = error.record
                if row is None:
                    error.url = str(piece.path)
                    raise
                what = f"row {first + row}, column {error.feature!r}: {error.message}"
                refuse(DataError(what, url=str(piece.path)))
                # A stack: the part before the refused row is taken next, so that rows keep their
                # order.
                after = first + row + 1, batch.slice(row + 1)
                waiting += [
                    part for part in (after, (first, batch.slice(0, row))) if part[1].num_rows
                ]


def open_arrow(
    place: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    memory: Memory = DEFAULT_MEMORY,
    **table: Unpack[TableOptions],
) -> Arrow:
    """Open tables; see :class:`Arrow`.

    Raises:
        ConfigError: There are no files, they have other columns, or pyarrow is not installed.
    """
    from streamrec.sources.arrow_batches import count_rows, schema_of

    files = files_of(place, KIND.suffixes, storage_options)
    choice = FeatureChoice(**table)
    schemas = {file: schema_of(file) for file in files}
    types = _join({file: _types(file, schemas[file], choice) for file in files}, choice)
    unfit = {n: "has a type that no feature has" for n, dtype in types.items() if dtype is None}
    usable = {name: dtype for name, dtype in types.items() if dtype is not None}
    chosen = choice.choose_typed(usable, unfit, str(files[0]))
    written = {name: dtype for name, dtype in chosen.items() if dtype != NOTHING}
    key = choice.key
    if not written or (key is not None and key not in written):
        raise ConfigError(f"{files[0]}: {key or 'every column'} has no value in any row")
    classes = join_labels(map(class_labels, schemas.values()))
    labels = {name: numbers for name, numbers in classes.items() if name in written}
    return Arrow(
        files=files,
        features=written,
        key=key,
        total=count_rows(files),
        given=frozenset(choice.given),
        labels=labels or None,
        memory=memory,
    )


KIND = SourceKind("arrow", open_arrow, (".parquet", ".arrow", ".feather", ".pq"), OPTIONS)


def _types(file: StoredFile, schema: Any, choice: FeatureChoice) -> dict[str, str | None]:
    """Return the types of a file's features by name.

    Raises:
        ConfigError: Two columns make one feature.
    """
    from streamrec.sources.arrow_fields import feature_types

    types: dict[str, str | None] = {}
    for name, dtype in feature_types(schema):
        if name in types and choice.takes(name):
            raise ConfigError(
                f"{file}: two columns make the feature {name!r}, and a record has one of a name; "
                f"rename one, or leave both out with --drop {quote(name)}"
            )
        types[name] = dtype
    return types


def _join(
    files: Mapping[StoredFile, Mapping[str, str | None]], choice: FeatureChoice
) -> dict[str, str | None]:
    """Return the types that take the values of all files, whose columns may be in any order.

    Raises:
        ConfigError: A file has other columns, or one of them with a type that goes with no other.
    """
    first, joined = next(iter(files.items()))
    joined = dict(joined)
    for file, types in files.items():
        for name in types.keys() ^ joined.keys():
            if choice.takes(name):
                has, lacks = (file, first) if name in types else (first, file)
                raise ConfigError(
                    f"{has} has the column {name!r}, and {lacks} does not; write them as "
                    f"two datasets, or leave it out with --drop {quote(name)}"
                )
        for name in types.keys() & joined.keys():
            pair = {types[name], joined[name]} - {NOTHING}
            if len(pair) > 1 and pair != {"int64", "float32"} and choice.takes(name):
                raise ConfigError(
                    f"{file}: column {name!r} is {types[name]}, but in {first} it is "
                    f"{joined[name]}; write them as two datasets, or leave it out with "
                    f"--drop {quote(name)}"
                )
            joined[name] = "float32" if len(pair) > 1 else next(iter(pair), NOTHING)
    return joined
