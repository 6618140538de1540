"""How long to wait before a failed request is tried again: exponential backoff with full jitter.

The source of full jitter is Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog,
2015): of the schemes compared there it causes the least work at the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    """The waits of one request.

    Args:
        random: Where the jitter comes from.
        base: Seconds: the first wait is uniform between 0 and this.
        longest: Seconds: no bound grows past this.
    """

    random: Random
    base: float = 0.1
    longest: float = 20.0
    attempt: int = 0

    def next(self, at_least: float | None = None) -> float:
        """Seconds to wait now; ``at_least`` is what the store asked for (Retry-After)."""
        bound = min(self.longest, self.base * 2.0 ** min(self.attempt, 60))
        self.attempt += 1
        return self.random.uniform(0, bound) + (at_least or 0.0)

    def reset(self) -> None:
        """Begin anew: bytes have arrived."""
        self.attempt = 0
