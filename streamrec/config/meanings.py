"""The settings in words, for ``help``: from the docstrings of their fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from streamrec.config.lazy_settings import LazySettings

WIDTH = 100


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
    """Return a docstring with a list of the settings behind it; ``None`` with python -OO."""
    return doc and f"{inspect.cleandoc(doc)}\n\nSettings:\n\n{_list_settings(model, without)}\n"


def _list_settings(model: type[LazySettings], without: Container[str]) -> str:
    """Return a list of the settings with their defaults and meanings."""
    paragraphs = []
    for name, meaning in meanings(model).items():
        if name not in without:
            text = (
                f"{name} = {model.defaults[name]!r}: {' '.join(meaning.split()).replace('``', '')}"
            )
            paragraphs.append(textwrap.fill(text, WIDTH, subsequent_indent="    "))
    return "\n".join(paragraphs)


def _meanings_of(kind: type) -> dict[str, str]:
    """Return the meanings of the settings that a class itself declares."""
    if "__annotations__" not in vars(kind):
        return {}
    try:
        return _meanings_in(inspect.getfile(kind)).get(kind.__name__, {})
    # Without the source's file, help goes without meanings.
    except (OSError, TypeError, SyntaxError):
        return {}


@cache
def _meanings_in(path: str) -> dict[str, dict[str, str]]:
    """Return the meanings of all settings of a file, by class.

    A file is parsed once: inspect.getsource takes ten times as long to find a class.
    """
    classes = (
        one for one in ast.parse(Path(path).read_text()).body if isinstance(one, ast.ClassDef)
    )
    return {
        one.name: {
            field.target.id: text.value.value
            # The string behind a field, which Python itself forgets.
            for field, text in pairwise(one.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(text.value.value, str)
        }
        for one in classes
    }
