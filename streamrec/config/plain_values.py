"""Values of settings that are plainly right, so that no validator need be imported to read them.

A kind is a function from a value to what the settings have of it. It refuses with a ``ValueError``
what may be wrong, or right in a form that few people write: pydantic judges that, and has the words
for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from streamrec.errors import ConfigError

Kind: TypeAlias = Callable[[Any], Any]

_SIZE = re.compile(r"(\d+)([KMGT])iB")
_POWERS = {unit: 10 * power for power, unit in enumerate("KMGT", 1)}


def anything(value: Any) -> Any:
    """Take any value."""
    return value


def one_of(*values: object) -> Kind:
    """Take one of some values, of its type too: 1 is not True."""

    def kind(value: Any) -> Any:
        for one in values:
            if type(value) is type(one) and value == one:
                return one
        raise ValueError

    return kind


def text(value: Any) -> str:
    """Take a text that can be encoded."""
    if type(value) is not str:
        raise ValueError
    value.encode()
    return value


def integer(least: int, most: int = (1 << 63) - 1) -> Kind:
    """Take an integer of a range."""

    def kind(value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise ValueError
        return value

    return kind


def number(least: float, most: float = math.inf) -> Kind:
    """Take a number of a range, as a float."""

    def kind(value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:
            raise ValueError
        return float(value)

    return kind


def byte_count(least: int) -> Kind:
    """Take a number of bytes, or a text such as ``"256MiB"``."""

    def kind(value: Any) -> Any:
        if type(value) is str and (written := _SIZE.fullmatch(value)):
            value = int(written[1]) << _POWERS[written[2]]
        if type(value) is not int or value < least:
            raise ValueError
        return value

    return kind


def either(*kinds: Kind) -> Kind:
    """Take what is of one of some kinds."""

    def kind(value: Any) -> Any:
        for one in kinds[:-1]:
            try:
                return one(value)
            except ValueError:
                continue
        return kinds[-1](value)

    return kind


def list_of(inner: Kind) -> Kind:
    """Take a list of values of a kind."""

    def kind(value: Any) -> Any:
        if type(value) is not list:
            raise ValueError
        return [inner(one) for one in value]

    return kind


def dict_of(inner: Kind) -> Kind:
    """Take a mapping from texts to values of a kind."""

    def kind(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError
        return {text(name): inner(one) for name, one in value.items()}

    return kind


NONE = one_of(None)
AUTO = one_of("auto")
flag = one_of(False, True)
positive = integer(1)
positive_number = number(math.nextafter(0, 1))


def byte_size(name: str, value: object) -> int:
    """Read a number of bytes, at least one, as settings write it (``"4MiB"``).

    Raises:
        ConfigError: The value is not a number of bytes; the error names ``name``.
    """
    try:
        return int(byte_count(1)(value))
    except ValueError:
        from streamrec.config.validation import any_byte_size  # pydantic, for the rarer forms
    count = any_byte_size(value)
    if count < 1:
        raise ConfigError(f"{name} is {value!r} but must be a number of bytes, as in 4MiB")
    return count
