"""The kernel's columns that specs need, and helpers to make the specs' columns of them.

The memory that the columns of a batch claim is compared with limits before it is taken.

And numbers in byte strings that zlib has compressed, one string for each record.
"""

from __future__ import annotations

import sys
import threading
import zlib
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec.config.machine import MOST_PIXELS
from streamrec.errors import BatchTooLarge, ConfigError, PictureTooLarge
from streamrec.formats.examples.dtypes import HELD_AS, Overflow, narrow, range_of
from streamrec.formats.examples.faults import ColumnFault, Need
from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType, fresh
from streamrec.values.aligned import copy_aligned
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from streamrec.formats.images.picture import OutputForm
    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import Column, Indices

MIB = 1 << 20
_FIXED = frozenset({ColumnKind.FIXED, ColumnKind.RAW})
"""The kinds of columns that have as many values in every row, so that a record may lack them."""
_ITEM = {DataType.INT64: 8, DataType.FLOAT32: 4, DataType.BYTES: 1}
"""Bytes of a number, or of a byte."""
_OFFSET = 8
"""Bytes that a byte string takes besides its own."""
_WIDEST = {DataType.INT64: 8, DataType.FLOAT32: 1, DataType.BYTES: 4}
"""Bytes that one byte of a record becomes, at most: an int64 may take one byte there, and an empty
string two, which become an offset of eight."""


class DecodeLimits(NamedTuple):
    """The limits of a stream."""

    max_bytes: int | None = None
    """Bytes of the columns of one batch, and of what decoding takes besides; ``None``: any."""
    max_pixels: int = MOST_PIXELS
    """Pixels of one picture."""
    at_once: int = sys.maxsize
    """The most pictures that are decoded at once."""


class Filling(NamedTuple):
    """Columns whose rows are filled from defaults where a record has no values for them."""

    row: int
    """Bytes of a row of all of them."""
    widest: int
    """Bytes that one byte of a record becomes in them, at most."""
    feature: str
    """The feature with the longest default."""

    @classmethod
    def of(cls, plans: Sequence[ColumnPlan]) -> Filling | None:
        """Return the columns of plans that have a default; ``None``: there are none."""
        sizes = {
            plan.name: _row_size(plan) for plan in plans if plan.kind in _FIXED and plan.default
        }
        if not sizes:
            return None
        widest = max(_WIDEST[plan.dtype] for plan in plans if plan.name in sizes)
        return cls(sum(sizes.values()), widest, max(sizes, key=sizes.__getitem__))


def _row_size(plan: ColumnPlan) -> int:
    if plan.dtype is not DataType.BYTES or plan.kind is ColumnKind.RAW:
        return plan.count * _ITEM[plan.dtype]
    texts = [value for value in plan.default or () if isinstance(value, bytes)]
    return sum(map(len, texts)) + _OFFSET * len(texts)


UNLIMITED = DecodeLimits()
"""The limits of a call that parses records which are in memory already."""


def _nothing(_: int) -> None:
    """Take no note of a claim."""


