"""How a listing is read in many places at once, though nobody knows what names there are. Pure.

A store lists names in their order, a page at a time, each behind the one before it, so that 100,000
names take 100 round trips. It also lists from any name on. So the names behind a page are cut at
names that the page's own suggest: where those count, further numbers. A cut is a guess about where
many names may be, and nothing but speed depends on it: each span is read until the next one's
beginning, whatever is in it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MOST", "KeySpace", "OutOfOrder", "Span", "cuts"]

MOST = 32
"""Pages that are on their way at a time: the stores allow thousands a second."""
FIRST, FURTHER = 8, 2
"""Spans that may be begun at once, and for each page that has come: many of them may be empty."""
REACH = 6
"""Digits on either side of the first one that differs: a counter may be longer than that."""

SAMPLED = 20
"""Every so many names of a page are looked at, to see what they count in."""

_DIGITS = "0123456789"
_UPPER, _LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
_ALPHABETS = (
    *(_DIGITS, _DIGITS + _LOWER[:6], _DIGITS + _UPPER[:6]),
    *(_DIGITS + _LOWER, _DIGITS + _UPPER, _DIGITS + _UPPER + _LOWER),
)
"""What names count in, sorted as stores sort; the smallest that serves is taken."""
_NUMBER = re.compile("[0-9]+")


class OutOfOrder(Exception):
    """The store does not list in the order of names, or not from where it was asked to."""


@dataclass(eq=False, slots=True)
class Span:
    """The names behind one, up to and with another."""

    after: str
    """The last one that is known; empty: none is."""
    until: str | None
    """``None``: the last one of all."""
    over: bool = False
    """All of them are known."""


class KeySpace:
    """The spans of a listing, in the order of their names.

    Args:
        prefix: What all names begin with.
        most: How many spans are read at a time.
    """

    def __init__(self, prefix: str, most: int = MOST) -> None:
        self.spans = [Span("", None)]
        """Whoever has all names of the first ones takes those away."""
        self._prefix, self._most = prefix, most
        self._guesses = FIRST

    def take(self, span: Span, names: Sequence[str], *, more: bool) -> tuple[int, list[Span]]:
        """A page of a span has come.

        Args:
            span: Which one.
            names: What the page lists.
            more: Whether the store has names behind them.

        Returns:
            How many of the names belong to the span, and the spans that are new. The span itself
            goes on unless it is over.

        Raises:
            OutOfOrder: The listing is to be begun again, in one piece.
        """
        if not all(one < other for one, other in pairwise((span.after, *names))):
            raise OutOfOrder
        count = len(names) if span.until is None else bisect_right(names, span.until)
        span.after = names[-1] if names else span.after
        span.over = not more or (span.until is not None and span.after >= span.until)
        return count, self._divide(span, names) if names and not span.over else []

    def _divide(self, span: Span, names: Sequence[str]) -> list[Span]:
        """Cut what is left of a span into as many as may be read besides."""
        self._guesses += FURTHER
        room = self._most - sum(not each.over for each in self.spans)
        found = cuts(names, span.until, min(room, self._guesses), begin=len(self._prefix))
        self._guesses -= len(found)
        spans = [Span(after, until) for after, until in pairwise([*found, span.until]) if after]
        if found:
            span.until = found[0]
        place = self.spans.index(span) + 1
        self.spans[place:place] = spans
        return spans


def cuts(names: Sequence[str], until: str | None, most: int, *, begin: int = 0) -> list[str]:
    """Where to cut what follows a page, so that there is much of it in many of the pieces.

    Args:
        names: The page's, in their order; at least one.
        until: Where it ends; ``None``: nobody knows.
        most: How many cuts.
        begin: How many characters all names have in common, with those to come, too.

    Returns:
        Names that lie between the last one and the end, in their order. They need not exist.
    """
    found: set[str] = set()
    counters = [each for each in _counters(names, begin) if each.room(until)]
    for left, counter in zip(range(len(counters), 0, -1), counters, strict=True):
        here = (most - len(found) + (left > 1)) // (2 if left > 1 else 1)
        found.update(counter.cuts(until, here))
    last = names[-1]
    return sorted(cut for cut in found if last < cut and (until is None or cut < until))


@dataclass(frozen=True, slots=True)
class _Counter:
    """Characters of a name that count."""

    head: str
    """What stands before them."""
    digits: str
    alphabet: str
    tail: str
    """What stands behind them, in the names of the next numbers as well."""
    step: int = 1
    """By how much a page counts on."""

    def room(self, until: str | None) -> int:
        """How many pages there may be before the end, as far as this counter counts."""
        return (self._end(until) - 1 - self._value(self.digits)) // self.step

    def cuts(self, until: str | None, most: int) -> Iterator[str]:
        """At whole pages; close to each other first, where nobody knows how far it counts."""
        room, parts, start = self.room(until), most + 1, self._value(self.digits)
        known = self._bounds(until)
        pages = (
            (room + 1) * part // parts if known else int(room ** (part / parts))
            for part in range(1, parts)
        )
        return (self._name(start + self.step * page) for page in pages if page > 0)

    def _bounds(self, until: str | None) -> bool:
        return until is not None and until.startswith(self.head)

    def _end(self, until: str | None) -> int:
        if until is None or not self._bounds(until):
            return int(len(self.alphabet) ** len(self.digits))
        return self._value(until[len(self.head) :])

    def _value(self, text: str) -> int:
        """What stands at the beginning of a text, as a number of as many digits as ours has."""
        text = text[: len(self.digits)]
        known = "".join(takewhile(self.alphabet.__contains__, text)).ljust(len(self.digits), "0")
        value = 0
        for digit in known:
            value = value * len(self.alphabet) + self.alphabet.index(digit)
        return value

    def _name(self, value: int) -> str:
        digits = ""
        for _ in self.digits:
            value, digit = divmod(value, len(self.alphabet))
            digits = self.alphabet[digit] + digits
        return self.head + digits + self.tail

    def stepping_from(self, name: str) -> _Counter:
        """The same, with the step of a page that begins with that name."""
        step = self._value(self.digits) - self._value(name[len(self.head) :]) + 1
        return _Counter(self.head, self.digits, self.alphabet, self.tail, max(1, step))


def _counters(names: Sequence[str], begin: int) -> Iterator[_Counter]:
    """What counts in a page's last name: what differs in the page; then numbers to the left of it.

    A number to the left is a directory's, for instance: there may be more behind this one.
    """
    first, last = names[0], names[-1]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    start = differs = sum(1 for _ in same)
    alphabet = _alphabet(
        {char for name in names[::SAMPLED] for char in _word(name[differs : differs + 3])}
    )
    if alphabet is not None and begin <= differs < len(last):
        start, stop = _run(last, differs, alphabet, begin)
        counter = _Counter(last[:start], last[start:stop], alphabet, last[stop:])
        yield counter.stepping_from(first)
    for number in reversed(list(_NUMBER.finditer(last, begin, max(begin, start)))):
        low = max(number.start(), number.end() - REACH)
        yield _Counter(last[:low], last[low : number.end()], _DIGITS, "")


def _word(text: str) -> Iterator[str]:
    return takewhile(_ALPHABETS[-1].__contains__, text)


def _alphabet(chars: set[str]) -> str | None:
    if not chars:
        return None
    return next(alphabet for alphabet in _ALPHABETS if chars.issubset(alphabet))


def _run(name: str, place: int, alphabet: str, begin: int) -> tuple[int, int]:
    """Where the characters begin and end that count, around a place."""
    start = stop = place
    while start > max(begin, place - REACH) and name[start - 1] in alphabet:
        start -= 1
    while stop < min(len(name), place + REACH) and name[stop] in alphabet:
        stop += 1
    return start, stop
