"""A source of each kind, with real data: photographs, and the measurements of 150 flowers."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.shard_tools.sources.folders import picture_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

IRIS = Path(__file__).parents[2] / "data" / "iris.csv"
TYPES: dict[str, Any] = {
    "sepal_length": float,
    "sepal_width": float,
    "petal_length": float,
    "petal_width": float,
    "label": int,
    "species": str,
}
OF_FLOWERS = ["csv", "csv.gz", "tsv", "jsonl", "parquet", "arrow", "function"]


def flowers() -> Iterator[dict[str, Any]]:
    """Yield the rows of the table as records."""
    for row in csv.DictReader(IRIS.read_text().splitlines()):
        yield {name: TYPES[name](text) for name, text in row.items()}


def real_source(kind: str, directory: Path) -> str:
    """Write a source of a kind, and return its place; skip if a package for it is missing."""
    place = directory / f"source.{kind}"
    match kind:
        case "pictures":
            picture_folder(place)
        case "csv":
            return str(IRIS)
        case "csv.gz":
            place.write_bytes(gzip.compress(IRIS.read_bytes()))
        case "tsv":
            place.write_text(IRIS.read_text().replace(",", "\t"))
        case "jsonl":
            place.write_text("".join(f"{json.dumps(flower)}\n" for flower in flowers()))
        case "function":
            return f"{__name__}:flowers"
        case _:
            write_arrow(place)
    return str(place)


def write_arrow(place: Path) -> None:
    """Write the table with pyarrow, as it reads the CSV file itself."""
    pyarrow: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pytest.importorskip("pyarrow.csv").read_csv(IRIS)
    if place.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, place)
    else:
        with pyarrow.ipc.new_file(place, table.schema) as file:
            file.write_table(table)
