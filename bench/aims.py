"""What a benchmark is to show, and whether it does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.markdown import number, table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Target", "targets_as_markdown"]


@dataclass(frozen=True)
class Target:
    """One aim."""

    name: str
    unit: str
    aim: float
    measured: float
    least: bool = True
    """Whether more is better."""

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.measured >= self.aim if self.least else self.measured <= self.aim

    def facts(self) -> dict[str, Any]:
        """Plain values for the results."""
        return {**asdict(self), "met": self.met}


def targets_as_markdown(found: Sequence[Target]) -> str:
    """Each aim beside what was measured."""
    rows = [
        [
            target.name,
            f"{'at least' if target.least else 'at most'} {target.aim:g} {target.unit}",
            number(target.measured),
            "yes" if target.met else "no",
        ]
        for target in found
    ]
    return table(["", "aim", "measured", "met"], rows)
