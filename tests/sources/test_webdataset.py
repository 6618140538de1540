from __future__ import annotations

import contextlib
import gzip
import io
import sys
import tarfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, DataError, RecordTooLarge
from streamrec.plan.order.shard_names import Task
from streamrec.sources import webdataset as module
from streamrec.sources.source import DEFAULT_MEMORY, Memory, files_of
from streamrec.sources.webdataset import open_webdataset, tar_pieces
from tests.sources.tars import pictures, write_tar
from tests.sources.test_delimited import records_of

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.sources.webdataset import TarPiece, TarSample


Sample = tuple[str, dict[str, bytes]]


def pieces_of(path: Path, memory: Memory = DEFAULT_MEMORY) -> list[TarPiece]:
    (file,) = files_of(str(path))
    return list(tar_pieces(file, memory))


def samples_of(pieces: list[TarPiece]) -> list[Sample]:
    found = []
    for piece in pieces:
        contents = piece.contents()
        for sample in piece.samples:
            assert sample.wrong is None
            files = {extension: contents[at] for extension, at in sample.files.items()}
            found.append((sample.key, files))
    return found


NAMES = st.text("aé_/ -", min_size=1, max_size=120).filter(
    lambda name: name.rpartition("/")[2] and "//" not in name and not name.startswith(("/", "__"))
)
EXTENSIONS = st.text("ab.0", min_size=1, max_size=4).filter(lambda text: text[0] != ".")
SAMPLES = st.lists(
    st.tuples(NAMES, st.dictionaries(EXTENSIONS, st.binary(max_size=1200), min_size=1, max_size=3)),
    max_size=6,
    unique_by=lambda sample: sample[0],
)


@given(
    samples=SAMPLES,
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    suffix=st.sampled_from(["tar", "tgz"]),
    size=st.sampled_from([1, 3000, 1 << 20]),
)
def test_what_is_written_is_read(
    samples: list[Sample],
    form: int,
    suffix: str,
    size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files = [(f"{key}.{name}", data) for key, parts in samples for name, data in parts.items()]
    path = write_tar(tmp_path_factory.mktemp("d") / f"x.{suffix}", files, format=form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", size)
        pieces = pieces_of(path)
    assert samples_of(pieces) == samples
    assert all(one.stop == two.start for one, two in pairwise(pieces))
    if pieces and suffix == "tar":
        assert (pieces[0].start, pieces[-1].stop) == (0, path.stat().st_size)
    if size == 1:
        assert len(pieces) == len(samples)


def test_a_tar_in_a_store_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 3000)
    path = write_tar(tmp_path / "x.tar", [(f"{n}.bin", bytes(700)) for n in range(30)])
    with DevStore() as store:
        store.put("bucket/x.tar", path.read_bytes())
        (file,) = files_of("s3://bucket/x.tar", (), store.storage_options)
        store.statistics.clear()
        found = list(tar_pieces(file))
        assert store.statistics.requests == 1
    assert samples_of(found) == samples_of(pieces_of(path))
    assert len(found) > 5


def test_files_that_belong_to_no_sample(tmp_path: Path) -> None:
    names = ["__info__", "__a__/b.c", "README", "d/.hidden.jpg", "d/._1.jpg", "d/1.JPG", "e.f/g"]
    path = write_tar(tmp_path / "x.tar", [(name, b"x") for name in names])
    with tarfile.open(path, "a") as tar:
        directory = tarfile.TarInfo("d.e")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
    assert samples_of(pieces_of(path)) == [("d/1", {"jpg": b"x"})]
    assert pieces_of(write_tar(tmp_path / "y.tar", [])) == []


def sample_with(path: Path, **facts: Any) -> TarSample:
    with tarfile.open(path, "w") as tar:
        for name in ("/etc/a.txt", "/etc/a.b"):
            info = tarfile.TarInfo(name)
            if name == "/etc/a.b":
                vars_of(info, facts)
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    ((sample,),) = (piece.samples for piece in pieces_of(path))
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    return sample


def vars_of(info: tarfile.TarInfo, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        setattr(info, name, value)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "'/etc/a.b' is a link"),
        ({"type": tarfile.LNKTYPE, "linkname": "a.txt"}, "is a link; write the tar with"),
        ({"type": tarfile.CHRTYPE}, "is a device or a pipe"),
        ({"type": tarfile.FIFOTYPE}, "is a device or a pipe"),
        ({"type": tarfile.GNUTYPE_SPARSE}, "is a sparse file"),
        ({"pax_headers": {"GNU.sparse.map": "0,0", "GNU.sparse.size": "9"}}, "is a sparse file"),
        ({"name": "/etc/a.txt"}, "has two files of the extension 'txt'"),
        ({"name": "/etc/a.\udcff"}, "has an extension that is not text"),
    ],
)
def test_hostile_files_make_a_sample_wrong(
    facts: dict[str, Any], words: str, tmp_path: Path
) -> None:
    sample = sample_with(tmp_path / "x.tar", **facts)
    assert sample.key == "/etc/a"
    assert sample.wrong is not None
    assert words in sample.wrong


