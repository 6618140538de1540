from __future__ import annotations

from itertools import accumulate, chain, pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.sources.bert_records import (
    BertForm,
    MaskedPairs,
    SentencePair,
    SentencePairs,
    _tokenize,
    cut_pair,
)
from streamrec.sources.bert_text import Document, WordPieces
from tests.sources.texts import SPECIAL, vocabulary_file

if TYPE_CHECKING:
    from pathlib import Path


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
    assert cut_pair(first, second, most) == tuple(left)


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


CLS, SEP, MASK = 2, 3, 4
WORDS = ["a", "##b", "c", "##d", "e", "f"]
PIECES = WordPieces(
    {piece: number for number, piece in enumerate([*SPECIAL, *WORDS])}, lower=True, digest=""
)
CONTINUES = {6, 8}


def pairs_of(sizes: list[tuple[int, int]], tokens: int, seed: int = 1) -> Any:
    draw = np.random.default_rng(seed)
    rows = [
        (draw.integers(tokens - a + 1), a, draw.integers(tokens - b + 1), b, b % 2, 1000 * seed + n)
        for n, (a, b) in enumerate(sizes)
    ]
    return np.array(rows, np.int64)


def masked(length: int, most: int, fraction: float, *, whole_words: bool = False) -> MaskedPairs:
    return MaskedPairs(PIECES, length=length, most=most, fraction=fraction, whole_words=whole_words)


