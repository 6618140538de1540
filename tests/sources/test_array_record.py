from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.errors import ConfigError, DataError
from streamrec.sources import array_record as module
from streamrec.sources.array_record import open_array_record
from tests.sources.test_delimited import fail, records_of

if TYPE_CHECKING:
    from pathlib import Path

theirs: Any = pytest.importorskip(
    "array_record.python.array_record_module", reason="array_record is not installed"
)
RECORDS = [sr.encode_example({"image": picture}) for picture in sample_pictures()]


def write(path: Path, records: list[bytes], options: str = "group_size:1") -> Path:
    writer = theirs.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.mark.parametrize("options", ["group_size:1", "group_size:3,uncompressed"])
def test_records_as_they_are(options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 300_000)
    write(tmp_path / "a.array_record", RECORDS[:5], options)
    write(tmp_path / "b.array_record", [], options)
    write(tmp_path / "c.arrayrecord", RECORDS[5:], options)
    source = open_array_record(str(tmp_path))
    assert records_of(source) == RECORDS
    blocks = [source.read(piece, fail) for piece in source.pieces()]
    assert len(blocks) > 3
    assert sum(block.amount for block in blocks) == source.total - source.files[1].size


def test_damaged_files(tmp_path: Path) -> None:
    path = write(tmp_path / "x.array_record", RECORDS)
    data = path.read_bytes()
    for wrong in (b"", b"x" * 100_000, data[:-1], data[:1000] + b"xx" + data[1002:]):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=r"x\.array_record: ArrayRecord cannot read it: "):
            records_of(open_array_record(str(path)))


def test_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[arrayrecord\]'"):
        open_array_record(str(tmp_path))
