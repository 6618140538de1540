from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.permutation import numbers, permutation, seed_of, stratified
from tests.plan.oracle import plainly_stratified

WORDS = st.integers(0, 2**64 - 1)
SIZES = st.lists(st.integers(1, 40), max_size=12)


@given(st.integers(0, 2000), WORDS)
def test_every_index_once(n: int, seed: int) -> None:
    assert sorted(permutation(n, seed).tolist()) == list(range(n))


@given(st.lists(WORDS, max_size=5))
def test_seed_is_64_bits(words: list[int]) -> None:
    assert 0 <= seed_of(*words) < 2**64


def test_order_of_words_matters() -> None:
    assert len({seed_of(1, 2), seed_of(2, 1), seed_of(1), seed_of(1, 2, 0), seed_of(0, 1, 2)}) == 5


def test_never_changes() -> None:
    """These values are in people's checkpoints."""
    assert seed_of(7, 0, 3) == 0x2B50D11289F3E7B4
    assert permutation(8, 0).tolist() == [2, 4, 6, 5, 1, 7, 0, 3]
    assert permutation(10, seed_of(1)).tolist() == [8, 5, 0, 2, 4, 7, 1, 6, 9, 3]


def test_is_uniform() -> None:
    """Every element comes to every place about equally often: chi-square over 8 x 8 cells."""
    draws = 4000
    table = np.zeros((8, 8))
    for seed in range(draws):
        table[np.arange(8), permutation(8, seed_of(seed))] += 1
    chi_square = ((table - draws / 8) ** 2 / (draws / 8)).sum()
    assert 20 < chi_square < 90  # 49 degrees of freedom; both bounds are beyond 4 sigma


def test_matches_splitmix64() -> None:
    """The first outputs of SplitMix64 from seed 1234567, as published with its reference code."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert permutation(5, 1234567).tolist() == np.argsort(np.array(published, np.uint64)).tolist()


# -- of groups -------------------------------------------------------------------------------------


def groups_of(sizes: list[int]) -> list[int]:
    """Return the group of each member."""
    return [group for group, size in enumerate(sizes) for _ in range(size)]


def drawn(sizes: list[int], seed: int) -> list[int]:
    order: list[int] = stratified(np.array(sizes, np.int64), seed).tolist()
    return order


@given(SIZES, WORDS)
def test_every_member_once(sizes: list[int], seed: int) -> None:
    assert sorted(drawn(sizes, seed)) == list(range(sum(sizes)))


@given(SIZES, WORDS)
def test_members_are_drawn_as_it_is_written_down(sizes: list[int], seed: int) -> None:
    assert drawn(sizes, seed) == plainly_stratified(groups_of(sizes), seed)


@given(SIZES, WORDS)
def test_a_member_comes_behind_those_whose_stratum_ends_where_its_own_begins(
    sizes: list[int], seed: int
) -> None:
    """Member ``i`` of a group of ``n`` is between ``i / n`` and ``(i + 1) / n`` of the whole."""
    groups, come, latest = groups_of(sizes), [0] * len(sizes), Fraction(0)
    for group in (groups[member] for member in drawn(sizes, seed)):
        latest = max(latest, Fraction(come[group], sizes[group]))
        come[group] += 1
        assert latest < Fraction(come[group], sizes[group])


@given(SIZES, WORDS)
def test_whatever_is_cut_off_has_of_each_group_as_much_as_of_all(
    sizes: list[int], seed: int
) -> None:
    """The first ``k`` hold ``p * k`` +- ``1 + p * (groups - 2)`` of a group with a part ``p``."""
    groups, whole, found = groups_of(sizes), sum(sizes), np.zeros(len(sizes), np.int64)
    of_all = np.array(sizes, np.int64)
    for count, member in enumerate(drawn(sizes, seed), 1):
        found[groups[member]] += 1
        assert (abs(found * whole - of_all * count) <= whole + of_all * (len(sizes) - 2)).all()


@given(st.integers(1, 30), st.integers(1, 30), WORDS)
def test_groups_of_equal_sizes_take_turns(groups: int, size: int, seed: int) -> None:
    taken = np.array(drawn([size] * groups, seed)) // size
    assert (np.sort(taken.reshape(size, groups)) == np.arange(groups)).all()


def test_each_turn_is_in_another_order() -> None:
    turns = np.array(drawn([50] * 20, 3)).reshape(50, 20) // 50
    assert len({tuple(turn) for turn in turns.tolist()}) == 50


def test_members_of_groups_never_change() -> None:
    """These values are in people's checkpoints."""
    assert drawn([4, 1, 3], 0) == [4, 6, 2, 1, 5, 0, 7, 3]


def test_members_of_every_group_are_uniform() -> None:
    """The tables count places of a group's members among each other, and of single members."""
    draws = 4000
    table, ones = np.zeros((8, 8)), np.zeros((8, 8))
    for seed in range(draws):
        order = np.array(drawn([3, 8, 5], seed_of(seed)))
        table[np.arange(8), order[(order >= 3) & (order < 11)] - 3] += 1
        ones[np.arange(8), drawn([1] * 8, seed_of(seed))] += 1
    for found in (table, ones):
        assert 20 < ((found - draws / 8) ** 2 / (draws / 8)).sum() < 90


def test_numbers_of_many_seeds() -> None:
    indices, seeds = np.arange(5, dtype=np.uint64), np.array([0, 7, (1 << 64) - 1], np.uint64)
    found = numbers(indices, seeds[:, None])
    assert found.tolist() == [numbers(indices, seed).tolist() for seed in seeds.tolist()]
