"""Values of tables, texts and those of JSON, as values of features: none is changed in silence."""

from __future__ import annotations

import math
import re
import shlex
from ctypes import c_float
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = (2 - 2**-23) * 2.0**127
"""The largest float32."""
EXACT = 1 << 53
"""Doubles hold each whole number up to this one; greater ones were rounded before they came."""
_WHOLE = re.compile(r"\s*([+-]?[0-9]+)(\.0*)?\s*")
_PLAIN = re.compile(r"\s*(?:0|-?[1-9][0-9]*)(?:\.0*)?\s*")
"""A whole number as numbers are written; a zero or a plus before it belongs to a code: 007."""
# Phone numbers and postal codes look like this: as numbers they would lose their first characters.
ODD = re.compile(r"(?:^|\n)[ \t]*(?:[+-]?0[0-9]|\+[0-9]+[ \t]*(?:\n|$))")
"""Texts that are numbers to Python, and would not be the same text again."""


class RowError(ValueError):
    """A value of a row is wrong.

    Args:
        message: What is wrong.
        mends: Types of a column that take the value, each with a word on what it does. Of those
            that do the same, the first that takes the whole column is told.
    """

    def __init__(self, message: str, *mends: tuple[str, str]) -> None:
        super().__init__(message)
        self._mends = mends

    def of_column(self, name: str, *, has_parts: bool = False) -> RowError:
        """Return the error with the column's name, and the options that take the value.

        Args:
            name: The column.
            has_parts: Other values of the column have parts of whole numbers, which int64 refuses.
        """
        types: dict[str, str] = {}
        for dtype, does in self._mends:
            if not (has_parts and dtype == "int64"):
                types.setdefault(does, dtype)
        options = [
            f"--type {shlex.quote(f'{name}={dtype}')}, which {does}"
            for does, dtype in types.items()
        ]
        more = f"; correct it, or add {', or '.join(options)}" if options else ""
        return RowError(f"column {name!r} {self}{more}")


class JsonNumber(float):
    """A number of JSON, with its text: NaN, infinities, and what a column of texts keeps."""

    __slots__ = ("text",)

    def __new__(cls, text: str) -> Self:
        """Read a number."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


class SampledType:
    """The type of a column, as far as the values seen tell it."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._has_gap = False
        """A row has no value."""

    @property
    def dtype(self) -> str | None:
        """The first of int64, float32 and bytes that takes all values; ``None`` without any.

        Whole numbers that are written as 5.0 are int64 beside a gap, as Pandas writes whole numbers
        so there; else they are float32.
        """
        # A column of gaps alone has no type, which the caller decides.
        if not self._kinds:
            return None
        if "text" in self._kinds:
            return "bytes"
        # Pandas turns a column of whole numbers with a gap into floats, so 5.0 is written for 5.
        whole = {"whole", "point"} if self._has_gap else {"whole"}
        return "int64" if self._kinds <= whole else "float32"

    @property
    def has_parts(self) -> bool:
        """True if a number was not whole."""
        return "part" in self._kinds

    @property
    def is_mixed(self) -> bool:
        """True if there were numbers beside texts."""
        return "text" in self._kinds and len(self._kinds) > 1

    def take_text(self, text: str | None) -> None:
        """See a value of a table of texts; ``None``: there is none."""
        if text is None:
            self._has_gap = True
        elif _PLAIN.fullmatch(text):
            self._kinds.add("point" if "." in text else "whole")
        else:
            is_number = _is_number(text) and not ODD.match(text)
            self._kinds.add(_kind_of_number(text) if is_number else "text")

    def take(self, value: Any) -> None:
        """See a value of JSON, or those of a list; ``None``: there is none."""
        if value is None:
            self._has_gap = True
        elif isinstance(value, list):
            for item in value:
                if not isinstance(item, list):  # lists of lists are refused
                    self.take(item)
        # True and False are whole numbers, too: bool is a subclass of int.
        elif isinstance(value, int):
            self._kinds.add("whole")
        elif isinstance(value, float):
            is_whole = value.is_integer() and abs(value) <= EXACT
            self._kinds.add("point" if is_whole else _kind_of_number(value))
        elif isinstance(value, str):
            self._kinds.add("text")

    def add(self, other: SampledType) -> None:
        """See the values that another one has seen."""
        self._kinds |= other._kinds
        self._has_gap |= other._has_gap


def with_parts(types: Mapping[str, SampledType]) -> frozenset[str]:
    """Return the names of the columns with numbers that are not whole."""
    return frozenset(name for name, sampled in types.items() if sampled.has_parts)


def widen(types: dict[str, SampledType], lists: set[str], row: Mapping[str, Any]) -> None:
    """Take a row's values into the types of features, and note its lists."""
    for name, value in row.items():
        types.setdefault(name, SampledType()).take(value)
        if isinstance(value, list):
            lists.add(name)


def _kind_of_number(value: Any) -> str:
    """Return the kind of a number that is not written as a whole one."""
    return "part" if is_part(value) else "other"


def is_part(value: Any) -> bool:
    """Return whether a value is a number that is not whole, which no column of int64 takes."""
    return _is_number(value) and _whole(value) is None and math.isfinite(float(value))


