from __future__ import annotations

from streamrec.stores.cache.pieces import Piece, ShelvedPiece
from streamrec.stores.cache.process_memory import ProcessMemory

PIECE = Piece("k", 10, 14, 100)


def test_a_copy_is_kept_until_it_is_removed() -> None:
    times = iter([1.0, 2.0])
    shelf = ProcessMemory(100, lambda: next(times))
    data = bytearray(b"1234")
    shelf.save(PIECE, memoryview(data))
    data[:] = b"xxxx"
    assert shelf.entries() == [ShelvedPiece(PIECE, 1.0)]
    assert shelf.free() == 96
    view = memoryview(bytearray(4))
    assert shelf.load(PIECE, view)
    assert bytes(view) == b"1234"
    assert shelf.entries() == [ShelvedPiece(PIECE, 2.0)]
    assert shelf.pieces("k", 0, 11) == shelf.pieces("k", 13, 20) == [PIECE]
    assert shelf.pieces("k", 0, 10) == shelf.pieces("k", 14, 20) == shelf.pieces("l", 0, 20) == []
    shelf.remove(PIECE)
    shelf.remove(PIECE)
    assert not shelf.load(PIECE, view)
    assert shelf.entries() == []
