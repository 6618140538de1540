"""Encoding of whole columns as serialized Examples and SequenceExamples."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.column_features import (
    Note,
    Slices,
    cut,
    features_of,
    heads,
    joined,
)
from streamrec.formats.examples.example import encode_steps, name_octets, too_large
from streamrec.formats.examples.wire_format import FIRST, SECOND, framed, varint
from streamrec.kernel.contract import LARGEST_MESSAGE
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from streamrec.values.columns import Indices

__all__ = [
    "encode_blocks",
    "encode_examples",
    "encode_present",
    "encode_sequence_examples",
    "no_note",
]

BLOCK_BYTES = 1 << 20

_HEAD = 6
"""The bytes of a head in the largest record: a tag, and a length of five bytes."""


def encode_examples(columns: Mapping[str, Any]) -> BytesColumn:
    """Serialize columns as one ``tf.train.Example`` a row, each as :func:`encode_example` would.

    Args:
        columns: The columns by the features' names, all with the same number of rows: an array
            ``[rows, ...]``, a :class:`BytesColumn`, a :class:`Ragged` (of one kind of values, which
            are stored flat where it is nested), or a list or other sequence of one value a row. A
            batch is such a mapping.

    Returns:
        One record a row.

    Raises:
        WrongFeatureType: A value has no representation, or a column has another number of rows than
            the first; the error names the feature, and the row as ``record``.
    """
    parts = _entries(columns, lambda name, column: _feature(name, column, no_note))
    return _records(parts) if parts else BytesColumn.of([])


def encode_blocks(columns: Mapping[str, Any], note: Note) -> Iterator[BytesColumn]:
    """Serialize columns as :func:`encode_examples` does, in blocks of about a MiB.

    Memory that is used again is ten times as fast as a long column in fresh memory.

    Args:
        columns: The columns, which are checked before this returns.
        note: Given the kinds of each column's values.

    Returns:
        The records of a block at a time, each in memory that is taken when it is asked for.

    Raises:
        WrongFeatureType: As of :func:`encode_examples`.
    """
    parts = _entries(columns, lambda name, column: _feature(name, column, note))
    if not parts:
        return iter(())
    sizes = _checked(_sizes(parts))
    whole = [_head(sizes, FIRST), *parts]
    ends = np.cumsum(sizes)
    blocks = np.flatnonzero(np.diff(ends // BLOCK_BYTES, prepend=0)) + 1
    cuts = [0, *blocks.tolist(), len(sizes)]
    return (
        joined([part.rows(start, stop) for part in whole])
        for start, stop in pairwise(cuts)
        if stop > start
    )


def encode_present(
    columns: Mapping[str, Any], missing: Mapping[str, npt.NDArray[np.bool_]]
) -> BytesColumn:
    """Serialize columns, where some rows lack some features.

    Args:
        columns: At least one column, as :func:`encode_examples` takes them, with any value where
            there is none.
        missing: By a feature's name, bool ``[rows]``: the rows that lack it.
    """

    def encode(name: str, column: Any) -> tuple[Slices, Slices]:
        parts = _feature(name, column, no_note)
        if (absent := missing.get(name)) is None:
            return parts
        head, values = (part._replace(lengths=np.where(absent, 0, part.lengths)) for part in parts)
        return head, values

    return _records(_entries(columns, encode))


def encode_sequence_examples(
    context: Mapping[str, Any] | None, feature_lists: Mapping[str, Any]
) -> BytesColumn:
    """Serialize columns as one ``tf.train.SequenceExample`` a row.

    Each is what :func:`encode_sequence_example` would give.

    Args:
        context: The columns of the features of whole sequences, as :func:`encode_examples` takes
            them; ``None`` means none.
        feature_lists: The columns of steps: a :class:`Ragged` whose ``values`` are a column of one
            value a step, an array ``[rows, steps, ...]``, or a list of one sequence of steps a row.

    Returns:
        One record a row.

    Raises:
        WrongFeatureType: As of :func:`encode_examples`.
    """
    features = _entries(context or {}, lambda name, column: _feature(name, column, no_note))
    lists = _entries(feature_lists, _list)
    if not features and not lists:
        return BytesColumn.of([])
    if features and lists:
        _check_rows(lists[0], min(feature_lists, key=name_octets), features[0], context or {})
    _checked(_sizes([*features, *lists]))
    maps = [(features, FIRST), (lists, SECOND)]
    parts = [[_head(_sizes(entries), tag), *entries] for entries, tag in maps if entries]
    return joined(list(chain.from_iterable(parts)))


def _entries(
    columns: Mapping[str, Any], encode: Callable[[str, Any], tuple[Slices, Slices]]
) -> list[Slices]:
    """Return the parts of a map's entries, sorted by name: each row's heads and values."""
    parts: list[Slices] = []
    for name in sorted(columns, key=name_octets):
        head, values = encode(name, columns[name])
        if parts:
            _check_rows(values, name, parts[0], columns)
        parts += [head, values]
    return parts


def _check_rows(values: Slices, name: str, first: Slices, columns: Mapping[str, Any]) -> None:
    """Check that a column has as many rows as the first one, which is among ``columns``."""
    if len(values.lengths) != len(first.lengths):
        raise WrongFeatureType(
            f"the column has {len(values.lengths)} rows, but that of "
            f"{min(columns, key=name_octets)!r} has {len(first.lengths)}; "
            "give all columns the same number of rows",
            feature=name,
        )


def _head(sizes: Indices, tag: bytes) -> Slices:
    """Return the head of each row's message of entries."""
    return heads(sizes, lambda size: tag + varint(size))


