from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.flow.shared_memory import PAGE, Allocator, SharedRanges, map_memory
from tests.forked_children import in_forked_child

PAGES = 16
needs_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd_create here")


class TestPlaces:
    @given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * PAGE)), max_size=60))
    def test_what_is_taken_never_overlaps_and_all_comes_back(
        self, steps: list[tuple[bool, int]]
    ) -> None:
        allocator, taken = Allocator(PAGES * PAGE), dict[int, int]()
        owner = [-1] * PAGES
        for takes, size in steps:
            pages = -(-size // PAGE)
            if takes:
                begin = allocator.take(size)
                room = "x" * pages in "".join("x" if one < 0 else "." for one in owner)
                assert (begin is not None) == room
                if begin is not None:
                    span = slice(begin // PAGE, begin // PAGE + pages)
                    assert owner[span] == [-1] * pages, "free, and within"
                    assert "x" * pages not in "".join(
                        "x" if one < 0 else "." for one in owner[: span.stop - 1]
                    ), "the lowest"
                    owner[span] = [begin] * pages
                    taken[begin] = pages
            elif taken:
                begin = sorted(taken)[size % len(taken)]
                allocator.free(begin)
                del taken[begin]
                owner = [-1 if one == begin else one for one in owner]
        for begin in taken:
            allocator.free(begin)
        assert allocator.take(PAGES * PAGE) == 0

    def test_its_repr(self) -> None:
        allocator = Allocator(PAGES * PAGE)
        assert allocator.take(PAGE + 1) == 0
        assert repr(allocator) == f"<Allocator 1 taken, {14 * PAGE} bytes free>"

    def test_no_memory(self) -> None:
        assert Allocator(0).take(1) is None


def nothing(_: object) -> None:
    pass


@needs_memory
class TestSharedRanges:
    def test_pieces_are_found_by_their_address(self) -> None:
        memory = SharedRanges(PAGES * PAGE, nothing)
        first, second = memory.allocate(PAGE + 1), memory.allocate(9)
        assert first is not None
        assert second is not None
        assert memory.place_of(first.data[1:2]) == 1
        assert memory.place_of(second.data[3:]) == 2 * PAGE + 3
        assert memory.place_of(memoryview(bytearray(9))) is None
        memory.close()

    def test_another_mapping_sees_what_is_written(self) -> None:
        memory = SharedRanges(PAGES * PAGE, nothing)
        other = map_memory(memory.fd, 0)
        piece = memory.allocate(5)
        assert piece is not None
        place = memory.place_of(piece.data)
        assert place is not None
        other[place : place + 5] = np.frombuffer(b"hello", np.uint8)
        assert bytes(piece) == b"hello"
        memory.close()

    def test_a_piece_that_nobody_views_is_given_back_with_its_pages(self) -> None:
        memory = SharedRanges(PAGES * PAGE, nothing)
        piece = memory.allocate(PAGES * PAGE)
        assert piece is not None
        piece[:] = 1
        view = piece[5:9]
        del piece
        assert memory.allocate(1) is None
        assert os.fstat(memory.fd).st_blocks * 512 == PAGES * PAGE
        del view
        assert os.fstat(memory.fd).st_blocks == 0
        again = memory.allocate(PAGES * PAGE)
        assert again is not None
        assert not again.any()
        memory.close()

    def test_a_fork_leaves_the_pages_to_its_parent(self) -> None:
        memory = SharedRanges(PAGES * PAGE, nothing)
        pieces = [memory.allocate(PAGE)]
        assert pieces[0] is not None
        pieces[0][:] = 7
        in_forked_child(pieces.clear)
        assert set(pieces[0].tolist()) == {7}
        memory.close()

    def test_it_is_closed_once_and_pieces_stay(self) -> None:
        closed: list[SharedRanges] = []
        memory = SharedRanges(PAGES * PAGE, closed.append)
        piece = memory.allocate(3)
        assert piece is not None
        fd = memory.fd
        memory.close()
        memory.close()
        assert closed == [memory]
        assert memory.allocate(1) is None
        piece[:] = 5
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)

    def test_its_repr(self) -> None:
        memory = SharedRanges(PAGES * PAGE, nothing)
        taken = memory.allocate(1)
        assert repr(memory) == f"<SharedRanges <Allocator 1 taken, {15 * PAGE} bytes free>>"
        del taken
        memory.close()

    def test_where_there_is_no_such_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "memfd_create")
        with pytest.raises(OSError, match="no memory that processes can share"):
            SharedRanges(PAGE, nothing)
