"""The class names that Hugging Face keeps in the schema of a table."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger("streamrec.write")


def class_labels(schema: Any) -> dict[str, dict[str, int]]:
    """Return the numbers of the classes of each feature that is a ``ClassLabel``.

    Args:
        schema: One of Arrow, whose metadata hold the features of Hugging Face's ``datasets`` as
            JSON: ``{"info": {"features": {name: {"_type": ...}}}}``.
    """
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(text)["info"]["features"].items()
    except (ValueError, KeyError, TypeError, AttributeError):  # of another form
        return {}
    return {name: names for key, kind in features for name, names in _classes(key, kind)}


def _classes(name: str, kind: Any) -> Iterator[tuple[str, dict[str, int]]]:
    if isinstance(kind, list) and kind:  # a list in the form of older versions
        yield from _classes(name, kind[0])
    elif not isinstance(kind, dict):
        return
    elif "_type" not in kind:  # a struct
        for inner, each in kind.items():
            yield from _classes(f"{name}/{inner}", each)
    elif kind["_type"] == "ClassLabel":
        yield name, {text: number for number, text in enumerate(kind.get("names") or ())}
    else:
        yield from _classes(name, kind.get("feature"))


def join_labels(tables: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the class names of all files, without those of features that differ between files."""
    joined: dict[str, dict[str, int]] = {}
    differs = set()
    for table in tables:
        for name, numbers in table.items():
            if joined.setdefault(name, numbers) != numbers:
                differs.add(name)
    for name in sorted(differs):
        log.warning(
            "the class names of column %r differ between files, so a number means another class "
            "in another file; the manifest tells no names of them",
            name,
        )
    return {name: numbers for name, numbers in joined.items() if name not in differs}
