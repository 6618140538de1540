"""A source of each kind, with real data: photographs, and the measurements of 150 flowers."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from tests.sources.folders import picture_folder
from tests.sources.mds_writer import write_mds
from tests.sources.tars import write_tar

if TYPE_CHECKING:
    from collections.abc import Iterator

IRIS = Path(__file__).parents[1] / "data" / "iris.csv"
TYPES: dict[str, Any] = {
    "sepal_length": float,
    "sepal_width": float,
    "petal_length": float,
    "petal_width": float,
    "label": int,
    "species": str,
}
OF_FLOWERS = ["csv", "csv.gz", "tsv", "jsonl", "parquet", "arrow", "function"]
OF_FLOWERS += ["tar", "tgz", "mds", "array_record"]
COLUMNS = {float: "float64", int: "int", str: "str"}
"""The kinds of columns in MDS."""


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
        case "tar" | "tgz":
            write_tar(place, files_of_flowers())
        case "pictures.tar":
            write_tar(place, files_of_pictures(picture_folder(directory / "pictures")))
        case "mds":
            columns = {name: COLUMNS[kind] for name, kind in TYPES.items()}
            rows = [encoded(flower) for flower in flowers()]
            write_mds(place, columns, [rows[:100], rows[100:]], "zstd")
        case "array_record":
            write_array_record(place)
        case _:
            write_arrow(place)
    return str(place)


def options_of(kind: str) -> list[str]:
    """Return what ``streamrec write`` is told of a source, to write the features of the table."""
    if kind not in ("tar", "tgz"):
        return []
    types = {float: "float32", int: "int64", str: "bytes"}
    return ["--features", ",".join(f"{name}={types[kind]}" for name, kind in TYPES.items())]


def files_of_flowers() -> Iterator[tuple[str, bytes]]:
    """Yield the files of samples, one for each value."""
    for number, flower in enumerate(flowers()):
        for name, value in flower.items():
            yield f"{number:06}.{name}", str(value).encode()


def files_of_pictures(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of samples: photographs, and the numbers of their classes."""
    classes = sorted(path.name for path in root.iterdir())
    for path in sorted(root.glob("*/*")):
        name = path.relative_to(root).with_suffix("").as_posix()
        yield f"{name}.jpg", path.read_bytes()
        yield f"{name}.cls", b"%d" % classes.index(path.parent.name)


def encoded(flower: dict[str, Any]) -> list[bytes]:
    """Return a record's values as MDS has them, in the order of their names."""
    return [
        value.encode()
        if isinstance(value, str)
        else np.array(value, "<i8" if isinstance(value, int) else "<f8").tobytes()
        for _, value in sorted(flower.items())
    ]


def write_array_record(place: Path) -> None:
    """Write serialized Examples with the package of that name."""
    reason = "array_record is not installed"
    theirs: Any = pytest.importorskip("array_record.python.array_record_module", reason=reason)
    writer = theirs.ArrayRecordWriter(str(place), "group_size:1")
    for flower in flowers():
        writer.write(sr.encode_example(flower))
    writer.close()


def write_arrow(place: Path) -> None:
    """Write the table with pyarrow, as it reads the CSV file itself."""
    pyarrow: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pytest.importorskip("pyarrow.csv").read_csv(IRIS)
    if place.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, place)
    else:
        with pyarrow.ipc.new_file(place, table.schema) as file:
            file.write_table(table)
