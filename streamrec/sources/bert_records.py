"""Documents of text to records of BERT's pre-training."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import ConfigError, DataError
from streamrec.formats.examples.encode import encode_examples
from streamrec.plan.order.permutation import numbers, permutation, seed_of
from streamrec.values.columns import BytesColumn, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from streamrec.plan.order.shard_names import Splits
    from streamrec.sources.bert_text import Document, WordPieces
    from streamrec.values.columns import Indices


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
    """The pairs of documents, made as the well-known ``create_pretraining_data.py`` makes them.

    A pair is filled with sentences up to a target length and cut between two of them. In half of
    the pairs the second part is replaced by sentences from elsewhere, and the replaced ones begin
    the next pair.

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
        # As in the original script: some short pairs lessen the difference to fine-tuning.
        if draw.random() < self._short:
            target = self._shortest + _below(draw, most - self._shortest + 1)
        place, stop = self._documents[document].start, self._documents[document].stop
        while place < stop:
            end = self._fill(place, target, stop)
            middle = place + 1 + (_below(draw, end - place - 1) if end - place > 1 else 0)
            first = offsets[place], offsets[middle]
            # One sentence cannot be cut in two, so its second part always comes from elsewhere.
            if middle == end or draw.random() < 0.5:
                second = self._elsewhere(document, target - first[1] + first[0], draw)
                yield _pair(first, second, 1, most, draw)
                # The sentences that a random part replaced are not lost: they begin the next pair.
                place = middle
            else:
                yield _pair(first, (first[1], offsets[end]), 0, most, draw)
                place = end

    def _fill(self, place: int, target: int, stop: int) -> int:
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
        end = self._fill(place, target, sentences.stop)
        return self._offsets[place], self._offsets[end]


def _pair(
    first: tuple[int, int], second: tuple[int, int], is_random: int, most: int, draw: Random
) -> SentencePair:
    """Cut two parts, each from a token to another, to the most tokens of a pair."""
    begin, size = first[0], first[1] - first[0]
    other_begin, other_size = second[0], second[1] - second[0]
    if size + other_size > most:
        left, other_left = cut_pair(size, other_size, most)
        # Each token that goes is as likely the first as the last one.
        begin += draw.getrandbits(size - left).bit_count()
        other_begin += draw.getrandbits(other_size - other_left).bit_count()
        size, other_size = left, other_left
    return SentencePair(begin, size, other_begin, other_size, is_random, draw.getrandbits(63))


def cut_pair(first: int, second: int, most: int) -> tuple[int, int]:
    """Return the tokens that remain of two parts that are too long together.

    The longer one is cut, token by token; of parts of the same length the second one.
    """
    # In closed form: cutting token by token would take as many steps as there are tokens too many.
    half = most - most // 2
    if first <= half:
        return first, most - first
    if second <= most - half:
        return most - second, second
    return half, most - half


