"""The result of a suite, and how its cases are counted."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Result", "checkout", "tried"]


@dataclass
class Result:
    """The cases of one suite.

    Args:
        suite: Its name.
        known: The reasons why cases differ, by an expression that matches "case: what".
    """

    suite: str
    known: Mapping[str, str] = field(default_factory=dict)
    agreeing: int = 0
    differing: dict[str, str] = field(default_factory=dict)
    """What was found, by case."""
    missing: str = ""
    """What the suite needs and is not here."""

    def reason(self, case: str) -> str | None:
        """Return the known reason why a case differs."""
        text = f"{case}: {self.differing[case]}"
        return next((why for words, why in self.known.items() if re.search(words, text)), None)

    @property
    def faults(self) -> dict[str, str]:
        """The differences without a known reason."""
        return {case: what for case, what in self.differing.items() if self.reason(case) is None}

    def row(self) -> str:
        """Return the result as a row of a table."""
        if self.missing:
            return f"| {self.suite} | | | | needs {self.missing} |"
        cases, told = self.agreeing + len(self.differing), len(self.differing) - len(self.faults)
        return f"| {self.suite} | {cases} | {self.agreeing} | {told} | {len(self.faults)} |"

    def lines(self) -> list[str]:
        """Return a line for each reason, with its cases counted, and one for each fault."""
        reasons = Counter(filter(None, map(self.reason, self.differing)))
        told = [f"{self.suite}: {count} differ: {why}" for why, count in reasons.items()]
        return told + [f"{self.suite}: FAULT {case}: {what}" for case, what in self.faults.items()]


def tried(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return what a function gives, or the error of what it refuses."""
    try:
        return function(*given, **options)
    except Exception as error:  # noqa: BLE001 - others raise many; those of ours are looked at
        return error


def checkout(result: Result, variable: str, inside: str) -> Path | None:
    """Return the checkout that a variable of the environment names; note where there is none.

    Args:
        result: The result of the suite that needs it.
        variable: The variable.
        inside: A path that every such checkout has.
    """
    place = Path(os.environ.get(variable, ""))
    if not os.environ.get(variable) or not (place / inside).exists():
        result.missing = f"a checkout with {inside}, named by {variable}"
        return None
    return place.resolve()
