"""The settings in words, for ``help``: from the docstrings of their fields."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from streamrec.config.lazy_settings import LazySettings

WIDTH = 100
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_FIELD = re.compile(
    # A field, its further lines, and the string after it, which Python itself forgets.
    r'^    (\w+): [^\n]*\n(?:(?:     |    [\])])[^\n]*\n)*    """(.*?)"""',
    re.MULTILINE | re.DOTALL,
)


def meanings(model: type[LazySettings]) -> dict[str, str]:
    """Return the meaning of each setting of a class, by name; none where there is no source."""
    texts: dict[str, str] = {}
    # From the base on, so that a class's own words go before those of its base.
    for kind in reversed(model.__mro__):
        if kind.__module__.startswith("streamrec."):
            texts |= _meanings_of(kind)
    return {name: texts[name] for name in model.defaults if name in texts}


def with_settings(
    doc: str | None, model: type[LazySettings], without: Container[str] = ()
) -> str | None:
    """Return a docstring with a list of the settings after it; ``None`` with python -OO."""
    return doc and f"{inspect.cleandoc(doc)}\n\nSettings:\n\n{_list_settings(model, without)}\n"


def _list_settings(model: type[LazySettings], without: Container[str]) -> str:
    """Return a list of the settings with their defaults and meanings."""
    return "\n".join(
        _fill(f"{name} = {model.defaults[name]!r}: {meaning.replace('``', '')}")
        for name, meaning in meanings(model).items()
        if name not in without
    )


def _fill(text: str) -> str:
    """Return a text in lines; textwrap takes twice as long as to find all meanings."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= WIDTH:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _meanings_of(kind: type) -> dict[str, str]:
    """Return the meanings of the settings that a class itself declares."""
    if "__annotations__" not in vars(kind):
        return {}
    try:
        return _meanings_in(inspect.getfile(kind)).get(kind.__name__, {})
    # Without the source's file, help goes without meanings.
    except (OSError, TypeError):
        return {}


@cache
def _meanings_in(path: str) -> dict[str, dict[str, str]]:
    """Return the meanings of all settings of a file, by class.

    Each program that opens a stream waits for this: Python's own parser takes ten times as long.
    """
    _, *parts = _CLASS.split(Path(path).read_text())
    bodies = zip(parts[::2], parts[1::2], strict=True)
    return {name: dict(_FIELD.findall(body)) for name, body in bodies}
