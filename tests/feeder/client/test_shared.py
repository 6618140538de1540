from __future__ import annotations

import fcntl
import gc
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import Queue
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import RemoteProtocolError
from streamrec.feeder.client.shared import (
    FEW,
    SHARE,
    Inbox,
    Outbox,
    Outboxes,
    create_memory,
)
from streamrec.flow.shared_memory import PAGE
from streamrec.pipeline.batch import payload
from streamrec.wire.frame import ALIGNMENT
from streamrec.wire.messages import BatchMessage, Shared
from tests.feeder.fake_dataset import decoded
from tests.feeder.support import is_open, shared_mappings, unsealed
from tests.pipeline.batch.test_payload import arrays_of, batches, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.values.columns import ByteArray

PAGES = 16
needs_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd_create here")


@pytest.fixture
def ends() -> Iterator[tuple[Outbox, Inbox]]:
    with create_memory(PAGES * PAGE) as fd:
        assert fd is not None
        yield Outbox(fd, PAGES * PAGE), Inbox(fd)


def message(*payload: bytes | memoryview) -> BatchMessage:
    return BatchMessage(b"what it is", tuple(map(memoryview, payload)))


def put(outbox: Outbox, size: int) -> Shared:
    shared = outbox.put(message(bytes(size)))
    assert isinstance(shared, Shared)
    return shared


def arrived(inbox: Inbox, shared: Shared | BatchMessage) -> list[bytes]:
    assert isinstance(shared, Shared)
    places = zip(shared.offsets, shared.sizes, strict=True)
    return [bytes(inbox.view(*place)) for place in places]


def lent(outbox: Outbox, content: bytes) -> ByteArray:
    array = outbox.allocate(len(content))
    array[:] = np.frombuffer(content, np.uint8)
    return array


