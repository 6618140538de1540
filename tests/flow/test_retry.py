from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from streamrec.flow.retry import Backoff, RetryRate


class Highest(Random):
    """Draws the upper bound."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_bounds_double_up_to_the_longest() -> None:
    backoff = Backoff(Highest(), base=0.1, longest=1.0)
    assert [backoff.next() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_full_jitter_draws_from_zero_to_the_bound() -> None:
    backoff = Backoff(Random(1), base=1.0, longest=1.0)
    waits = [backoff.next() for _ in range(1000)]
    assert min(waits) < 0.05
    assert 0.45 < sum(waits) / len(waits) < 0.55
    assert max(waits) <= 1.0


def test_the_stores_own_wish_is_a_lower_bound() -> None:
    assert Backoff(Random(1)).next(at_least=3.0) >= 3.0


def test_reset_begins_anew() -> None:
    backoff = Backoff(Highest(), base=0.1)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert backoff.next() == 0.1


def test_a_burst_is_free_and_the_rest_comes_at_a_rate() -> None:
    rate = RetryRate(per_second=10.0, burst=3.0)
    assert [rate.delay(5.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.1, 0.2, 0.3]
    assert rate.delay(5.4) == 0.0
    assert rate.delay(5.4) > 0.0


def test_a_long_quiet_gives_no_more_than_a_burst() -> None:
    rate = RetryRate(per_second=10.0, burst=3.0)
    rate.delay(0.0)
    assert [rate.delay(1e6) > 0 for _ in range(4)] == [False, False, False, True]


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=300))
def test_never_more_than_the_rate_and_never_refused(pauses: list[float]) -> None:
    rate, now, at = RetryRate(per_second=10.0, burst=5.0), 0.0, []
    for pause in pauses:
        now += pause
        at.append(now + rate.delay(now))
    for first in range(len(at)):
        assert len([one for one in at[first:] if one <= at[first] + 1.0]) <= 16
    assert at[-1] <= now + len(pauses) / 10.0
