"""Aims of a benchmark, and whether they are met."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.markdown import number, table

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Target:
    """An aim, and what was measured."""

    name: str
    unit: str
    aim: float
    measured: float
    least: bool = True
    """True where more is better."""

    @property
    def met(self) -> bool:
        """Return whether the aim is met."""
        return self.measured >= self.aim if self.least else self.measured <= self.aim

    def facts(self) -> dict[str, Any]:
        """Return plain values for the results."""
        return {**asdict(self), "met": self.met}


def targets_as_markdown(found: Sequence[Target]) -> str:
    """Return a table of the aims beside what was measured."""
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
