"""Packages that only some users need: the extras of ``pyproject.toml``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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
