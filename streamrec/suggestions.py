"""The known name that an unknown one most likely means, for messages. Pure."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def close_names(
    name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Return the known names that are most like an unknown one, the closest first.

    Args:
        name: The unknown name.
        known: The known names.
        most: The most names that are returned.
        cutoff: The least likeness, 0 to 1.
    """
    return difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "leave it out", *, meant: str | None = None
) -> str:
    """Return a hint at the known name that an unknown one means, or another hint.

    Args:
        name: The unknown name.
        known: The known names.
        otherwise: The hint where no known name is like it.
        meant: The name that is certainly meant, where somebody knows it.
    """
    close = close_names(name, known) if meant is None else [meant]
    return f"did you mean {close[0]!r}?" if close else otherwise


def nearest(name: str, names: Iterable[str]) -> str:
    """Return half a sentence with the name that was meant, or with all that there are."""
    known = sorted(names)
    every = f"there are {', '.join(known)}"
    return f"; {did_you_mean(name, known, every)}"
