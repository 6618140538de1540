from __future__ import annotations

from itertools import accumulate, chain, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.sources.sentence_pairs import SentencePair, SentencePairs, kept

DOCUMENTS = st.lists(st.lists(st.integers(1, 12), max_size=8), min_size=1, max_size=5)
"""The tokens of the sentences of each document."""


def maker(documents: list[list[int]], most: int, short: float = 0.1) -> SentencePairs:
    offsets = [0, *accumulate(chain.from_iterable(documents))]
    ends = [0, *accumulate(map(len, documents))]
    others = [number for number, sentences in enumerate(documents) if sentences]
    return SentencePairs(
        offsets,
        [range(*bounds) for bounds in pairwise(ends)],
        [others] * len(documents),
        most=most,
        shortest=2,
        short=short,
    )


def owners(documents: list[list[int]]) -> list[int]:
    """Return each token's document."""
    return [number for number, sizes in enumerate(documents) for _ in range(sum(sizes))]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(2, 50))
def test_the_longer_part_is_cut(first: int, second: int, most: int) -> None:
    if first + second <= most:
        return
    left = [first, second]
    while sum(left) > most:
        left[0 if left[0] > left[1] else 1] -= 1
    assert kept(first, second, most) == tuple(left)


@given(DOCUMENTS, st.integers(2, 30), st.floats(0, 1), st.integers(0, 1 << 64))
def test_pairs(documents: list[list[int]], most: int, short: float, seed: int) -> None:
    pairs, owner = maker(documents, most, short), owners(documents)
    filled = sum(1 for sizes in documents if sizes)
    for number, sizes in enumerate(documents):
        found = list(pairs.of(number, 1, Random(seed)))
        assert found == list(pairs.of(number, 1, Random(seed)))
        assert bool(found) == bool(sizes)
        for pair in found:
            assert pair.first_tokens >= 1
            assert pair.second_tokens >= 1
            assert pair.first_tokens + pair.second_tokens <= most
            parts = owner[pair.first : pair.first + pair.first_tokens]
            assert set(parts) == {number}
            (other,) = set(owner[pair.second : pair.second + pair.second_tokens])
            assert (other != number) == bool(pair.is_random and filled > 1)
            if not pair.is_random:
                assert pair.second >= pair.first + pair.first_tokens
        assert [pair.first for pair in found] == sorted(pair.first for pair in found)


def test_all_sentences_are_used() -> None:
    documents = [[3, 4, 2, 5, 1] * 5, [4] * 9]
    whole = maker(documents, most=1000, short=0.0)
    for seed in range(20):
        at = 0
        for pair in whole.of(0, 1, Random(seed)):
            assert pair.first == at
            at += pair.first_tokens + (0 if pair.is_random else pair.second_tokens)
        assert at == sum(documents[0])


def test_one_document_alone_is_its_own_other() -> None:
    (pair,) = maker([[5]], 20).of(0, 1, Random(1))
    assert pair[:5] == SentencePair(0, 5, 0, 5, 1, 0)[:5]


def test_each_time_is_drawn_anew() -> None:
    found = list(maker([[3, 4] * 20, [2] * 30], 20).of(0, 6, Random(5)))
    assert len({pair.seed for pair in found}) == len(found)
    starts = [place for place, pair in enumerate(found) if pair.first <= 4]
    assert len({tuple(found[a:b]) for a, b in pairwise([*starts, len(found)])}) > 5


def script_pairs(documents: list[list[Any]], most: int, short: float, draw: Random) -> Any:
    """Yield the lengths and the label of pairs as BERT's script makes them, token by token."""
    for number, document in enumerate(documents):
        target = draw.randint(2, most) if draw.random() < short else most
        chunk: list[int] = []
        place = 0
        while place < len(document):
            chunk.append(document[place])
            if place == len(document) - 1 or sum(chunk) >= target:
                cut = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                first, second, label = sum(chunk[:cut]), sum(chunk[cut:]), 0
                if len(chunk) == 1 or draw.random() < 0.5:
                    label, rest = 1, target - first
                    other = documents[
                        draw.choice([n for n in range(len(documents)) if n != number])
                    ]
                    second = 0
                    for size in other[draw.randrange(len(other)) :]:
                        second += size
                        if second >= rest:
                            break
                    place -= len(chunk) - cut
                while first + second > most:
                    first, second = (first - 1, second) if first > second else (first, second - 1)
                yield first, second, label
                chunk = []
            place += 1


def test_pairs_are_distributed_as_those_of_the_script() -> None:
    sizes = Random(3)
    documents = [
        [1 + int(sizes.expovariate(0.05)) for _ in range(sizes.randint(1, 30))] for _ in range(200)
    ]
    whole, draw = maker(documents, 125), Random(7)
    ours = [
        (pair.first_tokens, pair.second_tokens, pair.is_random)
        for number in range(len(documents))
        for pair in whole.of(number, 8, draw)
    ]
    theirs = [pair for _ in range(8) for pair in script_pairs(documents, 125, 0.1, draw)]
    assert len(ours) == pytest.approx(len(theirs), rel=0.02)
    for measure in (
        lambda pair: pair[0],
        lambda pair: pair[1],
        lambda pair: pair[2],
        lambda pair: sum(pair[:2]) == 125,
    ):
        means = [sum(map(measure, pairs)) / len(pairs) for pairs in (ours, theirs)]
        assert means[0] == pytest.approx(means[1], rel=0.02)
