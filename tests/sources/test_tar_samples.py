from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import DevStore
from streamrec.errors import DataError, RecordTooLarge
from streamrec.sources import tar_samples as module
from streamrec.sources.memory import DEFAULT_MEMORY, Memory
from streamrec.sources.source import files_of
from streamrec.sources.tar_samples import tar_pieces
from tests.sources.tars import write_tar

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.sources.tar_samples import TarPiece, TarSample

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
    lambda name: name.rpartition("/")[2] and "//" not in name and not name.startswith("/")
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