def _below(draw: Random, count: int) -> int:
    # Python promises the numbers of random() for all versions, and of no other method.
    return int(draw.random() * count)


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
            pairs: int64 ``[pairs, 6]``: rows of :class:`SentencePair`.
        """
        tokens = self._tokens(text, pairs)
        seeds = pairs[:, 5].astype(np.uint64)
        chosen = self._choose(tokens, self._counts(pairs), seeds)
        rows, places = np.nonzero(chosen)
        counts = np.count_nonzero(chosen, axis=1)
        # The number of each chosen token within its own pair, without a loop over pairs.
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = len(pairs), self._most
        masked = {name: np.zeros(shape, np.int64) for name in ("positions", "ids")}
        masked["positions"][rows, slots] = places
        masked["ids"][rows, slots] = tokens.ids[rows, places]
        # Only after the true tokens were taken as the labels.
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
        # Places of separators and padding lead anywhere, so they are clipped, and masked out by
        # `where`.
        ids = np.where(is_text, text.take(origin, mode="clip"), 0)
        ids[:, 0] = self._pieces.ids["[CLS]"]
        ids[separates] = self._pieces.ids["[SEP]"]
        return _PairTokens(ids, is_text, place <= end, is_second)

    def _choose(
        self, tokens: _PairTokens, counts: Indices, seeds: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Choose the tokens that are masked: words in a random order, as long as they fit."""
        begins = tokens.is_text
        if self._whole_words:
            begins = begins & ~self._pieces.continues[tokens.ids]
            begins[:, 1] = True  # a pair may begin inside of a word
        # The number of the word that each token belongs to; [CLS] counts with the first.
        words = np.maximum(np.cumsum(begins, axis=1) - 1, 0)
        rows = np.arange(len(words))[:, None]
        sizes = np.bincount(
            (words + rows * self._length)[tokens.is_text], minlength=words.size
        ).reshape(words.shape)
        # Drawn by place and pair, so the order does not depend on how many pairs are made at once.
        keys = numbers(np.arange(self._length, dtype=np.uint64), seeds[:, None])
        order = np.argsort(np.where(sizes > 0, keys >> np.uint64(1), np.uint64(1 << 63)), axis=1)
        fits = _fitting(np.take_along_axis(sizes, order, axis=1), counts)
        chosen = np.empty_like(fits)
        np.put_along_axis(chosen, order, fits, axis=1)
        return np.take_along_axis(chosen, words, axis=1) & tokens.is_text

    def _counts(self, pairs: Indices) -> Indices:
        """Return the tokens to mask in each pair."""
        # Of all tokens, with the three special ones, as the original script counts.
        goals = np.rint((pairs[:, 1] + pairs[:, 3] + 3) * self._fraction).astype(np.int64)
        counts: Indices = goals.clip(1, self._most)
        return counts

    def _hidden(self, ids: Indices, places: Indices, seeds: npt.NDArray[np.uint64]) -> Indices:
        """Return what stands in place of the chosen tokens."""
        index = (places + self._length).astype(np.uint64)  # after those of the words
        # The upper 53 bits: as many as a double has, so that each number below 1 is as likely.
        draws = (numbers(index, seeds) >> np.uint64(11)) * 2.0**-53
        other = numbers(index + np.uint64(self._length), seeds)
        every = self._pieces.all
        replaced = every[(other % np.uint64(len(every))).astype(np.int64)]
        shown: Indices = np.where(draws < MASKED + REPLACED, replaced, ids)
        shown[draws < MASKED] = self._pieces.ids["[MASK]"]
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
        # A word that does not fit is passed over, and a shorter one behind it may still fit.
        left -= np.where(fits[:, word], size, 0)
        if not left.any():
            break
    return fits


FEATURES = {
    "input_ids": "int64",
    "input_mask": "int64",
    "segment_ids": "int64",
    "masked_lm_positions": "int64",
    "masked_lm_ids": "int64",
    "masked_lm_weights": "float32",
    "next_sentence_labels": "int64",
}
SECOND_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
"""The names that TensorFlow's models of the second version have for features."""
SHORTEST = 2
"""The tokens that a short pair has at least, and that any pair needs."""
SPECIAL = 3
"""The tokens of a pair that are not text: [CLS] and two [SEP]."""
CELLS = 1 << 18
"""Tokens of the pairs that are made at once: their arrays stay in the processor's cache."""


@dataclass(frozen=True)
class BertForm:
    """The form of the records; the names are those of ``create_pretraining_data.py``."""

    do_whole_word_mask: bool = False
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    random_seed: int = 12345
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    min_short_seq_length: int = SHORTEST
    use_v2_feature_names: bool = False

    def check(self) -> None:
        """Check what the settings say together.

        Raises:
            ConfigError: They contradict each other.
        """
        most = self.max_seq_length - SPECIAL
        for name in ("max_predictions_per_seq", "min_short_seq_length"):
            if getattr(self, name) > most:
                raise ConfigError(
                    f"--{name.replace('_', '-')}: {getattr(self, name)} is more than the {most} "
                    f"tokens of text that --max-seq-length {self.max_seq_length} leaves; make it "
                    "smaller"
                )


