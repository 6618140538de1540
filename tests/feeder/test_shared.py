from __future__ import annotations

import gc
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import RemoteProtocolError
from streamrec.feeder.shared import PAGE, Inbox, Outbox, Places, created
from streamrec.wire import BatchMessage, Shared

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = 16
needs_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd_create here")


@pytest.fixture
def ends() -> Iterator[tuple[Outbox, Inbox]]:
    with created(PAGES * PAGE) as fd:
        assert fd is not None
        yield Outbox(fd), Inbox(fd)


def message(*payload: bytes) -> BatchMessage:
    return BatchMessage(b"what it is", tuple(map(memoryview, payload)))


def put(outbox: Outbox, size: int) -> Shared:
    shared = outbox.put(message(bytes(size)))
    assert isinstance(shared, Shared)
    return shared


class TestPlaces:
    @given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * PAGE)), max_size=60))
    def test_what_is_taken_never_overlaps_and_all_comes_back(
        self, steps: list[tuple[bool, int]]
    ) -> None:
        places, taken = Places(PAGES * PAGE), dict[int, int]()
        owner = [-1] * PAGES
        for takes, size in steps:
            pages = -(-size // PAGE)
            if takes:
                begin = places.take(size)
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
                places.free(begin)
                del taken[begin]
                owner = [-1 if one == begin else one for one in owner]
        for begin in taken:
            places.free(begin)
        assert places.take(PAGES * PAGE) == 0

    def test_what_is_not_taken_is_not_freed(self) -> None:
        places = Places(PAGES * PAGE)
        assert places.take(PAGE + 1) == 0
        assert repr(places) == f"<Places 1 taken, {14 * PAGE} bytes free>"
        for begin in (1, PAGE, 2 * PAGE):
            with pytest.raises(RemoteProtocolError, match=f"nothing is shared at {begin}"):
                places.free(begin)
        places.free(0)
        with pytest.raises(RemoteProtocolError):
            places.free(0)

    def test_no_memory(self) -> None:
        assert Places(0).take(1) is None


@needs_memory
def test_a_payload_arrives_and_is_freed_with_its_last_view(ends: tuple[Outbox, Inbox]) -> None:
    outbox, inbox = ends
    shared = outbox.put(message(b"abc", b"", b"defg"))
    assert shared == Shared(b"what it is", 0, 7)
    view = inbox.view(shared.offset, shared.size)
    assert bytes(view) == b"abcdefg"
    array = np.frombuffer(view, np.uint8)[3:]
    array[0] = ord("D")
    del view, shared
    gc.collect()
    assert inbox.freed() == ()
    assert array.tobytes() == b"Defg"
    del array
    gc.collect()
    assert inbox.freed() == (0,)
    assert inbox.freed() == ()


@needs_memory
def test_places_are_used_again_once_they_are_released(ends: tuple[Outbox, Inbox]) -> None:
    outbox, _ = ends
    assert [put(outbox, 5 * PAGE).offset for _ in range(3)] == [0, 5 * PAGE, 10 * PAGE]
    large = message(bytes(2 * PAGE))
    assert outbox.put(large) is large, "what does not fit travels itself"
    outbox.free([5 * PAGE])
    assert put(outbox, 2 * PAGE).offset == 5 * PAGE
    empty = message()
    assert outbox.put(empty) is empty


@needs_memory
@pytest.mark.parametrize(
    ("offset", "size"), [(1, 1), (0, PAGES * PAGE + 1), (PAGES * PAGE, 1), (1 << 63, PAGE)]
)
def test_what_lies_outside_is_refused(ends: tuple[Outbox, Inbox], offset: int, size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="are not in a shared memory of 65536"):
        ends[1].view(offset, size)


def test_a_system_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with ExitStack() as stack:
        assert stack.enter_context(created(PAGE)) is None
