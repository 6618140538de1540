"""Tracebacks that say where in the code, and nothing about the machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["without_folders"]

_LIBRARIES = r"(?:(?:site|dist)-packages|lib(?:64)?/python[23][\d.]*t?|bin)/"
_FOLDER = re.compile(rf'(?:(?<=")/(?:[^"\n]*/)?|/(?:[^\s"\':]*/)?){_LIBRARIES}')
"""What comes before a package's files, the standard library's, or a program. Traceback's own quotes
may hold spaces."""


def without_folders(text: str, checkout: Path) -> str:
    """A reader's standard error, with paths as they would be on any machine.

    Args:
        text: Such as a traceback, of whichever interpreter.
        checkout: Paths under it become relative to it; those of installed packages and of the
            standard library to the folder that holds them, and programs keep their names alone.
    """
    text = _FOLDER.sub("", text)
    for folder in {checkout, checkout.resolve()}:
        text = text.replace(f"{folder}/", "")
    return text