class Claims(threading.local):
    """The bytes that the batch which this thread parses has claimed; each thread has its own.

    Args:
        limits: The limits of the stream.
    """

    def __init__(self, limits: DecodeLimits = UNLIMITED) -> None:
        self.limits = limits
        self._claimed = 0
        self._lengths: npt.NDArray[np.int64] | None = None
        self._admit: Callable[[int], None] = _nothing

    def begin(self, lengths: npt.NDArray[np.int64] | None = None) -> None:
        """Begin with another batch.

        Args:
            lengths: Bytes of each of its records.
        """
        self._claimed, self._lengths = 0, lengths

    @contextmanager
    def admitted_by(self, admit: Callable[[int], None]) -> Iterator[None]:
        """Tell of each claim while the block runs.

        Args:
            admit: Called with the bytes of a claim; it may wait until they are free.
        """
        self._admit = admit
        try:
            yield
        finally:
            # The thread parses other batches later, of which this caller must not hear.
            self._admit = _nothing

    def rows(self, counts: npt.NDArray[np.int64], items: int, size: int, feature: str) -> None:
        """Claim the memory of a column that has more items than the records hold.

        Args:
            counts: The items that each record asks for.
            items: All items of the column.
            size: Bytes of an item.
            feature: The feature that asks for them.

        Raises:
            ColumnFault: The batch would take too much.
        """
        total, most = items * size, self.limits.max_bytes
        if most is not None and self._claimed + total > most:
            row = int(counts.argmax())
            what = f"the column takes {_mib(total)} in this batch"
            message = _too_large(what, int(counts[row]) * size, most)
            raise ColumnFault(row, feature, message, BatchTooLarge)
        self._claim(total)

    def values(self, size: int, feature: str) -> None:
        """Compare what the values of the records take with the limit, and with the records.

        A number of one byte becomes eight, and an empty string takes as many: a batch is refused
        only where its columns take more than its records and the limit together.

        Args:
            size: Bytes of the columns.
            feature: The feature with the widest column.

        Raises:
            ColumnFault: The batch would take too much.
        """
        lengths, most = self._lengths, self.limits.max_bytes
        if most is None or lengths is None or size - int(lengths.sum()) <= most:
            return
        message = (
            f"the values of this batch take {_mib(size)} and its records "
            f"{_mib(int(lengths.sum()))}, but max_bytes allows only {_mib(most)} more than these; "
            "raise max_bytes or memory_budget, or lower batch_size"
        )
        raise ColumnFault(int(lengths.argmax()), feature, message, BatchTooLarge)

    def filling(self, rows: int, held: int, filling: Filling) -> None:
        """Claim what columns with defaults take beyond what the records can hold of them.

        Args:
            rows: The rows of the batch.
            held: Bytes of their records.
            filling: The columns.

        Raises:
            ColumnFault: The batch would take too much.
        """
        total, most = rows * filling.row - held * filling.widest, self.limits.max_bytes
        if total <= 0:
            return
        if most is not None and self._claimed + total > most:
            message = (
                f"default values take {_mib(total)} in this batch of {rows:,} rows, but max_bytes "
                f"allows {_mib(most)} for a batch; raise max_bytes or memory_budget, or lower "
                "batch_size"
            )
            raise ColumnFault(0, filling.feature, message, BatchTooLarge)
        self._claim(total)

    def pictures(
        self, sizes: Sequence[int], works: Sequence[int], feature: str, own: int | None
    ) -> int:
        """Claim the memory of a column of pictures.

        Args:
            sizes: Bytes of each decoded picture.
            works: Bytes that decoding each of them takes besides.
            feature: The pictures' feature.
            own: The limit of the column itself; ``None``: that of the batch alone.

        Returns:
            The number of pictures that may be decoded at once.

        Raises:
            ColumnFault: The pictures would take too much.
        """
        total, most = sum(sizes), self.limits.max_bytes
        # The column's own limit does not count the batch's other columns.
        for limit, claimed in ((own, 0), (most, self._claimed)):
            if limit is not None and claimed + total + max(works, default=0) > limit:
                raise _refuse(sizes, works, feature, limit)
        at_once, taken = 0, 0
        # The costliest first: nothing keeps them from being decoded at the same time.
        for work in sorted(works, reverse=True)[: self.limits.at_once]:
            if most is not None and self._claimed + total + taken + work > most:
                break
            at_once, taken = at_once + 1, taken + work
        self._claim(total + taken)
        # One may be decoded in any case, as the limits above hold for the largest.
        return max(1, at_once)

    def _claim(self, size: int) -> None:
        self._claimed += size
        self._admit(size)


def _largest(sizes: Sequence[int]) -> int:
    return max(range(len(sizes)), key=sizes.__getitem__)


def _refuse(sizes: Sequence[int], works: Sequence[int], feature: str, most: int) -> ColumnFault:
    needed = [size + work for size, work in zip(sizes, works, strict=True)]
    row = _largest(needed)
    if needed[row] > most:
        message = (
            f"the picture takes {_mib(sizes[row])} of pixels and {_mib(works[row])} to decode, but "
            f"max_bytes allows {_mib(most)}; raise max_bytes or memory_budget, if you trust it"
        )
        return ColumnFault(row, feature, message, PictureTooLarge)
    what = f"the batch's pictures take {_mib(sum(sizes) + max(works))}"
    return ColumnFault(row, feature, _too_large(what, needed[row], most), BatchTooLarge)


