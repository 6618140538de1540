"""Random tables beside Python's csv."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from streamrec.formats.examples.example import Example
from streamrec.sources.delimited import open_delimited
from tests.outside.result import Result, tried

__all__ = ["tables"]

TABLES = 1000


def tables(seed: int = 1) -> Result:
    """Random tables, beside Python's csv."""
    result, random = Result("random CSV beside Python's csv"), Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "table.csv")
        for number in range(TABLES):
            text = _table(random)
            path.write_bytes(text.encode())
            expected = list(csv.DictReader(io.StringIO(text, newline="")))
            if (found := tried(_rows, path)) == expected:
                result.agreeing += 1
            else:
                result.differing[f"table {number}"] = f"{text!r}: {found!r}"[:400]
    return result


def _table(random: Random) -> str:
    """Return a table with quotes, separators and line ends in its values."""
    file = io.StringIO(newline="")
    ends = random.choice(["\n", "\r\n"])
    quoting: Any = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    writer = csv.writer(file, lineterminator=ends, quoting=quoting)
    columns = random.randrange(2, 5)
    writer.writerow([f"name {i}" for i in range(columns)])
    parts = ['"', '""', ",", "\n", "\r\n", "a", "ü", " ", "'", "\\", "\t", ";", "1.5", "\u2028"]
    for _ in range(random.randrange(1, 8)):
        row = ["".join(random.choices(parts, k=random.randrange(5))) for _ in range(columns)]
        writer.writerow(["x", *row[1:]])  # the first column keeps rows from being empty
    return file.getvalue()


def _rows(path: Path) -> list[dict[str, str]]:
    names = next(csv.reader(io.StringIO(path.read_text(), newline="")))
    source = open_delimited(str(path), types=dict.fromkeys(names, "bytes"))
    found: list[dict[str, str]] = []

    def refuse(error: Exception) -> None:
        raise error

    for piece in source.pieces():
        for record in source.read(piece, refuse).records.to_list():
            features = Example.FromString(record).features.feature
            found.append({name: features[name].bytes_list.value[0].decode() for name in names})
    return found