@dataclass(frozen=True)
class BertRecords:
    """The making of records. It can be pickled."""

    word_pieces: WordPieces
    form: BertForm
    splits: Splits | None
    """The second part of a pair comes from a document of the same split."""

    @property
    def features(self) -> dict[str, str]:
        """The features of all records."""
        return {self._name(name): dtype for name, dtype in FEATURES.items()}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that determine the records of a text."""
        return {
            "vocabulary": self.word_pieces.digest,
            "do_lower_case": self.word_pieces.lower,
            "splits": self.splits and self.splits.to_dict(),
            **asdict(self.form),
        }

    def make(
        self, documents: Sequence[Document], place: tuple[str, int]
    ) -> tuple[BytesColumn, list[bytes]]:
        """Return the records of documents, in a random order, and the keys of their documents.

        Args:
            documents: The documents.
            place: The file and the line where they begin, which determine the order.
        """
        # All sentences of a piece at once: each distinct word is looked up once.
        text = _tokenize(documents, self.word_pieces)
        _check_sentences(documents, text)
        keys = [document.key for document in documents]
        form = self.form
        maker = SentencePairs(
            text.offsets,
            text.sentences,
            self._others(keys, text.sentences),
            most=form.max_seq_length - SPECIAL,
            shortest=form.min_short_seq_length,
            short=form.short_seq_prob,
        )
        pairs_of = [
            list(maker.of(number, form.dupe_factor, Random(self._seed(one.file, one.line))))
            for number, one in enumerate(documents)
        ]
        pairs = np.array(list(chain.from_iterable(pairs_of)), np.int64).reshape(
            -1, len(SentencePair._fields)
        )
        counts = np.array(list(map(len, pairs_of)), np.int64)
        origins = np.repeat(np.arange(len(pairs_of)), counts)
        order = permutation(len(pairs), self._seed(*place))
        records = self._encode(text.tokens, pairs[order])
        return records, [keys[origin] for origin in origins[order].tolist()]

    def _others(self, keys: Sequence[bytes], sentences: Sequence[range]) -> list[list[int]]:
        """Return for each document those of its split that have tokens."""
        # A second part from another split would show its text to the training.
        splits = [0] * len(keys) if self.splits is None else self.splits.of(keys).tolist()
        groups: dict[int, list[int]] = {split: [] for split in splits}
        for number, split in enumerate(splits):
            if sentences[number]:
                groups[split].append(number)
        return [groups[split] for split in splits]

    def _encode(self, text: Indices, pairs: Indices) -> BytesColumn:
        form = self.form
        masked = MaskedPairs(
            self.word_pieces,
            length=form.max_seq_length,
            most=form.max_predictions_per_seq,
            fraction=form.masked_lm_prob,
            whole_words=form.do_whole_word_mask,
        )
        step = max(1, CELLS // form.max_seq_length)
        features = (
            masked.features(text, pairs[at : at + step]) for at in range(0, len(pairs), step)
        )
        columns = [
            encode_examples({self._name(name): column for name, column in some.items()})
            for some in features
        ]
        return _join(columns) if columns else BytesColumn.of([])

    def _name(self, name: str) -> str:
        return SECOND_NAMES.get(name, name) if self.form.use_v2_feature_names else name

    def _seed(self, file: str, line: int) -> int:
        # Its name, not its path: a copy in another place gives the same records.
        name = hashlib.sha256(os.fsencode(Path(file).name)).digest()
        return seed_of(self.form.random_seed, int.from_bytes(name[:8], "big"), line)


def _check_sentences(documents: Sequence[Document], text: _Text) -> None:
    """Check that some document has two sentences.

    Raises:
        DataError: None has: the second part of every pair would come from elsewhere, with label 1.
    """
    if documents and max(map(len, text.sentences)) == 1:
        raise DataError(
            f"line {documents[0].line}: this document and the {len(documents) - 1} behind it have "
            "one line each, so they hold no next sentence and all labels would be 1; put each "
            "sentence on a line, and a blank line between documents",
            url=documents[0].file,
        )


class _Text(NamedTuple):
    """Documents as tokens, without sentences that have none."""

    tokens: Indices
    offsets: list[int]
    """The places of the sentences' first tokens, and the end of the last."""
    sentences: list[range]
    """The sentences of each document."""


def _tokenize(documents: Sequence[Document], word_pieces: WordPieces) -> _Text:
    pieces = word_pieces.tokenize([s for document in documents for s in document.sentences])
    lengths = np.diff(pieces.row_splits)
    counts = np.array([len(document.sentences) for document in documents], np.int64)
    # A sentence of control characters alone has no token.
    owners = np.repeat(np.arange(len(documents)), counts)[lengths > 0]
    ends = np.cumsum(np.bincount(owners, minlength=len(documents))).tolist()
    tokens: Any = pieces.values
    offsets = offsets_of(lengths[lengths > 0]).tolist()
    return _Text(tokens, offsets, [range(*bounds) for bounds in pairwise([0, *ends])])


def _join(columns: Sequence[BytesColumn]) -> BytesColumn:
    lengths = np.concatenate([np.diff(column.offsets) for column in columns])
    return BytesColumn(np.concatenate([column.values for column in columns]), offsets_of(lengths))
