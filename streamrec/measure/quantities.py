"""Texts such as ``"latency=50ms,link=10Gbit"``, and the quantities in them. Pure: no I/O."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, ByteSize, Field, TypeAdapter, ValidationError

from streamrec.config.lazy_settings import validate
from streamrec.config.validation import Settings
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_BYTES = TypeAdapter(ByteSize)


def parse_seconds(text: str) -> float:
    """Return the seconds of a time such as ``50ms``.

    Raises:
        ValueError: It is not a time, or has no unit; the message goes on from a setting's name.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*({'|'.join(_TIMES)})", text)
    if match is None:
        raise ValueError(f"is {text!r}; write a time and its unit, such as 50ms or 2s")
    # A unit is required: 50 could be seconds or milliseconds.
    return float(match[1]) * _TIMES[match[2]]


def parse_part(text: str) -> float:
    """Return a part of 1, which is written as ``30%`` or ``0.3``.

    Raises:
        ValueError: The text is not such a part; the message goes on from a setting's name.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*(%?)", text)
    if match is None:
        raise ValueError(f"is {text!r}; write a part, such as 30% or 0.3")
    return float(match[1]) / (100 if match[2] else 1)


def _parse_rate(text: str) -> float:
    match = re.fullmatch(rf"{_NUMBER}\s*(?:/s)?", text)
    if match is None:
        raise ValueError(f"is {text!r}; write a number a second, such as 3500/s")
    return float(match[1])


def _parse_bytes(text: str) -> int:
    return _bytes(text, f"is {text!r}; write bytes and their unit, such as 128MB")


def _parse_byte_rate(text: str) -> int:
    why = f"is {text!r}; write a rate such as 60MB/s or 10Gbit"
    return _bytes(text.removesuffix("/s"), why)


def _bytes(text: str, why: str) -> int:
    # A small b stands for bits as often as for bytes.
    if not re.fullmatch(rf"{_NUMBER}\s*(?!\w+b$)\w*", text):
        raise ValueError(why)
    try:
        return int(_BYTES.validate_python(text))
    except ValidationError:
        raise ValueError(why) from None


def _reader(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that takes numbers as they are, and parses texts."""
    return BeforeValidator(lambda value: parse(value.strip()) if isinstance(value, str) else value)


Seconds = Annotated[float, _reader(parse_seconds), Field(ge=0, allow_inf_nan=False)]
Part = Annotated[float, _reader(parse_part), Field(ge=0, allow_inf_nan=False)]
"""A part of 1; it may be more than the whole."""
Rate = Annotated[float, _reader(_parse_rate), Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, _reader(_parse_bytes), Field(gt=0)]
ByteRate = Annotated[int, _reader(_parse_byte_rate), Field(gt=0)]

_Model = TypeVar("_Model", bound=Settings)


def parse_settings(
    model: type[_Model], text: str, *, where: str, plain: Mapping[str, Any] | None = None
) -> _Model:
    """Build settings from a text of ``NAME=VALUE``, separated by commas.

    Args:
        model: The settings class.
        text: The text; empty: all settings have their defaults.
        where: The name of what the text describes, for errors.
        plain: Further values.

    Raises:
        ConfigError: The text has another form, names a setting twice, or settings are wrong.
    """
    values: dict[str, Any] = dict(plain or {})
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, value = map(str.strip, item.partition("="))
        if not equals:
            raise ConfigError(f"{where}: {item!r} has no value; write it like NAME=VALUE")
        # The last one would win in silence.
        if name in values:
            raise ConfigError(f"{where}: {name!r} is there twice; leave one of them out")
        values[name] = value
    # Not strict: all values come as texts here.
    return validate(model, values, where=where, strict=False)