def words_of(tokens: list[int]) -> list[list[int]]:
    """Return the places of each word's pieces, as BERT's script gathers them."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in (CLS, SEP):
            continue
        if token in CONTINUES and words:
            words[-1].append(place)
        else:
            words.append([place])
    return words


@given(
    st.lists(st.integers(5, 10), min_size=10, max_size=60),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5),
    st.integers(1, 9),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 1 << 40),
)
def test_features(
    tokens: list[int],
    sizes: list[tuple[int, int]],
    most: int,
    fraction: float,
    whole_words: bool,
    seed: int,
) -> None:
    text = np.array(tokens, np.int64)
    pairs = pairs_of(sizes, len(tokens), seed % 97)
    found = masked(15, most, fraction, whole_words=whole_words).features(text, pairs)
    for row, (a, a_tokens, b, b_tokens, label, _) in enumerate(pairs.tolist()):
        one: Any = {name: column[row].tolist() for name, column in found.items()}
        plain = [CLS, *tokens[a : a + a_tokens], SEP, *tokens[b : b + b_tokens], SEP]
        padding = [0] * (15 - len(plain))
        assert one["next_sentence_labels"] == label
        assert one["input_mask"] == [1] * len(plain) + padding
        assert one["segment_ids"] == [0] * (a_tokens + 2) + [1] * (b_tokens + 1) + padding
        count = int(sum(one["masked_lm_weights"]))
        assert one["masked_lm_weights"] == [1.0] * count + [0.0] * (most - count)
        places, ids = one["masked_lm_positions"], one["masked_lm_ids"]
        assert places[:count] == sorted(set(places[:count]))
        assert not any(places[count:])
        assert not any(ids[count:])
        restored = dict(zip(places[:count], ids[:count], strict=True))
        assert all(plain[place] not in (CLS, SEP) for place in restored)
        shown = [restored.get(place, token) for place, token in enumerate(one["input_ids"])]
        assert shown == plain + padding
        assert_chosen(plain, set(restored), most, fraction, whole_words=whole_words)


def assert_chosen(
    plain: list[int], chosen: set[int], most: int, fraction: float, *, whole_words: bool
) -> None:
    wanted = min(most, max(1, round(len(plain) * fraction)))
    if not whole_words:
        assert len(chosen) == min(wanted, len(plain) - 3)
        return
    words = words_of(plain)
    taken = [word for word in words if chosen >= set(word)]
    assert sorted(place for word in taken for place in word) == sorted(chosen)
    assert len(chosen) <= wanted
    # Nothing that fits was left out.
    assert all(len(chosen) + len(word) > wanted for word in words if word not in taken)


def test_the_shares() -> None:
    draw = np.random.default_rng(5)
    pieces = [*SPECIAL, *(f"w{n}" for n in range(995))]
    vocabulary = WordPieces({piece: n for n, piece in enumerate(pieces)}, lower=True, digest="")
    text = draw.integers(5, 1000, 5000)
    maker = MaskedPairs(vocabulary, length=128, most=20, fraction=0.15, whole_words=False)
    pairs = pairs_of([(60, 65)] * 2000, 5000)
    found: Any = maker.features(text, pairs)
    plain: Any = (
        MaskedPairs(vocabulary, length=128, most=1, fraction=0.0, whole_words=False)
        ._tokens(text, pairs)
        .ids
    )
    places = found["masked_lm_positions"]
    assert places.shape == (2000, 20)
    assert found["masked_lm_weights"].sum() == 2000 * 19  # 0.15 of 128
    places = places[:, :19]
    shown = np.take_along_axis(found["input_ids"], places, 1)
    truth = np.take_along_axis(plain, places, 1)
    assert (found["masked_lm_ids"][:, :19] == truth).all()
    is_mask, is_same = shown == MASK, shown == truth
    assert is_mask.mean() == pytest.approx(0.8, abs=0.01)
    assert is_same.mean() == pytest.approx(0.1, abs=0.008)
    others = shown[~is_mask & ~is_same]
    assert len(np.unique(others)) > 950  # of all pieces
    assert others.mean() == pytest.approx(500, rel=0.05)
    # Each place of the text is chosen as often as another.
    counts = np.bincount(places.ravel(), minlength=128)
    assert counts[[0, 61, 127]].tolist() == [0, 0, 0]
    expected = 2000 * 19 / 125
    chi_square = ((np.delete(counts, [0, 61, 127]) - expected) ** 2 / expected).sum()
    assert chi_square < 125 + 5 * (2 * 125) ** 0.5


def test_the_same_pairs_have_the_same_masks() -> None:
    text, maker = np.arange(5, 11).repeat(9), masked(15, 5, 0.3)
    pairs = pairs_of([(5, 6), (3, 2), (6, 6)], len(text))
    whole = maker.features(text, pairs)
    for row in range(3):
        alone = maker.features(text, pairs[row : row + 1])
        for name, column in whole.items():
            np.testing.assert_array_equal(column[row], alone[name][0])
    assert {name: column.dtype.name for name, column in whole.items()} == {
        "input_ids": "int64",
        "input_mask": "int64",
        "segment_ids": "int64",
        "masked_lm_positions": "int64",
        "masked_lm_ids": "int64",
        "masked_lm_weights": "float32",
        "next_sentence_labels": "int64",
    }


def test_sentences_without_tokens_are_left_out(tmp_path: Path) -> None:
    """A line may hold control characters alone, and a document such lines alone."""
    pieces = WordPieces.load(vocabulary_file(tmp_path), lower=True)
    one, two, three = (len(row) for row in pieces.tokenize(["a", "a b", "a b c"]).to_list())
    lines = [["\x01", "a", "\x01", "a b"], ["\x01"], ["a b c", "\x01"]]
    documents = [Document("x", number, sentences) for number, sentences in enumerate(lines)]
    text = _tokenize(documents, pieces)
    assert text.offsets == [0, one, one + two, one + two + three] == [0, 1, 3, 6]
    assert text.sentences == [range(2), range(2, 2), range(2, 3)]
    assert len(text.tokens) == 6


def test_what_leaves_no_room_for_text_is_refused() -> None:
    BertForm(max_seq_length=23).check()
    with pytest.raises(ConfigError, match="--max-predictions-per-seq: 20 is more than the 19 "):
        BertForm(max_seq_length=22).check()
