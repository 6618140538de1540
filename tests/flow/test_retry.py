from __future__ import annotations

from random import Random

from streamrec.flow.retry import Backoff


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
