from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.reading.hedging import (
    FEWEST,
    KEPT,
    MEDIANS,
    MOST_AT_ONCE,
    MOST_MEDIANS,
    QUIET,
    SHARE,
    SHORTEST,
    UNKNOWN,
    UNKNOWN_WHOLE,
    Hedging,
)

SIZE = 4 << 20


def after(*seconds: float, size: int = SIZE) -> Hedging:
    """All were silent for a tenth of their time."""
    hedging = Hedging()
    for one in seconds:
        hedging.finished(size, one, one / 10)
    return hedging


def test_few_requests_say_nothing_yet() -> None:
    for hedging in (Hedging(), after(*[1.0] * (FEWEST - 1))):
        assert (hedging.patience(SIZE), hedging.silence(SIZE)) == (UNKNOWN_WHOLE, UNKNOWN)
    assert after(*[1.0] * FEWEST).patience(SIZE) == MEDIANS


def test_the_larger_of_p99_and_three_medians() -> None:
    assert after(*[0.2] * 99, 0.3).patience(SIZE) == pytest.approx(0.6)
    assert after(*[0.2] * 90, *[0.7] * 10).patience(SIZE) == pytest.approx(0.7)


def test_silence_is_judged_by_silence() -> None:
    """All requests take long where many share a link, but only a stalled one is silent."""
    hedging = after(*[2.0] * 50)
    assert hedging.patience(SIZE) == pytest.approx(6.0)
    assert hedging.silence(SIZE) == pytest.approx(0.6)


def test_stalls_do_not_teach_patience() -> None:
    assert after(*[0.2] * 90, *[10.0] * 10).patience(SIZE) == pytest.approx(0.2 * MOST_MEDIANS)


def test_never_less_than_a_busy_loop_can_lose() -> None:
    hedging = after(*[0.001] * 100)
    assert hedging.patience(SIZE) == hedging.silence(SIZE) == SHORTEST


def test_sizes_are_not_compared_with_each_other() -> None:
    hedging = after(*[0.2] * FEWEST)
    assert hedging.patience(SIZE) != UNKNOWN_WHOLE
    assert hedging.patience(SIZE // 8) == UNKNOWN_WHOLE
    for _ in range(FEWEST):
        hedging.finished(SIZE // 8, 0.06, 0.02)
    assert hedging.patience(SIZE // 8) == pytest.approx(0.18)
    assert hedging.patience(SIZE) == pytest.approx(0.6)


def test_what_was_long_ago_is_forgotten() -> None:
    hedging = after(*[5.0] * KEPT, *[0.1] * KEPT)
    assert hedging.patience(SIZE) == pytest.approx(0.3)


def test_quiet_while_the_store_asks_to_slow_down() -> None:
    hedging = Hedging()
    assert hedging.allows(100.0, hedges=0, requests=1000, under_way=0)
    hedging.throttled(100.0)
    assert not hedging.allows(100.0 + QUIET - 0.1, hedges=0, requests=1000, under_way=0)
    assert hedging.allows(100.0 + QUIET, hedges=0, requests=1000, under_way=0)


def test_what_is_slow_all_at_once_has_another_reason() -> None:
    for under_way in range(2 * MOST_AT_ONCE):
        allowed = Hedging().allows(0.0, hedges=under_way, requests=1000, under_way=under_way)
        assert allowed == (under_way < MOST_AT_ONCE)


@given(st.integers(0, 100), st.integers(0, 2000))
def test_hedges_are_few(hedges: int, requests: int) -> None:
    if Hedging().allows(0.0, hedges=hedges, requests=requests, under_way=0):
        assert hedges == 0 or hedges + 1 <= SHARE * requests + 1
    else:
        assert hedges >= SHARE * requests


def test_a_trace_with_one_stall_in_a_hundred() -> None:
    """All that stall are hedged, hardly any other, and the waits stay far below the stall."""
    random, hedging = Random(1), Hedging()
    hedges = wrong = 0
    longest = 0.0
    for number in range(5000):
        stalls = random.random() < 0.01
        seconds = 10.0 if stalls else random.lognormvariate(-1.6, 0.25)  # a median of 0.2 s
        patience = hedging.silence(SIZE)
        if seconds > patience and hedging.allows(
            number, hedges=hedges, requests=number + 1, under_way=0
        ):
            hedges += 1
            wrong += not stalls
            longest = max(longest, patience + 0.2)
            if seconds < patience + 0.2:
                hedging.finished(SIZE, seconds, seconds)
        else:
            hedging.finished(SIZE, seconds, seconds)
            longest = max(longest, seconds if number > 100 else 0)
    assert longest < 1.0
    assert hedges < 0.02 * 5000
    assert wrong < 30
