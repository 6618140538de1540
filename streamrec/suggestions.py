"""Suggestions for messages: the known name that is meant, the extra to install."""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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


def install(extra: str) -> str:
    """Return what to do to install an extra, for a message: there is no release on an index yet."""
    return f"run pip install -e '.[{extra}]' in your clone of streamrec"


@contextmanager
def needs(user: str, extra: str) -> Iterator[None]:
    """Name the extra where a package that is imported in the block is not installed.

    Args:
        user: The part of streamrec that imports it.
        extra: The extra that has it.

    Raises:
        ModuleNotFoundError: It is not installed; the message says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # A module of ours that is missing is a defect, which no extra mends.
        if not error.name or error.name.partition(".")[0] == "streamrec":
            raise
        raise ModuleNotFoundError(
            f"{user} needs {error.name}, which is not installed; {install(extra)}", name=error.name
        ) from None
