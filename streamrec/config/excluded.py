"""The forms of the setting ``exclude``: a list's URL, pairs, or values by feature."""

from __future__ import annotations

from typing import Any

from streamrec.config.arguments import plain_integer
from streamrec.config.plain_values import dict_of, either, integer, list_of, text


def read_excluded(value: Any) -> Any:
    """Take what is in its plain form: texts, lists and mappings."""
    return _PLAIN(value)


def _plain_record(pair: Any) -> tuple[str, int]:
    if type(pair) not in (list, tuple) or len(pair) != 2:
        raise ValueError
    return text(pair[0]), integer(0)(pair[1])


def excluded_in_full(records: object) -> object:
    """Make pairs of lists, which a file has in place of tuples; check values by feature."""
    if isinstance(records, dict):
        return {name: _values(name, values) for name, values in records.items()}
    if not isinstance(records, list | tuple):
        return records
    pairs = [tuple(pair) if isinstance(pair, list | tuple) else pair for pair in records]
    # NumPy's integers, as batch.origin has them.
    plain = [tuple(map(plain_integer, pair)) if type(pair) is tuple else pair for pair in pairs]
    for pair in plain:
        if not _is_record(pair):
            raise ValueError(
                f"has {pair!r}, but each record must be a pair of a shard and a number from 0 up, "
                "such as ('train-00003.tfrecord', 17)"
            )
    return plain


def _values(feature: object, values: object) -> object:
    """Make a list of a feature's values; a text is the URL of a file of them."""
    if isinstance(values, str):
        return values
    plain = list(map(plain_integer, values)) if isinstance(values, list | tuple | set) else [None]
    if isinstance(feature, str) and all(type(value) in (int, str) for value in plain):
        return plain
    raise ValueError(
        f"has {values!r} for {feature!r}, but it takes a list of numbers or texts, or the URL of a "
        "file with a value on each line"
    )


def _is_record(pair: object) -> bool:
    match pair:
        case (str(), int(number)):
            return type(number) is int and number >= 0
    return False


_PLAIN = either(
    text,
    list_of(_plain_record),
    dict_of(either(text, list_of(either(text, integer(-(1 << 63)))))),
)
