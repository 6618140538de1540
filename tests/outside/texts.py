"""Texts of JSON that others collected, as sources of ``streamrec write``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import StreamrecError
from streamrec.formats.examples.example import Example
from streamrec.sources.json_lines import json_object, open_json_lines
from streamrec.sources.table_values import RowError
from tests.outside.debian import debian_source
from tests.outside.result import Result, checkout, tried

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["json_checker", "json_test_suite"]

_SHAPE = "it is JSON, but not a table: a row is one object, of values and lists of values"
_FIT = "a number that float32 or int64 does not hold is refused, with the option that takes it"
TOLD = {
    r"n_number_(NaN|infinity|minus_infinity)": "NaN and Infinity, which Python writes, are taken",
    r"not a JSON object|has no object|with values in it|alone, not '\[null, 1": _SHAPE,
    r"holds a list of lists": _SHAPE,
    r"its object does not end": "a row stands on one line",
    r"(beyond|as) (float32|int64)": _FIT,
    r"two values are named": "two values of one name are refused",
    r"UTF-8_BOM": "a byte order mark before a value is refused",
    r"half of a character|not UTF-8": "texts that UTF-8 cannot hold are refused",
}
FORMS = {
    "alone.json": b"%b",
    "alone.jsonl": b"%b",
    "value.jsonl": b'{"value": %b}',
    "value.json": b'[{"value": %b}]',
}
"""A text as a file, and as a value of a row."""


def json_checker() -> Result:
    """The texts of JSON_checker, as the values of a row, beside Python's json."""
    result = Result("JSON_checker's texts")
    with debian_source("libjsoncpp") as source:
        if source is None:
            result.missing = "Debian's source of libjsoncpp"
            return result
        for path in sorted(source.rglob("jsonchecker/*.json")):
            row = b'{"value": ' + path.read_bytes() + b"}"
            is_right = not isinstance(tried(json.loads, row), Exception)
            ours = tried(json_object, row)
            if isinstance(ours, Exception) and not isinstance(ours, RowError):
                result.differing[path.name] = f"raises {ours!r}"
            elif isinstance(ours, Exception) == is_right:
                result.differing[path.name] = f"gave {ours!r}"[:200]
            else:
                result.agreeing += 1
    return result


def json_test_suite() -> Result:
    """The texts of JSONTestSuite: y_ to be taken, n_ to be refused, i_ either."""
    result = Result("JSONTestSuite's texts, as files and as values", TOLD)
    source = checkout(result, "STREAMREC_TEST_JSONTESTSUITE", "test_parsing")
    if source is None:
        return result
    with tempfile.TemporaryDirectory() as directory:
        for path in sorted(source.glob("test_parsing/*.json")):
            for form, around in FORMS.items():
                place = Path(directory, form)
                place.write_bytes(around.replace(b"%b", path.read_bytes()))
                what = _difference(path.name[0], place)
                if what:
                    result.differing[f"{path.name} as {form}"] = what[:300]
                else:
                    result.agreeing += 1
    return result


def _difference(kind: str, place: Path) -> str:
    """Return how the rows of a file are not as they should be, or why they are refused."""
    ours = tried(lambda: list(_rows(place)))
    if isinstance(ours, Exception):
        if not isinstance(ours, StreamrecError):
            return f"raises {ours!r}"
        is_placed = "line " in str(ours) or "with values in it" in str(ours)
        return "" if kind == "n" and is_placed else f"refused: {ours}".replace(str(place), "")
    if kind == "n":
        return f"was taken: {ours}"
    value: Any = json.loads(place.read_bytes().decode("utf-8-sig"))
    expected = [dict(_expected(row)) for row in (value if isinstance(value, list) else [value])]
    return "" if ours == expected else f"gave {ours}, not {expected}"


def _rows(place: Path) -> Iterator[dict[str, list[Any]]]:
    """Read a file as ``write`` does, and the records that come of it."""
    source = open_json_lines(str(place))

    def refuse(error: Exception) -> None:
        raise error

    for piece in source.pieces():
        for record in source.read(piece, refuse).records.to_list():
            features = Example.FromString(record).features.feature
            yield {name: _values(feature) for name, feature in features.items()}


def _values(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def _expected(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the values of a row, as a record has them."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _expected(value, f"{prefix}{name}/")
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            yield prefix + name, [_as_feature(one) for one in values]


def _as_feature(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return float(np.float32(value)) if isinstance(value, float) else int(value)