def _too_large(what: str, largest: int, most: int) -> str:
    return (
        f"{what}, of which this record takes {_mib(largest)}, the most of all, and max_bytes "
        f"allows {_mib(most)} for a batch; raise max_bytes or memory_budget, or lower "
        "batch_size"
    )


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"


Make: TypeAlias = "Callable[[Sequence[Column]], Column]"
"""A function that makes a spec's column from the kernel's columns."""
Share: TypeAlias = "Callable[[Callable[[int], None], int, int], None]"
"""A function that calls another with each number below a count, in any threads.

Its arguments are that function, the count, and the most calls at once. If calls fail, it raises the
error of the one with the lowest number.
"""
FillPicture: TypeAlias = (
    "Callable[[memoryview, OutputForm, npt.NDArray[np.uint8], Callable[[], None]], None]"
)
"""A function that fills an array with a decoded picture, if need be by calling its last argument.

Its arguments are the encoded picture, the form in which it is decoded, the array, and a function
that decodes it into the array.
"""


def one_by_one(work: Callable[[int], None], count: int, _at_once: int = 1) -> None:
    """Call ``work`` with each number below ``count``: a :data:`Share` without threads."""
    for number in range(count):
        work(number)


def decode_anew(
    _encoded: memoryview,
    _wanted: OutputForm,
    _target: npt.NDArray[np.uint8],
    make: Callable[[], None],
) -> None:
    """Decode a picture: a :data:`FillPicture` that keeps none."""
    make()


class Needs:
    """The kernel's columns that specs need; two specs that need the same one share it.

    Args:
        allocate: A function that gives the memory of large columns.
        share: A function that does many pieces of work, as :func:`one_by_one` does.
        fill_picture: A function that fills an array with a picture, as :func:`decode_anew` does.
        claims: Takes note of the memory that columns claim.
    """

    def __init__(
        self,
        allocate: Allocate = fresh,
        share: Share = one_by_one,
        fill_picture: FillPicture = decode_anew,
        claims: Claims | None = None,
    ) -> None:
        self.by_name: dict[str, Need] = {}
        self.numbers: dict[str, int] = {}
        self.allocate = allocate
        self.share = share
        self.fill_picture = fill_picture
        self.claims = Claims() if claims is None else claims

    @property
    def plans(self) -> list[ColumnPlan]:
        """The plans for the kernel, in the order of the numbers that :meth:`add` gave."""
        return [need.plan for need in self.by_name.values()]

    def add(self, plan: ColumnPlan, dtype: str, shape: tuple[int, ...] = ()) -> int:
        """Ask for a column.

        Args:
            plan: The column.
            dtype: The spec's dtype.
            shape: The spec's shape.

        Returns:
            The column's number.

        Raises:
            ConfigError: Another spec needs another column of the same feature.
        """
        known = self.by_name.setdefault(plan.name, Need(plan, dtype, shape))
        if known.plan != plan:
            raise ConfigError(
                f"feature {plan.name!r} is needed as {_words(known.plan)} and as {_words(plan)}, "
                "but can be parsed in one way at a time; leave one of the specs out"
            )
        return self.numbers.setdefault(plan.name, len(self.numbers))

    def getter(
        self, plan: ColumnPlan, dtype: str, shape: tuple[int, ...] = ()
    ) -> Callable[[Sequence[Any]], Any]:
        """Ask for a column as :meth:`add` does; return a function that takes it out of all.

        Of a feature that another column has already, the function returns a copy, so that no two
        columns of a batch share memory.
        """
        is_taken = plan.name in self.by_name
        get = itemgetter(self.add(plan, dtype, shape))
        return (lambda columns: _copy(get(columns))) if is_taken else get


