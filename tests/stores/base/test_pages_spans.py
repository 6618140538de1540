from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.stores.base.pages import (
    FIRST,
    FURTHER,
    MOST,
    KeySpace,
    NameSpan,
    OutOfOrder,
    cuts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHARS = "0019afFz-/._ é\uffff\U00010000\U0010ffff"
"""Among them one that UTF-16 sorts before another one, and UTF-8 behind it."""
WORDS = st.text(CHARS, max_size=6)
COUNTED = st.builds(
    lambda head, tail, width, first, count, step: [
        f"{head}{number:0{width}}{tail}"
        for number in range(first, first + count * step, max(1, step))
    ],
    WORDS,
    WORDS,
    st.integers(0, 9),
    st.integers(0, 2000),
    st.integers(0, 60),
    st.integers(1, 7),
)
DIRECTORIES = st.builds(
    lambda head, many, few: [f"{head}{a}/{b:03}" for a in range(many) for b in range(few)],
    WORDS,
    st.integers(0, 12),
    st.integers(0, 12),
)
HASHED = st.integers(0, 80).map(
    lambda count: [hashlib.md5(bytes([number])).hexdigest() for number in range(count)]
)
KEYS = (
    st.lists(st.one_of(COUNTED, DIRECTORIES, HASHED, st.lists(WORDS, max_size=40)), max_size=3)
    .map(lambda lists: sorted({key for keys in lists for key in keys if key}))
    .filter(lambda keys: len(keys) < 300)
)


class Store:
    """Lists so many names at a time, those behind one."""

    def __init__(self, names: Sequence[str], size: int) -> None:
        self.names, self.size = names, size
        self.requests = 0

    def page(self, after: str) -> tuple[Sequence[str], bool]:
        self.requests += 1
        start = bisect_right(self.names, after) if after else 0
        return self.names[start : start + self.size], start + self.size < len(self.names)


def listed(store: Store, choose: Callable[[int], int], most: int, prefix: str) -> list[str]:
    """Read as ``choose`` orders the answers; all names as the spans have them in the end."""
    space = KeySpace(prefix, most)
    found: dict[NameSpan, list[str]] = {}
    reading = [*space.spans]
    while reading:
        span = reading[choose(len(reading))]
        names, more = store.page(span.after)
        count, new = space.take(span, names, more=more)
        found.setdefault(span, []).extend(names[:count])
        reading = [each for each in (*reading, *new) if not each.over]
        assert len(reading) <= most
    return [name for span in space.spans for name in found[span]]


@given(KEYS, st.integers(1, 20), st.integers(1, 40), st.randoms(use_true_random=False))
@example([], 1, MOST, Random(0))
def test_every_name_once_and_in_order(
    names: list[str], size: int, most: int, random: Random
) -> None:
    store = Store(names, size)
    assert listed(store, random.randrange, most, "") == names
    assert store.requests <= FIRST + (1 + FURTHER) * -(-len(names) // size) + 1


@given(KEYS, WORDS, st.integers(1, 20), st.randoms(use_true_random=False))
def test_below_a_prefix(names: list[str], prefix: str, size: int, random: Random) -> None:
    names = sorted(prefix + name for name in names)
    assert listed(Store(names, size), random.randrange, MOST, prefix) == names


@given(KEYS.filter(bool), WORDS, st.integers(0, 40), st.integers(0, 3))
def test_cuts_lie_between_the_page_and_the_end(
    names: list[str], until: str, most: int, begin: int
) -> None:
    end = until if until > names[-1] else None
    found = cuts(names, end, most, begin=begin)
    assert len(found) <= most
    assert found == sorted(set(found))
    assert all(names[-1] < cut and (end is None or cut < end) for cut in found)


def rounds(names: Sequence[str], size: int = 1000) -> tuple[int, int]:
    """Return the round trips, if all requests on their way answer at once, and the requests."""
    store, space = Store(names, size), KeySpace("")
    reading, taken = deque(space.spans), 0
    while reading:
        taken += 1
        for _ in range(len(reading)):
            span = reading.popleft()
            page, more = store.page(span.after)
            _, new = space.take(span, page, more=more)
            reading.extend(each for each in (span, *new) if not each.over)
    return taken, store.requests


COUNT = 100_000
SHAPES: dict[str, Callable[[], list[str]]] = {
    "counted": lambda: [f"shard-{number:06}.tfrecord" for number in range(COUNT)],
    "of so many": lambda: [f"train-{number:05}-of-99999" for number in range(COUNT)],
    "not padded": lambda: sorted(f"shard-{number}.tfrecord" for number in range(COUNT)),
    "counted far": lambda: [f"{number:012}" for number in range(COUNT)],
    "in directories": lambda: [f"part-{a:03}/{b:04}.gz" for a in range(100) for b in range(1000)],
    "by date": lambda: [
        f"2026/{a:02}/{b:02}/{c:05}" for a in range(10) for b in range(28) for c in range(357)
    ],
    "hashed": lambda: sorted(hashlib.md5(str(n).encode()).hexdigest() for n in range(COUNT)),
}
"""Makers of names: each worker collects this file, and one runs it."""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_hundred_thousand_names_take_few_round_trips(shape: str) -> None:
    names = SHAPES[shape]()
    taken, requests = rounds(names)
    assert taken <= 20  # one after the other: 100
    assert requests <= (1 + FURTHER + 0.2) * len(names) / 1000


def test_a_page_that_is_all_there_is_costs_one_request() -> None:
    assert rounds(SHAPES["counted"]()[:1000]) == (1, 1)


def test_numbers_are_counted_on_by_whole_pages() -> None:
    names = SHAPES["counted"]()[:1000]
    assert cuts(names, None, 2) == ["shard-009999.tfrecord", "shard-099999.tfrecord"]
    assert cuts(names, "shard-003999.tfrecord", 9) == [
        "shard-001999.tfrecord",
        "shard-002999.tfrecord",
    ]


@pytest.mark.parametrize("name", ["a", "x/é", "shard-9", "\U0010ffff"])
def test_names_that_suggest_nothing(name: str) -> None:
    assert cuts([name], None, MOST) == []


def test_what_all_names_begin_with_is_not_cut() -> None:
    names = [f"v1/{number}" for number in range(3)]
    assert all(cut.startswith("v1/") for cut in cuts(names, None, MOST, begin=3))
    assert not all(cut.startswith("v1/") for cut in cuts(names, None, MOST))


@pytest.mark.parametrize(
    "page", [["b", "a"], ["b", "b"]], ids=["in another order", "one name twice"]
)
def test_a_store_without_order(page: list[str]) -> None:
    space = KeySpace("")
    with pytest.raises(OutOfOrder):
        space.take(space.spans[0], page, more=True)


def test_a_store_that_begins_elsewhere() -> None:
    space = KeySpace("")
    _, [span, *_] = space.take(space.spans[0], ["0", "1"], more=True)
    with pytest.raises(OutOfOrder):
        space.take(span, ["0", "1"], more=True)


def test_pages_without_a_name_of_their_own() -> None:
    space = KeySpace("")
    first = space.spans[0]
    assert space.take(first, [], more=True) == (0, [])
    assert not first.over
    assert space.take(first, [], more=False) == (0, [])
    assert first.over