def _records(parts: list[Slices]) -> BytesColumn:
    sizes = _checked(_sizes(parts))
    return joined([_head(sizes, FIRST), *parts])


def _sizes(parts: list[Slices]) -> Indices:
    """Return the bytes of each row."""
    sizes = parts[0].lengths.copy()
    for part in parts[1:]:
        sizes += part.lengths
    return sizes


def _checked(sizes: Indices) -> Indices:
    """Return the sizes of records, none of which is too large."""
    large = np.flatnonzero(sizes > LARGEST_MESSAGE - 2 * _HEAD)
    if len(large):
        raise WrongFeatureType(too_large(int(sizes[large[0]]) + _HEAD), record=int(large[0]))
    return sizes


def no_note(_name: str, _kind: str | None, _row: int) -> None:
    """Note nothing."""


def _feature(name: str, column: Any, note: Note) -> tuple[Slices, Slices]:
    """Return the parts of a feature's entries in the map."""
    begin, values = features_of(name, column, note)
    return _entry(name, values, begin)


def _entry(name: str, values: Slices, begin: Callable[[int], bytes]) -> tuple[Slices, Slices]:
    key = FIRST + framed(name_octets(name))

    def head(size: int) -> bytes:
        inner = begin(size)
        entry = key + SECOND + varint(len(inner) + size) + inner
        return FIRST + varint(len(entry) + size) + entry

    return heads(values.lengths, head), values


def _list(name: str, column: Any) -> tuple[Slices, Slices]:
    """Return the parts of a feature list's entries in the map."""
    if isinstance(column, np.ndarray) and column.dtype != object and column.ndim > 1:
        rows, steps = column.shape[:2]
        every = column.reshape(rows * steps, *column.shape[2:])
        column = Ragged(every, np.arange(rows + 1) * steps)
    if not isinstance(column, Ragged):
        return _entry(name, _by_row(name, column), lambda _: b"")
    begin, values = features_of(name, column.values, no_note)

    def head(size: int) -> bytes:
        feature = begin(size)
        return FIRST + varint(len(feature) + size) + feature

    steps = joined([heads(values.lengths, head), values])
    return _entry(name, cut(steps, column.row_splits), lambda _: b"")


def _by_row(name: str, column: Any) -> Slices:
    lists = []
    for row, steps in enumerate(column):
        try:
            lists.append(encode_steps(steps))
        except (TypeError, ValueError, OverflowError) as error:
            message = f"the value cannot be encoded: {error}"
            raise WrongFeatureType(message, feature=name, record=row) from None
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    values = np.frombuffer(b"".join(lists), np.uint8)
    return Slices(values, offsets_of(lengths)[:-1], lengths)