def is_nan(value: Any) -> bool:
    """Return whether a value is NaN, as a number or as a text."""
    if isinstance(value, str):
        return value.strip().lower() == "nan"
    return isinstance(value, float) and math.isnan(value)


def as_value(value: Any, dtype: str, *, is_given: bool = True) -> Any:
    """Return a value of JSON, or text, as one of the type.

    Args:
        value: The value.
        dtype: The type.
        is_given: The user named the type: numbers may be rounded to float32, texts read as numbers
            in any spelling, numbers kept as texts. Else such values are refused.

    Raises:
        RowError: It is not of the type.
    """
    # Bytes are never read as a number: nobody tells their form.
    if isinstance(value, list | dict) or (isinstance(value, bytes) and dtype != "bytes"):
        raise _unfit(value, f"not {dtype}")
    if dtype == "bytes":
        return _as_bytes(value, is_given=is_given)
    if isinstance(value, str) and not is_given and ODD.match(value):
        keep = ("bytes", "keeps the text"), (dtype, "takes the number")
        raise _unfit(value, "written with a zero or a plus before it, as codes are", *keep)
    return (_as_int64 if dtype == "int64" else _as_float32)(value, is_given=is_given)


def _unfit(value: Any, what: str, *mends: tuple[str, str]) -> RowError:
    shown = value.text if isinstance(value, JsonNumber) else repr(value)
    if shown in ("inf", "-inf"):  # what Python makes of 1e400
        shown = f"a number {'below -' if value < 0 else 'above '}1.8e308"
    return RowError(f"holds {shown[:60]}, which is {what}", *mends)


def _as_bytes(value: Any, *, is_given: bool) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise _unfit(value, "half of a character; correct it") from None
    if not is_given:
        raise _unfit(value, "a number in a column of texts", ("bytes", "keeps it as text"))
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return (value.text if isinstance(value, JsonNumber) else repr(value)).encode()


def _as_int64(value: Any, *, is_given: bool) -> int:
    number = _whole(value)
    if number is None:
        text = ("bytes", "keeps the text") if isinstance(value, str) else ("bytes", "makes it text")
        if not _is_number(value):
            raise _unfit(value, "not int64", text)
        if is_nan(value) and not is_given:
            take = (
                ("int64", "takes it as a missing value"),
                ("float32", "keeps it, and rounds numbers"),
            )
            raise _unfit(value, "not int64", *take)
        raise _unfit(value, "not int64", ("float32", "takes it"), text)
    if not -(1 << 63) <= number < 1 << 63:
        raise _unfit(value, "beyond int64", ("bytes", "keeps its digits"))
    return number


def _as_float32(value: Any, *, is_given: bool) -> float:
    if not _is_number(value):
        raise _unfit(value, "not float32", ("bytes", "keeps the text"))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if abs(number) > MOST and not _is_infinity(value, number):
        raise _unfit(value, "beyond float32", ("bytes", "keeps its digits"))
    # A whole number is compared as one: as a double it may be rounded already.
    whole = value if isinstance(value, int) else _whole(value) if isinstance(value, str) else None
    if not is_given and _is_changed(number if whole is None else whole):
        # The message tells what float32 would make of it.
        to = c_float(number).value + 0.0  # not -0
        as_whole = [("int64", "keeps the digits")] if _whole(value) is not None else []
        options = *as_whole, ("bytes", "keeps the digits"), ("float32", "rounds it")
        raise _unfit(value, f"{to:.17g} as float32", *options)
    return number


def _is_infinity(value: Any, number: float) -> bool:
    """Return whether infinity is what was written, and not what a number too large became."""
    text = value.text if isinstance(value, JsonNumber) else value
    # inf, Infinity and nan have an n, and no number in digits does.
    return math.isinf(number) and isinstance(text, str) and "n" in text.lower()


def _is_changed(number: int | float) -> bool:  # noqa: PYI041 - whole ones are not rounded
    """Return whether float32 changes the whole part of a number, or makes it 0."""
    if abs(number) > MOST:
        return isinstance(number, int) or math.isfinite(number)
    narrow = c_float(number).value
    if isinstance(number, int):
        return int(narrow) != number
    return bool(is_emptied(narrow, number) or is_rounded(narrow, number))


def is_rounded(narrow: Any, number: Any, most: float = EXACT) -> Any:
    """Return whether float32 changes the whole part of a number, or of each of some.

    Numbers beyond ``most`` do not count: they may have been rounded before.
    """
    return (abs(narrow - number) >= 1) & (abs(number) <= most)


def is_emptied(narrow: Any, number: Any) -> Any:
    """Return whether a number, or each of some, is too small for float32, which makes it 0."""
    return (narrow == 0) & (number != 0)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        # Python's numbers may have underscores and digits of other scripts; those of tables do not.
        if "_" in value or not value.isascii():
            return False
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float)


def _whole(value: Any) -> int | None:
    """Return the whole number that a value is; ``None``: it is not one."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    match = _WHOLE.fullmatch(value) if isinstance(value, str) else None
    # Python reads no more digits than 4,300 at once.
    return int(match[1]) if match and len(match[1]) < 4000 else None
