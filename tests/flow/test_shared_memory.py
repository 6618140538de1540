from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamrec.flow.shared_memory import PAGE, Allocator

PAGES = 16


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