def _copy(column: Any) -> Any:
    if isinstance(column, Ragged):
        return Ragged(_copy(column.values), copy_aligned(column.row_splits))
    if isinstance(column, BytesColumn):
        octets, offsets = copy_aligned(column.values), copy_aligned(column.offsets)
        return BytesColumn(octets, offsets, column.item_shape, len(column))
    return copy_aligned(column)


def _words(plan: ColumnPlan) -> str:
    missing = ", never absent" if plan.kind is ColumnKind.STEPS and plan.default is None else ""
    return f"{plan.kind.value} {plan.dtype.value}{missing}"


def values_of(name: str, dtype: str, needs: Needs, kind: ColumnKind) -> Make:
    """Return a function that gives a feature's values, any number a row; it may be absent."""
    default = () if kind is ColumnKind.STEPS else None
    return column_of(ColumnPlan(name, kind, HELD_AS[dtype], default=default), dtype, needs)


def column_of(plan: ColumnPlan, dtype: str, needs: Needs, shape: tuple[int, ...] = ()) -> Make:
    """Return a function that gives a planned column, narrowed to a spec's dtype.

    Args:
        plan: The kernel's column.
        dtype: The spec's dtype.
        needs: Receives the plan.
        shape: The spec's shape, for errors.
    """
    get, name = needs.getter(plan, dtype, shape), plan.name
    # Nothing is to be narrowed, so that no call is added for every batch.
    if dtype == HELD_AS[dtype].value:
        return get

    def make(columns: Sequence[Column]) -> Column:
        try:
            return _narrow(get(columns), dtype)
        except Overflow as overflow:
            least, greatest = range_of(dtype)
            raise ColumnFault(
                overflow.index,
                name,
                f"the record holds {overflow.value}, but {dtype} is {least} to {greatest}; "
                f"give the spec the dtype {HELD_AS[dtype].value!r}",
            ) from None

    return make


def _narrow(column: Any, dtype: str) -> npt.NDArray[Any] | Ragged:
    """Convert a column to another dtype; the index of an :class:`Overflow` is that of the row."""
    try:
        if isinstance(column, Ragged):
            return Ragged(_narrow(column.values, dtype), column.row_splits)
        return narrow(column, dtype)
    except Overflow as overflow:
        raise Overflow(row_of(overflow.index, column), overflow.value) from None


def row_of(index: int, column: npt.NDArray[Any] | Ragged) -> int:
    """Return the row of a value, given the value's place among all."""
    if isinstance(column, Ragged):
        return int(np.searchsorted(column.row_splits, index, "right")) - 1
    return index // (column.size // len(column))


ZLIB = "zlib"
"""The value of a spec's ``raw`` for such strings."""


def inflate(strings: BytesColumn, sizes: Indices, name: str, needs: Needs) -> npt.NDArray[np.uint8]:
    """Return the bytes of all records, end to end.

    No more comes out than is expected, so a small record cannot fill the memory.

    Args:
        strings: The compressed strings.
        sizes: int64 ``[rows]``: the bytes that each becomes.
        name: The feature's name, for errors.
        needs: Gives the memory, and takes note of it.

    Raises:
        ColumnFault: A string is damaged, or becomes more or fewer bytes.
    """
    needs.claims.rows(sizes, int(sizes.sum()), 1, name)
    places: list[int] = offsets_of(sizes).tolist()
    octets = needs.allocate(places[-1])
    offsets: list[int] = strings.offsets.tolist()
    for row, size in enumerate(sizes.tolist()):
        held = strings.values.data[offsets[row] : offsets[row + 1]]
        plain = _inflate(held, size, row, name)
        octets[places[row] : places[row + 1]] = np.frombuffer(plain, np.uint8)
    return octets


def _inflate(held: Any, size: int, row: int, name: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte more, so that a longer one is seen to be longer.
        plain = stream.decompress(held, size + 1)
    except zlib.error as error:
        why = f"the record's byte string is not intact zlib ({error}); correct raw, or the record"
        raise ColumnFault(row, name, why) from None
    if len(plain) == size and stream.eof:
        return plain
    what = f"{'more' if len(plain) > size else 'fewer'} than the {size} bytes"
    raise ColumnFault(
        row, name, f"the record's byte string becomes {what} that the spec takes; correct the shape"
    )
