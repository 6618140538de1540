"""Checks of the public functions' arguments; paths and URLs become text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from streamrec.config.places import absolute_source
from streamrec.errors import ConfigError


def place_text(given: object) -> str:
    """Return a URL or path as text.

    Raises:
        ConfigError: It is something else.
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if isinstance(text, str):
        return text
    raise ConfigError(
        f"{kind_of(given)} names no shard; give a URL or a path, such as "
        "'s3://bucket/train-*.tfrecord', or a list of them where several are read"
    )


def source_texts(given: object) -> str | list[str]:
    """Return a source, or a list of them, as text.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray | Mapping):
        return [place_text(one) for one in given]
    return place_text(given)


def absolute_sources(given: object) -> str | list[str]:
    """Return what :func:`source_texts` does, with absolute paths.

    Raises:
        ConfigError: It is something else.
    """
    found = source_texts(given)
    return absolute_source(found) if isinstance(found, str) else list(map(absolute_source, found))


def options_of(given: object) -> dict[str, Any]:
    """Return a copy of the storage options; ``None`` gives an empty one.

    Raises:
        ConfigError: They are something else; what they hold is not shown.
    """
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    raise ConfigError(
        f"storage_options is {kind_of(given)}; give a mapping from names to values, such as "
        "{'endpoint_url': 'http://host:9000'}"
    )


def count_of(given: object, name: str) -> int:
    """Return the argument ``name`` if it is an integer from 0 up.

    Raises:
        ConfigError: It is something else; the error says ``name``.
    """
    if isinstance(given, int) and given >= 0:
        return given
    raise ConfigError(f"{name} is {given!r}; give a number from 0 up")


def kind_of(given: object) -> str:
    """Return a value's type with its article ("a list"), without the value."""
    name = type(given).__name__
    return "None" if given is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
