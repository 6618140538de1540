from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.stores.cache.shelves import (
    ABANDONED,
    FOOTER,
    REGION,
    CacheFolder,
    Piece,
    ProcessMemory,
    ShelvedPiece,
    end_of_gap,
    key_of,
    piece_at,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://user:secret@host/x", "https://host/x"),
        (
            "https://host/x?X-Amz-Signature=1&X-Amz-Date=2&part=3",
            "https://host/x?part=3&X-Amz-Signature=4&X-Amz-Date=5",
        ),
        ("https://host/x#here", "https://host/x"),
    ],
)
def test_credentials_are_no_part_of_a_name(one: str, other: str) -> None:
    assert key_of(one, '"1"') == key_of(other, "1")


@pytest.mark.parametrize(
    ("url", "etag", "endpoint"),
    [
        ("https://host/x?part=4", "1", ""),
        ("https://host/y?part=3", "1", ""),
        ("https://host/x?part=3", "2", ""),
        ("https://host/x?part=3", "1", "http://127.0.0.1"),
        ("https://host/x", "1", ""),
    ],
)
def test_another_object_has_another_name(url: str, etag: str, endpoint: str) -> None:
    assert key_of(url, etag, endpoint) != key_of("https://host/x?part=3", "1")


SPANS = st.tuples(st.integers(0, 30), st.integers(1, 10))


@given(st.lists(SPANS, max_size=6), st.integers(0, 30), st.integers(1, 20))
def test_a_range_is_covered_by_pieces_and_gaps(
    spans: list[tuple[int, int]], start: int, length: int
) -> None:
    pieces = [Piece("k", begin, begin + size, 50) for begin, size in spans]
    at, stop = start, start + length
    while at < stop:
        piece = piece_at(pieces, at)
        if piece is None:
            end = end_of_gap(pieces, at, stop)
            assert not any(one.begin <= byte < one.end for one in pieces for byte in range(at, end))
        else:
            assert piece.begin <= at < piece.end
            end = min(stop, piece.end)
        assert end > at
        at = end
    assert at == stop


SMALL_PIECE = Piece("k", 10, 14, 100)


def test_a_copy_is_kept_until_it_is_removed() -> None:
    times = iter([1.0, 2.0])
    shelf = ProcessMemory(100, lambda: next(times))
    data = bytearray(b"1234")
    shelf.save(SMALL_PIECE, memoryview(data))
    data[:] = b"xxxx"
    assert shelf.entries() == [ShelvedPiece(SMALL_PIECE, 1.0)]
    assert shelf.free() == 96
    view = memoryview(bytearray(4))
    assert shelf.load(SMALL_PIECE, view)
    assert bytes(view) == b"1234"
    assert shelf.entries() == [ShelvedPiece(SMALL_PIECE, 2.0)]
    assert shelf.pieces("k", 0, 11) == shelf.pieces("k", 13, 20) == [SMALL_PIECE]
    assert shelf.pieces("k", 0, 10) == shelf.pieces("k", 14, 20) == shelf.pieces("l", 0, 20) == []
    shelf.remove(SMALL_PIECE)
    shelf.remove(SMALL_PIECE)
    assert not shelf.load(SMALL_PIECE, view)
    assert shelf.entries() == []


pytestmark = pytest.mark.both_kernels

KEY = "0123456789abcdef" * 2
DATA = bytes(range(256)) * 4
PIECE = Piece(KEY, 512, 512 + len(DATA), 5000, "gzip")


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    made = CacheFolder(tmp_path / "above" / "cache")
    made.save(PIECE, memoryview(DATA))
    return made


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def load(folder: CacheFolder, piece: Piece) -> bytes | None:
    view = memoryview(bytearray(piece.nbytes))
    return bytes(view) if folder.load(piece, view) else None


def test_what_is_kept_is_found(folder: CacheFolder, tmp_path: Path) -> None:
    assert load(folder, PIECE) == DATA
    assert [entry.piece for entry in folder.entries()] == [PIECE]
    assert oct((tmp_path / "above" / "cache").stat().st_mode)[-3:] == "700"
    assert oct(files(tmp_path)[0].stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize(
    ("start", "stop", "found"),
    [(0, 512, False), (0, 513, True), (600, 700, True), (1535, 9999, True), (1536, 9999, False)],
)
def test_pieces_of_a_range(folder: CacheFolder, start: int, stop: int, found: bool) -> None:
    assert folder.pieces(KEY, start, stop) == [PIECE] * found
    assert folder.pieces(KEY[::-1], start, stop) == []


def test_a_range_over_several_regions(folder: CacheFolder) -> None:
    far = Piece(KEY, REGION, REGION + 4, 2 * REGION)
    folder.save(far, memoryview(b"1234"))
    assert sorted(folder.pieces(KEY, 0, REGION + 1)) == [PIECE, far]
    assert folder.pieces(KEY, REGION, REGION + 1) == [far]


@given(data=st.data())
def test_no_damage_gives_a_wrong_byte(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("damage")
    folder = CacheFolder(root)
    folder.save(PIECE, memoryview(DATA))
    (file,) = files(root)
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    file.write_bytes(content)
    assert load(folder, PIECE) is None
    assert not file.exists()


def test_a_file_that_is_too_long_or_of_another_name_is_damaged(
    folder: CacheFolder, tmp_path: Path
) -> None:
    (file,) = files(tmp_path)
    content = file.read_bytes()
    assert len(content) == len(DATA) + FOOTER
    file.write_bytes(content + b"x")
    assert load(folder, PIECE) is None
    other = PIECE._replace(size=5001)
    folder.save(other, memoryview(DATA))
    (name,) = files(tmp_path)
    name.write_bytes(content)
    assert load(folder, other) is None


def test_missing_pieces_are_misses(folder: CacheFolder) -> None:
    folder.remove(PIECE)
    folder.remove(PIECE)
    assert load(folder, PIECE) is None
    assert folder.entries() == []
    folder.save(PIECE, memoryview(DATA))
    assert load(folder, PIECE) == DATA


def test_reading_sets_the_time_of_use(folder: CacheFolder, tmp_path: Path) -> None:
    (file,) = files(tmp_path)
    os.utime(file, (1000, 1000))
    assert [entry.used_at for entry in folder.entries()] == [1000]
    load(folder, PIECE)
    assert folder.entries()[0].used_at > 1000


def test_what_a_killed_writer_left_goes_in_time(folder: CacheFolder, tmp_path: Path) -> None:
    (file,) = files(tmp_path)
    part = file.with_name(f".200-600-1388.gzip.{KEY}")
    other = file.with_name("notes.txt")
    part.write_bytes(b"half")
    other.write_bytes(b"not ours")
    assert [entry.piece for entry in folder.entries()] == [PIECE]
    assert part.exists()
    written = part.stat().st_mtime - ABANDONED - 10
    os.utime(part, (written, written))
    folder.entries()
    assert not part.exists()
    assert other.exists()


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = CacheFolder(tmp_path / "file" / "cache")
    with pytest.raises(OSError, match="Not a directory"):
        folder.save(PIECE, memoryview(DATA))
    assert folder.pieces(KEY, 0, 5000) == []
    assert folder.entries() == []
    assert folder.free() > 0


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        CacheFolder(tmp_path).save(PIECE, memoryview(DATA))
    assert files(tmp_path) == []