@pytest.mark.parametrize("name", ["x.tar", "x.tgz"])
def test_samples_have_a_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    four = write_tar(tmp_path / name, [(f"0.{extension}", b"") for extension in "abcd"])
    (piece,) = pieces_of(four)
    assert piece.samples[0].wrong == "has more than 3 files; divide it"
    large = write_tar(tmp_path / name, [("0.a", bytes(60_000)), ("0.b", bytes(50_000))])
    assert pieces_of(large, Memory(4 * 120_000))
    with pytest.raises(RecordTooLarge, match="sample '0' takes"):
        pieces_of(large, Memory(4 * 100_000))


def test_what_stands_between_samples_is_bounded(tmp_path: Path) -> None:
    """Of a local tar, a piece is read with all between its first and its last byte."""
    tar = write_tar(tmp_path / "x.tar", [("0.a", b"1"), ("notes", bytes(50_000)), ("0.b", b"2")])
    assert pieces_of(tar, Memory(4 * 70_000))
    with pytest.raises(RecordTooLarge, match="sample '0' takes"):
        pieces_of(tar, Memory(4 * 40_000))


def header(kind: bytes, size: int) -> bytes:
    """A header of a kind that tells of a size."""
    info = tarfile.TarInfo("a.b")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


DAMAGED = {
    "empty": b"",
    "no tar": b"not a tar at all" * 100,
    "a long name": header(tarfile.GNUTYPE_LONGNAME, 1 << 40),
    "a long header": header(tarfile.XHDTYPE, 1 << 40),
    "a negative size": header(tarfile.REGTYPE, -1024),
    "a negative header": header(tarfile.XGLTYPE, -1024),
    "a huge size": header(tarfile.REGTYPE, 1 << 70),
    "headers in headers": header(tarfile.GNUTYPE_LONGNAME, 0) * 5000,
    "no end": header(tarfile.REGTYPE, 0),
    "no second header": header(tarfile.REGTYPE, 0) + b"x" * 1024,
    "two tars": (header(tarfile.REGTYPE, 0) + bytes(1024)) * 2,
    "half a header": header(tarfile.REGTYPE, 0) + b"x" * 100,
    "half a file": header(tarfile.REGTYPE, 600) + b"x" * 100,
}


@pytest.mark.parametrize("suffix", ["tar", "tgz"])
@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damaged_tars(data: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(gzip.compress(data) if suffix == "tgz" else data)
    with pytest.raises(DataError, match=rf"x\.{suffix}: the tar is damaged: .*write it anew"):
        pieces_of(path)


def test_a_tar_that_is_cut_off(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "x.tgz", [(f"{n}.bin", bytes(700)) for n in range(3)])
    data = whole.read_bytes()
    plain = gzip.decompress(data)
    for size in (*range(len(data)), *range(0, 3 * 1536 + 1, 128)):
        cut = tmp_path / ("y.tgz" if size < len(data) else "y.tar")
        cut.write_bytes(data[:size] if size < len(data) else plain[:size])
        with pytest.raises(DataError, match="the tar is damaged"):
            pieces_of(cut)


@given(at=st.integers(0, 3 * 1536 - 1), byte=st.integers(0, 255))
def test_a_byte_that_is_another(
    at: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("d") / "x.tar"
    files = [("a/" * 60 + f"{n}.bin", bytes(100)) for n in range(2)]
    data = bytearray(write_tar(path, files, format=tarfile.PAX_FORMAT).read_bytes())
    data[at] = byte
    path.write_bytes(data)
    with contextlib.suppress(DataError):
        assert len(pieces_of(path)) <= 1


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


def test_no_sample_that_is_right(tmp_path: Path) -> None:
    """The first one's fault is told: there are samples."""
    path = str(write_tar(tmp_path / "x.tar", [("1.json", b"{x}"), ("2.json", b"[1]")]))
    with pytest.raises(DataError, match=r"x\.tar: sample '1': 'json': it is not JSON"):
        open_webdataset(path, features={"json/a": None})
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("1.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "../1.jpg"
        tar.addfile(link)
    with pytest.raises(DataError, match=r"sample '1': '1\.jpg' is a link"):
        open_webdataset(path)


def test_the_bytes_tell_the_compression(tmp_path: Path) -> None:
    plain, packed = (write_tar(tmp_path / name, pictures()) for name in ("x.tar", "x.tgz"))
    wanted = records_of(open_webdataset(str(plain)))
    plain.rename(tmp_path / "y.tgz")
    packed.rename(tmp_path / "y.tar")
    for name in ("y.tgz", "y.tar"):
        assert records_of(open_webdataset(str(tmp_path / name))) == wanted


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
