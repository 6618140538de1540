"""Small files that claim much memory: what ``write`` with 64 MiB takes for them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from streamrec.errors import DataError, RecordTooLarge
from streamrec.sources.opening import open_source
from streamrec.sources.source import PIECE, Memory
from tests.by_day import at_night
from tests.sources.mds_writer import write_mds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq: Any = pytest.importorskip("pyarrow.parquet")
MIB = 1 << 20
MEMORY = Memory(64 * MIB)
BESIDES = 200_000_000
"""Bytes beyond the memory: the process itself has a half of them."""
SECONDS = 30.0
"""CPU time of all."""


class Bomb(NamedTuple):
    """A file, and the error by which it is refused, if it is."""

    name: str
    write: Callable[[Path, int], object]
    """Writes the file, which claims so many MiB."""
    error: type[DataError] | None
    claims: int = 600
    """MiB that it claims at night; by day a small part of it."""


def equal(rows: int) -> Any:
    """Return equal rows of 1 MiB, which are there once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [bytes(MIB)])


def parquet(path: Path, values: Any, **options: Any) -> None:
    pq.write_table(pa.table({"a": values}), path, compression="zstd", store_schema=False, **options)


def long_list(path: Path, size: int) -> None:
    values = pa.array(np.zeros(size * MIB // 8, np.int64))
    parquet(path, pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values))


def arrow(path: Path, values: Any) -> None:
    table = pa.table({"a": values})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)


def tar(path: Path, size: int) -> None:
    member = tarfile.TarInfo("0.bin")
    member.size = size * MIB
    with gzip.open(path, "wb", 1) as file:
        file.write(member.tobuf())
        for _ in range(size):
            file.write(bytes(MIB))
        file.write(bytes(1024))


def text(path: Path, size: int, head: bytes, octet: bytes) -> None:
    with gzip.open(path, "wb", 1) as file:
        file.write(head)
        for _ in range(size):
            file.write(octet * MIB)


def mds(path: Path, size: int) -> None:
    write_mds(path, {"a": "bytes"}, [[[bytes(size * MIB)]]], "zstd")


BOMBS = {
    "Parquet, equal rows in a dictionary": Bomb(
        "x.parquet", lambda path, size: parquet(path, equal(size)), None, 1200
    ),
    "Parquet, a page of equal rows": Bomb(
        "x.parquet",
        lambda path, size: parquet(path, equal(size).dictionary_decode(), use_dictionary=False),
        RecordTooLarge,
    ),
    "Parquet, a list of zeros": Bomb("x.parquet", long_list, RecordTooLarge),
    "Arrow, equal rows in a dictionary": Bomb(
        "x.arrow", lambda path, size: arrow(path, equal(size)), None, 1200
    ),
    "Arrow, equal rows": Bomb(
        "x.arrow", lambda path, size: arrow(path, equal(size).dictionary_decode()), RecordTooLarge
    ),
    "MDS, a sample of zeros by zstd": Bomb("x", mds, RecordTooLarge),
    "WebDataset, a sample of zeros by gzip": Bomb("x.tar.gz", tar, RecordTooLarge),
    "CSV, a row without an end by gzip": Bomb(
        "x.csv.gz", lambda path, size: text(path, size, b"a\n", b"1"), DataError
    ),
    "JSON, brackets without an end by gzip": Bomb(
        "x.jsonl.gz", lambda path, size: text(path, size, b"", b"["), DataError
    ),
}
PROGRAM = """
import json, re, resource, sys
import streamrec as sr
from streamrec.plan.order.shard_names import Task
from streamrec.datasets.convert import Conversion
from streamrec.datasets.convert import Destination
from streamrec.sources.source import Memory
place, memory = json.loads(sys.argv[1])
where = Destination(place + "-out/", Task(0, 1), 1)
described = Conversion(place, where, workers=2, memory=Memory(memory))
error = None
try:
    described.run(described.open(), dry_run=True)
except sr.errors.StreamrecError as raised:
    error = type(raised).__name__
used = resource.getrusage(resource.RUSAGE_SELF)  # its maxrss would be that of the parent
peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())
print(json.dumps([error, int(peak[1]) * 1024, used.ru_utime + used.ru_stime]))
"""


def load(setting: str, name: str) -> Any:
    raise AssertionError(setting, name)


@pytest.mark.parametrize(
    "name", [at_night(name) if BOMBS[name].error is DataError else name for name in BOMBS]
)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    bomb = BOMBS[name]
    bomb.write(tmp_path / bomb.name, 80)
    if bomb.error is None:
        source = open_source(str(tmp_path / bomb.name), None, {}, load, memory=MEMORY)
        for piece in islice(source.pieces(), 5):
            assert piece.nbytes <= PIECE
        return
    with pytest.raises(bomb.error) as caught:
        place = str(tmp_path / bomb.name)
        kind = "mds" if bomb.write is mds else None
        for _ in open_source(place, kind, {}, load, memory=MEMORY).pieces():
            pass
    assert type(caught.value) is bomb.error


@pytest.mark.night
@pytest.mark.parametrize("name", BOMBS)
def test_what_is_taken(tmp_path: Path, name: str) -> None:
    """Hold the memory and the CPU time of a process that counts the records."""
    bomb = BOMBS[name]
    bomb.write(tmp_path / bomb.name, bomb.claims)
    error, memory, seconds = taken(str(tmp_path / bomb.name))
    assert error == (bomb.error and bomb.error.__name__)
    assert memory <= MEMORY.most + BESIDES
    assert seconds <= SECONDS


def taken(place: str) -> list[Any]:
    """Return the error, the bytes and the CPU seconds of a process that counts the records."""
    argument = json.dumps([place, MEMORY.most])
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, check=True
    )
    return list(json.loads(found.stdout))
