from __future__ import annotations

from fractions import Fraction
from itertools import groupby, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.measure.shuffling import Mixing, MixingMeter, mixing_of, read_order

SHARDS = (
    st.lists(st.integers(0, 3), min_size=3, max_size=5)
    .filter(lambda own: len(set(own)) > 1)
    .map(tuple)
)
"""The shard of each record of an epoch."""


def plainly(order: tuple[int, ...], size: int) -> tuple[Fraction, int]:
    """Return the mean chi-square of whole batches, and the number of runs, by their definitions."""
    total, batches = Fraction(0), len(order) // size
    for batch in range(batches):
        drawn = order[batch * size : (batch + 1) * size]
        for shard in set(order):
            expected = Fraction(size * order.count(shard), len(order))
            total += (drawn.count(shard) - expected) ** 2 / expected
    return total / batches, len(list(groupby(order)))


def figures(order: tuple[int, ...], size: int) -> Mixing:
    return mixing_of(np.array(order, np.int64), size)


@given(SHARDS, st.integers(1, 6))
def test_the_permutations_of_an_epoch_have_the_expectation(
    shards: tuple[int, ...], size: int
) -> None:
    """By brute force: the mean over all permutations is exactly that of a perfect shuffle."""
    size = min(size, len(shards) - 1)
    every = list(permutations(shards))
    plain = [plainly(order, size) for order in every]
    mean = sum(distance for distance, _ in plain) / len(every)
    runs = Fraction(sum(runs for _, runs in plain), len(every))
    for order, (distance, own_runs) in list(zip(every, plain, strict=True))[::7]:
        found = figures(order, size)
        assert found.chi_square == pytest.approx(float(distance / mean))
        assert found.run_length == pytest.approx(len(shards) / own_runs)
        assert found.perfect_run_length == pytest.approx(float(len(shards) / runs))
        # A rest that is in no batch may leave rare shards more batches than their part.
        is_divided = len(shards) % size == 0
        assert found.chi_square >= 0
        assert not is_divided or found.chi_square <= found.most_chi_square + 1e-9


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 5))
def test_in_order_is_the_most(shards: int, batches: int, size: int) -> None:
    """Each batch has one shard, whatever the sizes of the shards are."""
    own = np.repeat(np.arange(shards), [size * (batches + i) for i in range(shards)])
    found = mixing_of(own, size)
    assert found.chi_square == pytest.approx(found.most_chi_square)
    assert found.run_length == len(own) / shards


def test_the_most_even_order() -> None:
    found = mixing_of(np.tile(np.arange(8), 100), 8)
    assert found.chi_square == pytest.approx(0)
    assert found.run_length == 1 < found.perfect_run_length


def test_a_perfect_shuffle_of_many() -> None:
    own = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 1000))
    found = mixing_of(own, 256)
    assert found.chi_square == pytest.approx(1, abs=0.02)
    assert found.run_length == pytest.approx(found.perfect_run_length, rel=0.01)


def test_batches_of_eight_records_at_a_time_are_eight_times_as_clustered() -> None:
    drawn = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 1000))
    found = mixing_of(np.repeat(drawn, 8), 256)
    assert found.chi_square == pytest.approx(8, abs=0.2)
    assert found.run_length == pytest.approx(8 * found.perfect_run_length, rel=0.02)


@given(SHARDS, st.integers(1, 3), st.integers(1, 3))
def test_parts_are_the_whole(shards: tuple[int, ...], size: int, at_once: int) -> None:
    size = min(size, len(shards) - 1)
    own = np.array(shards, np.int64)
    meter = MixingMeter(np.bincount(own), size)
    for first in range(0, len(own), at_once * size):
        meter.add(own[first : first + at_once * size])
    meter.add(own[:0])
    found, whole = meter.mixing(), mixing_of(own, size)
    assert vars(found) == pytest.approx(vars(whole))


def test_an_excerpt_is_compared_with_the_whole_epoch() -> None:
    meter = MixingMeter(np.array([50, 0, 50]), 10)
    meter.add(np.array([0, 2] * 10))
    found = meter.mixing()
    assert (found.records, found.shards, found.batches) == (100, 2, 2)
    assert found.chi_square == 0
    assert found.perfect_run_length == pytest.approx(20 / (1 + 19 * 50 / 99))


@pytest.mark.parametrize(
    ("shards", "size", "words"),
    [
        ([], 1, "of one shard"),
        ([3, 3, 3], 1, "of one shard"),
        ([0, 1, 1], 3, "all of the 3 records"),
    ],
)
def test_nothing_to_measure(shards: list[int], size: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mixing_of(np.array(shards, np.int64), size)


def test_no_whole_batch() -> None:
    with pytest.raises(ConfigError, match="no whole batch"):
        MixingMeter(np.array([5, 5]), 4).mixing()


# -- orders that are written as ids ----------------------------------------------------------------


def test_names() -> None:
    lines = [b"s3://b/one:0\n", b"two:17\r\n", b"\n", b"s3://b/one:1"]
    assert read_order(lines).tolist() == [0, 1, 0]


def test_numbers() -> None:
    population = np.array([2, 0, 3])
    assert read_order([b"4\n", b"0\n", b"2\n", b"1\n"], population).tolist() == [2, 0, 2, 0]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([b"", b"\n"], "the order is empty"),
        ([b"one:1", b"two"], "line 2 of the order is 'two'"),
        ([b"-1"], "line 1"),
        ([b":1"], "line 1"),
        ([b"one:"], "line 1"),
        ([b"1" * 19], "line 1"),
        ([b"1", b"one:1"], "alike"),
        ([b"1", b"5"], "record 5, but the index has 5 records"),
    ],
)
def test_what_is_not_an_order(lines: list[bytes], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_order(lines, np.array([2, 3]))


def test_numbers_need_the_records_of_each_shard() -> None:
    with pytest.raises(ConfigError, match="give the URL of shards that have an index"):
        read_order([b"1"])
