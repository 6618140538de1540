from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError, DataError
from streamrec.plan.order.shard_names import Task
from streamrec.sources import webdataset as module
from streamrec.sources.webdataset import open_webdataset
from tests.sources.tars import pictures, write_tar
from tests.sources.test_delimited import records_of

if TYPE_CHECKING:
    from pathlib import Path

PLAIN: Any = {
    "__key__": sr.FixedLenFeature((), bytes),
    "jpg": sr.FixedLenFeature((), bytes),
    "cls": sr.FixedLenFeature((), "int64"),
    "txt": sr.FixedLenFeature((), bytes),
    "json": sr.FixedLenFeature((), bytes),
}


def tars(root: Path) -> list[tuple[str, bytes]]:
    """Write two tars of pictures, one of them compressed, and return their files."""
    files = pictures()
    write_tar(root / "x-000.tar", files[:20])
    write_tar(root / "x-001.tar.gz", files[20:])
    return files


def test_tasks_read_tars_of_their_own(tmp_path: Path) -> None:
    tars(tmp_path)
    source = open_webdataset(str(tmp_path))
    parts = [source.part(Task(number, 2)) for number in range(2)]
    assert [len(part.files) for part in parts if part] == [1, 1]
    assert [r for part in parts if part for r in records_of(part)] == records_of(source)
    assert source.part(Task(0, 3)) is None


def test_pictures(tmp_path: Path) -> None:
    files = dict(tars(tmp_path))
    source = open_webdataset(str(tmp_path))
    assert source.features == {
        name: "int64" if name == "cls" else "bytes" for name in sorted(PLAIN)
    }
    found = sr.parse_example(records_of(source), PLAIN)
    keys = found["__key__"].to_list()
    assert keys == [b"./train/%04d" % number for number in range(8)]
    for name in ("jpg", "txt", "json"):
        assert found[name].to_list() == [files[f"{key.decode()}.{name}"] for key in keys]
    assert found["cls"].tolist() == [number % 3 for number in range(8)]
    blocks = [source.read(piece, lambda _: None) for piece in source.pieces()]
    assert [key for block in blocks for key in block.keys or ()] == keys
    assert source.total is None
    (plain,) = open_webdataset(f"{tmp_path}/x-{{000..000}}.tar").pieces()
    assert plain.stop == (tmp_path / "x-000.tar").stat().st_size


def test_values_of_json(tmp_path: Path) -> None:
    tars(tmp_path)
    wanted = {"json/box": "float32", "json/of/name": None, "cls": "bytes", "json/late": "int64"}
    source = open_webdataset(str(tmp_path), features=wanted, key="json/of/name")
    types = {"cls": "bytes", "json/box": "float32", "json/late": "int64", "json/of/name": "bytes"}
    assert source.features == types
    specs: Any = {
        "json/box": sr.FixedLenFeature((2,), "float32"),
        "json/of/name": sr.FixedLenFeature((), bytes),
        "cls": sr.FixedLenFeature((), bytes),
        "json/late": sr.VarLenFeature("int64"),
    }
    found = sr.parse_example(records_of(source), specs)
    assert found["json/box"].tolist() == [[1, number] for number in range(8)]
    assert found["json/of/name"].to_list() == [b"p"] * 8
    assert found["cls"][4] == b"1\n"
    assert found["json/late"].to_list() == [[]] * 8
    (first, _) = source.pieces()
    assert source.read(first, lambda _: None).keys == [b"p"] * 5


def test_another_key_gives_another_version(tmp_path: Path) -> None:
    tars(tmp_path)
    by_name = open_webdataset(str(tmp_path))
    assert open_webdataset(str(tmp_path), key="cls").identity != by_name.identity


def test_wrong_samples_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE", 1)
    files = {"0.cls": b" 7 ", "1.cls": b"x", "1.json": b"{}", "2.cls": b"2", "2.cls.x": b""}
    path = write_tar(tmp_path / "x.tar", [*files.items(), ("3.cls", b"3"), ("3.cls", b"3")])
    errors: list[DataError] = []
    source = open_webdataset(str(path))
    assert records_of(source, errors.append) == [sr.encode_example({"__key__": b"0", "cls": 7})]
    for error, words in zip(
        errors,
        [
            "sample '1': 'json' is not in the first samples",
            "sample '2': 'cls.x' is not in the first samples",
            "sample '3': has two files of the extension 'cls'",
        ],
        strict=True,
    ):
        assert f"{path}: {words}" in str(error)
    errors.clear()
    chosen = open_webdataset(str(path), features={"cls": None, "json/a": "int64"})
    assert len(records_of(chosen, errors.append)) == 2
    assert "sample '1': column 'cls' holds 'x', which is not int64" in str(errors[0])
    bad = write_tar(tmp_path / "y.tar", [("0.json", b"[]"), ("1.json", b'{"a": 1}')])
    errors.clear()
    records_of(open_webdataset(str(bad), features={"json/a": "int64"}), errors.append)
    assert "sample '0': 'json': it is not a JSON object" in str(errors[0])


def test_refusals(tmp_path: Path) -> None:
    empty = write_tar(tmp_path / "x.tar", [("README", b"x")])
    with pytest.raises(ConfigError, match=r"x\.tar: there is no sample in it"):
        open_webdataset(str(empty))
    place = str(write_tar(tmp_path / "y.tar", [("0.cls", b"1"), ("0.json", b'{"a": [[1]]}')]))
    with pytest.raises(ConfigError, match="--key: 'b' is not a feature; choose among __key__, cls"):
        open_webdataset(place, key="b")
    with pytest.raises(ConfigError, match="has no 'json/b'; choose among __key__, cls, json"):
        open_webdataset(place, features={"json/b": None})
    with pytest.raises(DataError, match="'json/a' holds a list of lists"):
        records_of(open_webdataset(place, features={"json/a": None}))


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """WebDataset, which does without torch, and torch takes seconds to import."""
    if "torch" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torch", None)
    return pytest.importorskip("webdataset", reason="webdataset is not installed")


@pytest.mark.filterwarnings("ignore")
def test_webdataset_reads_the_same(tmp_path: Path, theirs: Any) -> None:
    tars(tmp_path)
    files = [("a.b/c.d.CLS", b"5"), ("a.b/c.seg.png", b"x"), ("__meta__.x", b""), ("e/f.id", b"6")]
    write_tar(tmp_path / "x-002.tar", [*files, ("no", b""), ("e/f.txt", "ü".encode())])
    expected = []
    for sample in theirs.WebDataset(sorted(map(str, tmp_path.iterdir())), shardshuffle=False):
        values = {name: sample[name] for name in sample.keys() - {"__url__", "__local_path__"}}
        for name, value in values.items():
            if name.rpartition(".")[2] in module.NUMBERS:
                values[name] = theirs.autodecode.basichandlers(name, value)
        expected.append(sr.encode_example(values))
    assert records_of(open_webdataset(str(tmp_path))) == expected
    assert len(expected) == 11


def test_the_numbers_are_those_of_webdataset(theirs: Any) -> None:
    known = theirs.autodecode.decoders
    whole = {name for name, decode in known.items() if decode.__code__.co_names == ("int",)}
    assert whole == module.NUMBERS
