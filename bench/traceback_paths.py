"""Removes the folders of this machine from tracebacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LIBRARIES = r"(?:(?:site|dist)-packages|lib(?:64)?/python[23][\d.]*t?|bin)/"
_FOLDER = re.compile(rf'(?:(?<=")/(?:[^"\n]*/)?|/(?:[^\s"\':]*/)?){_LIBRARIES}')
"""The folders before the files of a package, of the standard library, or of a program. Paths in the
quotes of a traceback may hold spaces."""


def without_folders(text: str, checkout: Path) -> str:
    """Return a reader's standard error with paths as they would be on any machine.

    Args:
        text: Text such as a traceback, of any interpreter.
        checkout: Directory of the repository. Paths in it become relative to it, those of packages
            and of the standard library relative to their folder; of programs the name remains.
    """
    text = _FOLDER.sub("", text)
    for folder in {checkout, checkout.resolve()}:
        text = text.replace(f"{folder}/", "")
    return text
