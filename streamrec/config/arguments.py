"""Checks of the public functions' arguments; paths and URLs become text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from streamrec.config.places import absolute_source
from streamrec.errors import ConfigError


def place_text(place: object) -> str:
    """Return a URL or path as text.

    Raises:
        ConfigError: It is something else.
    """
    text = os.fspath(place) if isinstance(place, os.PathLike) else place
    if isinstance(text, str):
        return text
    raise ConfigError(
        f"the source is {kind_of(place)}, which cannot name shards; give a URL or a path, such as "
        "'s3://bucket/train-*.tfrecord', or a list of them"
    )


def source_texts(source: object) -> str | list[str]:
    """Return a source, or a list of them, as text.

    Raises:
        ConfigError: It is something else.
    """
    # A text is iterable, too, and a mapping would give its keys in silence.
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | bytearray | Mapping):
        return [place_text(one) for one in source]
    return place_text(source)


def absolute_sources(source: object) -> str | list[str]:
    """Return what :func:`source_texts` does, with absolute paths.

    Raises:
        ConfigError: It is something else.
    """
    texts = source_texts(source)
    return absolute_source(texts) if isinstance(texts, str) else list(map(absolute_source, texts))


def options_of(options: object) -> dict[str, Any]:
    """Return a copy of the storage options; ``None`` gives an empty one.

    Raises:
        ConfigError: They are something else; what they hold is not shown.
    """
    if options is None or isinstance(options, Mapping):
        return dict(options or {})
    raise ConfigError(
        f"storage_options is {kind_of(options)}; give a mapping from names to values, such as "
        "{'endpoint_url': 'http://host:9000'}"
    )


def count_of(number: object, name: str) -> int:
    """Return the argument ``name`` if it is an integer from 0 up.

    Raises:
        ConfigError: It is something else; the error says ``name``.
    """
    count = plain_integer(number)
    if isinstance(count, int) and count >= 0:
        return count
    raise ConfigError(f"{name} is {number!r}; give a number from 0 up")


def plain_integer(value: Any) -> Any:
    """Return an integer of NumPy as Python's; all else as it is."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def kind_of(value: object) -> str:
    """Return a value's type with its article ("a list"), without the value."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
