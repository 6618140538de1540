"""Checks of the public functions' arguments; paths and URLs become text."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from streamrec.config.places import HALF_CHARACTER, absolute_source, has_half_character
from streamrec.errors import ConfigError
from streamrec.masking import masked


def place_text(place: object) -> str:
    """Return a URL or path as text.

    Raises:
        ConfigError: It is something else, or no name can hold it.
    """
    text = os.fspath(place) if isinstance(place, os.PathLike) else place
    if isinstance(text, str):
        if has_half_character(text):
            raise ConfigError(f"{masked(text)!a} holds {HALF_CHARACTER}")
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


def count_of(number: object, name: str, least: int = 0, most: float = math.inf) -> int:
    """Return the argument ``name`` if it is an integer from ``least`` to ``most``.

    Raises:
        ConfigError: It is something else; the error says ``name``.
    """
    count = plain_integer(number)
    if type(count) is int and least <= count <= most:
        return count
    limit = "up" if most == math.inf else f"to {most}"
    raise ConfigError(f"{name} is {number!r}; give a number from {least} {limit}")


def numbers_of(values: object, name: str) -> dict[str, float]:
    """Return the argument ``name`` if it is a mapping from texts to numbers.

    Raises:
        ConfigError: It is something else; the error says ``name``.
    """
    pairs = list(values.items()) if isinstance(values, Mapping) else []
    if not pairs or not all(isinstance(n, Real) and isinstance(key, str) for key, n in pairs):
        raise ConfigError(f"{name} is {values!r}; give a mapping from names to numbers")
    try:
        return {key: float(number) for key, number in pairs}
    except OverflowError:
        raise ConfigError(f"{name} has a number above 1.7e308; give smaller ones") from None


def plain_integer(value: Any) -> Any:
    """Return an integer of NumPy as Python's; all else as it is."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def kind_of(value: object) -> str:
    """Return a value's type with its article ("a list"), without the value."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def seconds_of(length: object, name: str) -> float:
    """Return the argument ``name``, a length of time, in seconds.

    Args:
        length: A number of seconds, or a text such as ``"30s"``, ``"5min"`` or ``"1h"``.
        name: The name of the argument.

    Raises:
        ConfigError: It is something else, or not above 0; the error says ``name``.
    """
    if isinstance(length, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", length)
        seconds = float(match[1]) * _UNITS[match[2]] if match else math.nan
    else:
        is_number = isinstance(length, int | float) and not isinstance(length, bool)
        seconds = float(length) if is_number else math.nan  # type: ignore[arg-type]
    if 0 < seconds < math.inf:
        return seconds
    raise ConfigError(f"{name} is {length!r}; give seconds above 0, or a text like '30s' or '5min'")
