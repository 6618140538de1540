"""Pairs of text to the features of BERT's pre-training, with masked tokens, by whole arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.plan.order.permutation import numbers

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.sources.word_pieces import WordPieces
    from streamrec.values.columns import Indices

MASKED, REPLACED = 0.8, 0.1
"""The parts of the chosen tokens that become ``[MASK]``, and any piece; the others stay."""


class _PairTokens(NamedTuple):
    """The tokens of pairs before any is masked; all arrays are ``[pairs, max_seq_length]``."""

    ids: Indices
    is_text: npt.NDArray[np.bool_]
    """It is neither padding nor ``[CLS]`` or ``[SEP]``."""
    is_used: npt.NDArray[np.bool_]
    is_second: npt.NDArray[np.bool_]


class MaskedPairs:
    """The form of pairs as features.

    Args:
        pieces: The vocabulary.
        length: The length of a pair with ``[CLS]`` and two ``[SEP]``.
        most: The most tokens that are masked.
        fraction: The fraction of the tokens that are masked, at least one.
        whole_words: Mask all pieces of a word, or none.
    """

    def __init__(
        self, pieces: WordPieces, *, length: int, most: int, fraction: float, whole_words: bool
    ) -> None:
        self._pieces, self._length = pieces, length
        self._most, self._fraction, self._whole_words = most, fraction, whole_words

    def features(self, text: Indices, pairs: Indices) -> dict[str, npt.NDArray[np.generic]]:
        """Return the features of pairs by their names.

        Args:
            text: The tokens that pairs are places in.
            pairs: int64 ``[pairs, 6]``: rows of :class:`Pair`.
        """
        tokens = self._tokens(text, pairs)
        seeds = pairs[:, 5].astype(np.uint64)
        chosen = self._chosen(tokens, self._counts(pairs), seeds)
        rows, places = np.nonzero(chosen)
        counts = np.count_nonzero(chosen, axis=1)
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = len(pairs), self._most
        masked = {name: np.zeros(shape, np.int64) for name in ("positions", "ids")}
        masked["positions"][rows, slots] = places
        masked["ids"][rows, slots] = tokens.ids[rows, places]
        tokens.ids[rows, places] = self._hidden(tokens.ids[rows, places], places, seeds[rows])
        return {
            "input_ids": tokens.ids,
            "input_mask": tokens.is_used.astype(np.int64),
            "segment_ids": tokens.is_second.astype(np.int64),
            "masked_lm_positions": masked["positions"],
            "masked_lm_ids": masked["ids"],
            "masked_lm_weights": (np.arange(self._most) < counts[:, None]).astype(np.float32),
            "next_sentence_labels": pairs[:, 4],
        }

    def _tokens(self, text: Indices, pairs: Indices) -> _PairTokens:
        """Put ``[CLS]``, the first part, ``[SEP]``, the second part, ``[SEP]`` and padding."""
        place = np.arange(self._length)
        first, first_tokens, second, second_tokens = (pairs[:, n, None] for n in range(4))
        begin = first_tokens + 2
        end = begin + second_tokens
        is_second = (place >= begin) & (place <= end)
        separates = (place == begin - 1) | (place == end)
        is_text = (place > 0) & (place < end) & ~separates
        origin = np.where(is_second, second - begin, first - 1) + place
        ids = np.where(is_text, text.take(origin, mode="clip"), 0)
        ids[:, 0] = self._pieces.ids["[CLS]"]
        ids[separates] = self._pieces.ids["[SEP]"]
        return _PairTokens(ids, is_text, place <= end, is_second)

    def _chosen(
        self, tokens: _PairTokens, counts: Indices, seeds: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Choose the tokens that are masked: words in a random order, as long as they fit."""
        begins = tokens.is_text
        if self._whole_words:
            begins = begins & ~self._pieces.continues[tokens.ids]
            begins[:, 1] = True  # a pair may begin inside of a word
        words = np.maximum(np.cumsum(begins, axis=1) - 1, 0)
        rows = np.arange(len(words))[:, None]
        sizes = np.bincount(
            (words + rows * self._length)[tokens.is_text], minlength=words.size
        ).reshape(words.shape)
        keys = numbers(np.arange(self._length, dtype=np.uint64), seeds[:, None])
        order = np.argsort(np.where(sizes > 0, keys >> np.uint64(1), np.uint64(1 << 63)), axis=1)
        fits = _fitting(np.take_along_axis(sizes, order, axis=1), counts)
        chosen = np.empty_like(fits)
        np.put_along_axis(chosen, order, fits, axis=1)
        return np.take_along_axis(chosen, words, axis=1) & tokens.is_text

    def _counts(self, pairs: Indices) -> Indices:
        """Return the tokens to mask in each pair."""
        wanted = np.rint((pairs[:, 1] + pairs[:, 3] + 3) * self._fraction).astype(np.int64)
        counts: Indices = wanted.clip(1, self._most)
        return counts

    def _hidden(self, ids: Indices, places: Indices, seeds: npt.NDArray[np.uint64]) -> Indices:
        """Return what stands in place of the chosen tokens."""
        index = (places + self._length).astype(np.uint64)  # behind those of the words
        drawn = (numbers(index, seeds) >> np.uint64(11)) * 2.0**-53
        other = numbers(index + np.uint64(self._length), seeds)
        every = self._pieces.all
        replaced = every[(other % np.uint64(len(every))).astype(np.int64)]
        shown: Indices = np.where(drawn < MASKED + REPLACED, replaced, ids)
        shown[drawn < MASKED] = self._pieces.ids["[MASK]"]
        return shown


def _fitting(sizes: Indices, counts: Indices) -> npt.NDArray[np.bool_]:
    """Take words in turn that do not exceed a row's count with those before.

    Args:
        sizes: int64 ``[rows, words]``: the words' tokens; 0 where there is no word.
        counts: int64 ``[rows]``: the tokens to take.
    """
    fits = np.zeros(sizes.shape, np.bool_)
    left = counts.copy()
    for word in range(sizes.shape[1]):
        size = sizes[:, word]
        fits[:, word] = size <= left
        left -= np.where(fits[:, word], size, 0)
        if not left.any():
            break
    return fits