@needs_memory
class TestCopied:
    def test_a_payload_arrives_and_is_freed_with_its_last_view(
        self, ends: tuple[Outbox, Inbox]
    ) -> None:
        outbox, inbox = ends
        shared = outbox.put(message(b"abc", b"", b"defg"))
        assert shared == Shared(b"what it is", (0,), (7,))
        assert shared.size == 7
        view = inbox.view(0, 7)
        assert bytes(view) == b"abcdefg"
        array = np.frombuffer(view, np.uint8)[3:]
        array[0] = ord("D")
        del view
        gc.collect()
        assert inbox.take_freed() == ()
        assert array.tobytes() == b"Defg"
        del array
        gc.collect()
        assert inbox.take_freed() == (0,)
        assert inbox.take_freed() == ()

    def test_places_are_used_again_once_they_are_released(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, _ = ends
        assert [put(outbox, 5 * PAGE).offsets for _ in range(3)] == [
            (0,),
            (5 * PAGE,),
            (10 * PAGE,),
        ]
        large = message(bytes(2 * PAGE))
        assert outbox.put(large) is large, "what does not fit travels itself"
        outbox.free([5 * PAGE])
        assert put(outbox, 2 * PAGE).offsets == (5 * PAGE,)
        empty = message()
        assert outbox.put(empty) is empty

    def test_what_was_not_sent_is_not_freed(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, _ = ends
        place = outbox.allocate(2 * PAGE)
        assert put(outbox, 1).offsets == (2 * PAGE,)
        for begin in (0, 1, PAGE, 3 * PAGE):
            with pytest.raises(RemoteProtocolError, match=f"nothing is shared at {begin}"):
                outbox.free([begin])
        outbox.free([2 * PAGE])
        with pytest.raises(RemoteProtocolError):
            outbox.free([2 * PAGE])
        assert len(place) == 2 * PAGE


@needs_memory
class TestInPlace:
    def test_what_fills_its_place_stays_there(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, inbox = ends
        first, second = lent(outbox, b"a" * 100), lent(outbox, b"b" * 64)
        shared = outbox.put(message(first.data, bytes(28), second.data))
        assert shared == Shared(b"what it is", (0, PAGE), (100, 64)), "without the padding"
        first[0] = ord("A")
        assert arrived(inbox, shared) == [b"A" + b"a" * 99, b"b" * 64], "nothing was copied"

    def test_what_lies_between_is_copied(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, inbox = ends
        large = lent(outbox, b"x" * 70)
        payload = (b"ab", bytes(62), large.data, bytes(58), b"c" * 64, b"d")
        shared = outbox.put(message(*payload))
        assert isinstance(shared, Shared)
        assert shared.offsets == (PAGE, 0, 2 * PAGE)
        assert arrived(inbox, shared) == [b"ab" + bytes(62), b"x" * 70, b"c" * 64 + b"d"]

    @pytest.mark.parametrize("more", [0, 1])
    def test_little_and_much_is_copied_alike(self, more: int) -> None:
        pieces = b"a" * (FEW - 7), b"b" * (7 + more)
        with create_memory(4 * FEW) as fd:
            assert fd is not None
            outbox, inbox = Outbox(fd, 4 * FEW), Inbox(fd)
        assert arrived(inbox, outbox.put(message(*pieces))) == [b"".join(pieces)]

    def test_it_is_free_once_both_sides_are_done(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, _ = ends
        array = lent(outbox, b"abc")
        shared = outbox.put(message(array.data))
        assert isinstance(shared, Shared)
        del array
        gc.collect()
        assert put(outbox, 1).offsets == (PAGE,), "the other side still refers to it"
        outbox.free([0])
        gc.collect()
        assert put(outbox, 1).offsets == (0,)

    def test_what_is_never_sent_comes_back(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, _ = ends
        array = lent(outbox, b"abc")
        assert put(outbox, 1).offsets == (PAGE,)
        del array
        gc.collect()
        assert put(outbox, 1).offsets == (0,)

    @pytest.mark.parametrize("part", [slice(0, 99), slice(1, 100), slice(64, 100)])
    def test_a_part_is_copied(self, ends: tuple[Outbox, Inbox], part: slice) -> None:
        outbox, inbox = ends
        array = lent(outbox, bytes(range(100)))
        shared = outbox.put(message(array[part].data))
        assert isinstance(shared, Shared)
        assert shared.offsets == (PAGE,)
        assert arrived(inbox, shared) == [bytes(range(100))[part]]

    def test_what_is_sent_twice_is_copied(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, inbox = ends
        array = lent(outbox, bytes(64))
        shared = outbox.put(message(array.data, array.data))
        assert isinstance(shared, Shared)
        assert shared.offsets == (0, PAGE)
        again = outbox.put(message(array.data))
        assert isinstance(again, Shared)
        assert again.offsets == (2 * PAGE,)
        assert arrived(inbox, again) == [bytes(64)]

    def test_full_memory(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, _ = ends
        held = [outbox.allocate(PAGE) for _ in range(PAGES)]
        elsewhere = outbox.allocate(PAGE)
        assert len(elsewhere) == PAGE
        mixed = message(held[0].data, elsewhere.data)
        assert outbox.put(mixed) is mixed
        assert isinstance(outbox.put(message(held[0].data)), Shared), "it was not sent before"

    def test_of_nothing(self, ends: tuple[Outbox, Inbox]) -> None:
        assert len(ends[0].allocate(0)) == 0

    def test_many_threads(self, ends: tuple[Outbox, Inbox]) -> None:
        outbox, _ = ends

        def work(number: int) -> bool:
            array = lent(outbox, bytes([number]) * 2 * PAGE)
            return bool((array == number).all())

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(work, range(200)))
        gc.collect()
        assert put(outbox, PAGES * PAGE).offsets == (0,)

    def test_two_threads_take_places_one_after_the_other(
        self, ends: tuple[Outbox, Inbox], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outbox, _ = ends
        met, take = Queue[str](), outbox._allocator.take
        others: list[Future[ByteArray]] = []
        takers: list[int] = []

        class Noticing:
            """The outbox's lock, which tells when a thread has to wait for it."""

            lock = outbox._lock

            def __enter__(self) -> None:
                if not self.lock.acquire(blocking=False):
                    met.put("waits")
                    self.lock.acquire()

            def __exit__(self, *_: object) -> None:
                self.lock.release()

        def while_another_comes(size: int) -> int | None:
            takers.append(threading.get_ident())
            if len(takers) == 1:
                others.append(threads.submit(outbox.allocate, PAGE))
                assert met.get(timeout=60) == "waits"
            else:
                met.put("takes, too")
            return take(size)

        monkeypatch.setattr(outbox, "_lock", Noticing())
        monkeypatch.setattr(outbox._allocator, "take", while_another_comes)
        with ThreadPoolExecutor(1) as threads:
            first = outbox.allocate(PAGE)
        second = others[0].result()
        assert not np.shares_memory(first, second)


@needs_memory
@given(batches(), st.data())
def test_batches_arrive_wherever_their_arrays_lie(batch: Batch, data: st.DataObject) -> None:
    with create_memory(1 << 20) as fd:
        assert fd is not None
        outbox, inbox = Outbox(fd, 1 << 20), Inbox(fd)
    buffers, size = list[memoryview](), 0
    encoded = payload.encode(batch)
    for buffer in encoded.payload:
        moves = size % ALIGNMENT == 0 and data.draw(st.booleans())
        buffers.append(lent(outbox, bytes(buffer)).data if moves else buffer)
        size += buffer.nbytes
    shared = outbox.put(BatchMessage(encoded.metadata, tuple(buffers)))
    assert isinstance(shared, Shared) == bool(size)
    if isinstance(shared, Shared):
        places = zip(shared.offsets, shared.sizes, strict=True)
        encoded = BatchMessage(shared.metadata, tuple(inbox.view(*place) for place in places))
    got = decoded(encoded)
    assert list(got) == list(batch)
    for name in batch:
        same(got[name], batch[name])
        assert all(array.flags.writeable for array in arrays_of(got[name]))


@needs_memory
@pytest.mark.parametrize(
    ("offset", "size"), [(1, 1), (0, PAGES * PAGE + 1), (PAGES * PAGE, 1), (1 << 63, PAGE)]
)
def test_what_lies_outside_is_refused(ends: tuple[Outbox, Inbox], offset: int, size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="are not in a shared memory of 65536"):
        ends[1].view(offset, size)


def sealed(size: int, *seals: int, flags: int = 0) -> int:
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, size)
    for seal in (fcntl.F_SEAL_SHRINK, *seals):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
    return fd


def shrunk() -> int:
    """Return memory that was large, and is not."""
    fd = unsealed(PAGES * PAGE)
    os.ftruncate(fd, PAGE - 1)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def read_only() -> int:
    writable = sealed(PAGES * PAGE)
    fd = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)
    os.close(writable)
    return fd


def pipe() -> int:
    ours, theirs = os.pipe()
    os.close(theirs)
    return ours


HOSTILE = {
    "unsealed": lambda: unsealed(PAGES * PAGE),
    "sealed against growing alone": lambda: _grown(PAGES * PAGE),
    "shrunk": shrunk,
    "small": lambda: sealed(PAGE - 1),
    "of no size": lambda: sealed(0),
    "sealed against writing": lambda: sealed(PAGES * PAGE, fcntl.F_SEAL_WRITE),
    "read only": read_only,
    "a pipe": pipe,
    "a device": lambda: os.open("/dev/zero", os.O_RDWR),
    "a directory": lambda: os.open("/", os.O_RDONLY),
    "a path": lambda: os.open("/", os.O_PATH),
}


def _grown(size: int) -> int:
    fd = unsealed(size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return fd


@needs_memory
class TestOutboxes:
    def test_no_memory_came(self) -> None:
        with Outboxes(1 << 20).open(None) as outbox:
            assert outbox is None

    def test_each_gets_a_part_of_what_is_free_until_it_leaves(self) -> None:
        outboxes = Outboxes(SHARE * SHARE * PAGE)
        whole = repr(outboxes)
        with ExitStack() as stack:
            for pages in (SHARE, SHARE - 1):
                outbox = stack.enter_context(outboxes.open(sealed(PAGES * PAGE)))
                assert outbox is not None
                assert put(outbox, pages * PAGE).offsets == (0,)
                assert isinstance(outbox.put(message(b"1")), BatchMessage)
        assert repr(outboxes) == whole

    def test_none_is_left(self) -> None:
        with Outboxes(SHARE * PAGE - 1).open(sealed(PAGE)) as outbox:
            assert outbox is None

    def test_all_of_a_small_one(self) -> None:
        with Outboxes(1 << 30).open(sealed(PAGE)) as outbox:
            assert outbox is not None
            assert put(outbox, PAGE).offsets == (0,)

    def test_a_huge_one_takes_no_more_than_others(self) -> None:
        with Outboxes(SHARE * PAGE).open(sealed(1 << 40)) as outbox:
            assert outbox is not None
            assert isinstance(outbox.put(message(bytes(PAGE + 1))), BatchMessage)

    @pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
    def test_what_could_do_harm_is_not_used(self, make: Callable[[], int]) -> None:
        before, fd = shared_mappings(), make()
        outboxes = Outboxes(1 << 30)
        whole = repr(outboxes)
        with outboxes.open(fd) as outbox:
            assert outbox is None
            assert not is_open(fd)
        assert repr(outboxes) == whole
        assert shared_mappings() <= before

    def test_files_that_can_be_cut_are_not_used(self, tmp_path: Path) -> None:
        for directory in (str(tmp_path), "/dev/shm"):
            fd = os.open(directory, os.O_TMPFILE | os.O_RDWR)
            os.truncate(fd, PAGE)
            with Outboxes(1 << 30).open(fd) as outbox:
                assert outbox is None

    def test_huge_pages_that_may_not_be_there_are_not_used(self) -> None:
        try:
            fd = sealed(2 << 20, flags=os.MFD_HUGETLB)
        except OSError:
            pytest.skip("no huge pages here")
        with Outboxes(1 << 30).open(fd) as outbox:
            assert outbox is None

    def test_it_stays_as_it_is(self) -> None:
        with create_memory(PAGE) as fd:
            assert fd is not None
            for size in (0, 2 * PAGE):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, size)

    def test_what_a_client_drops_takes_nothing_from_the_feeder(self) -> None:
        theirs = sealed(PAGES * PAGE)
        with Outboxes(1 << 30).open(os.dup(theirs)) as outbox:
            os.close(theirs)
            assert outbox is not None
            assert put(outbox, PAGES * PAGE).offsets == (0,)

    def test_it_is_unmapped_with_the_last_batch_in_it(self) -> None:
        before = shared_mappings("other")
        with Outboxes(1 << 30).open(sealed(PAGES * PAGE)) as outbox:
            assert outbox is not None
            put(outbox, PAGE)
            kept = outbox.allocate(100)
            assert len(shared_mappings("other") - before) == 1
        assert len(shared_mappings("other") - before) == 1
        assert kept.tobytes() == bytes(100)
        del kept
        assert shared_mappings("other") <= before


def test_a_system_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with ExitStack() as stack:
        assert stack.enter_context(create_memory(PAGE)) is None
