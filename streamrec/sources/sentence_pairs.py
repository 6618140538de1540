"""The pairs of text of BERT's pre-training: two parts of documents, as places in their tokens.

It does what the well-known ``create_pretraining_data.py`` does: a pair is filled with sentences up
to a target length and cut between two of them. In half of the pairs the second part is replaced by
sentences from elsewhere, and the replaced ones begin the next pair.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random


class SentencePair(NamedTuple):
    """One pair: two parts, each so many tokens from a place on."""

    first: int
    first_tokens: int
    second: int
    second_tokens: int
    is_random: int
    """1: the second part does not follow the first one."""
    seed: int
    """The seed of what else is drawn for the pair."""


class SentencePairs:
    """The pairs of documents.

    Args:
        offsets: The places of the sentences' first tokens, and the end of the last; no sentence is
            without tokens.
        documents: The sentences of each document.
        others: For each document the documents that a random second part comes from, among them
            itself; it is taken from itself only where there is no other.
        most: The most tokens of a pair.
        shortest: The fewest tokens that a pair that is to be short is filled to.
        short: The fraction of documents whose pairs are to be short.
    """

    def __init__(
        self,
        offsets: Sequence[int],
        documents: Sequence[range],
        others: Sequence[Sequence[int]],
        *,
        most: int,
        shortest: int,
        short: float,
    ) -> None:
        self._offsets, self._documents, self._others = offsets, documents, others
        self._most, self._shortest, self._short = most, shortest, short

    def of(self, document: int, times: int, draw: Random) -> Iterator[SentencePair]:
        """Yield the pairs of one document so many times, each time drawn anew."""
        for _ in range(times):
            yield from self._once(document, draw)

    def _once(self, document: int, draw: Random) -> Iterator[SentencePair]:
        offsets, most = self._offsets, self._most
        target = most
        if draw.random() < self._short:
            target = self._shortest + _below(draw, most - self._shortest + 1)
        place, stop = self._documents[document].start, self._documents[document].stop
        while place < stop:
            end = self._filled(place, target, stop)
            middle = place + 1 + (_below(draw, end - place - 1) if end - place > 1 else 0)
            first = offsets[place], offsets[middle]
            if middle == end or draw.random() < 0.5:
                second = self._elsewhere(document, target - first[1] + first[0], draw)
                yield _pair(first, second, 1, most, draw)
                place = middle
            else:
                yield _pair(first, (first[1], offsets[end]), 0, most, draw)
                place = end

    def _filled(self, place: int, target: int, stop: int) -> int:
        """Return the end of the sentences from ``place`` that have so many tokens, at least one."""
        return bisect_left(self._offsets, self._offsets[place] + target, place + 1, stop)

    def _elsewhere(self, document: int, target: int, draw: Random) -> tuple[int, int]:
        others = self._others[document]
        # One is left out: where the document itself is drawn, the last stands in for it.
        number = others[_below(draw, max(1, len(others) - 1))]
        if number == document:
            number = others[-1]
        sentences = self._documents[number]
        place = sentences.start + _below(draw, len(sentences))
        end = self._filled(place, target, sentences.stop)
        return self._offsets[place], self._offsets[end]


def _pair(
    first: tuple[int, int], second: tuple[int, int], is_random: int, most: int, draw: Random
) -> SentencePair:
    """Cut two parts, each from a token to another, to the most tokens of a pair."""
    begin, size = first[0], first[1] - first[0]
    other_begin, other_size = second[0], second[1] - second[0]
    if size + other_size > most:
        left, other_left = kept(size, other_size, most)
        # Each token that goes is as likely the first as the last one.
        begin += draw.getrandbits(size - left).bit_count()
        other_begin += draw.getrandbits(other_size - other_left).bit_count()
        size, other_size = left, other_left
    return SentencePair(begin, size, other_begin, other_size, is_random, draw.getrandbits(63))


def kept(first: int, second: int, most: int) -> tuple[int, int]:
    """Return the tokens that remain of two parts that are too long together.

    The longer one is cut, token by token; of parts of the same length the second one.
    """
    half = most - most // 2
    if first <= half:
        return first, most - first
    if second <= most - half:
        return most - second, second
    return half, most - half


def _below(draw: Random, count: int) -> int:
    # Python promises the numbers of random() for all versions, and of no other method.
    return int(draw.random() * count)
