"""The uploads in parts, of any store: what is held, what is sent, and what is given up."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.stores.base import new_object
from streamrec.stores.base.new_object import LAG, PartUpload, SpooledObject, UploadSession

if TYPE_CHECKING:
    from collections.abc import Iterator


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Recorded(UploadSession):
    """A store that keeps parts, and sends one only when it is let."""

    def __init__(self, at_once: int = 2) -> None:
        self.at_once = at_once
        self.loop = asyncio.new_event_loop()
        self.parts: dict[int, bytes] = {}
        self.object: bytes | None = None
        self.sending = self.most = self.aborted = 0
        self.fails_at: int | None = None
        self.begun: datetime | None = NOW
        self.loses_the_answer, self.more = False, 0
        self.held = False
        self.barrier = asyncio.Barrier(1)
        """Lets parts arrive when so many are being sent."""
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def put_whole(self, data: Any) -> None:
        self.object = bytes(data)

    async def put_part(self, number: int, data: Any) -> None:
        self.sending += 1
        self.most = max(self.most, self.sending)
        try:
            await asyncio.sleep(3600 if self.held else 0)
            await self.barrier.wait()
            if number == self.fails_at:
                raise OSError("no more")
            self.parts[number] = bytes(data)
        finally:
            self.sending -= 1

    async def complete(self, rest: Any) -> None:
        assert not self.sending
        assert not rest or self.at_once == 1
        if rest:
            self.parts[len(self.parts)] = bytes(rest)
        assert sorted(self.parts) == list(range(len(self.parts)))
        self.object = b"".join(self.parts[n] for n in sorted(self.parts))
        if self.loses_the_answer:
            raise OSError("the answer is lost")

    async def look_up(self) -> tuple[int, datetime]:
        if self.object is None:
            raise OSError("no object")
        return len(self.object) + self.more, NOW

    async def abort(self) -> None:
        assert not self.sending
        self.aborted += 1


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_object, "PART", 10)
    monkeypatch.setattr(new_object, "GROWTH", 4)


@pytest.fixture
def session() -> Iterator[Recorded]:
    session = Recorded()
    yield session
    session.stop()


@given(writes=st.lists(st.binary(max_size=45), max_size=8), at_once=st.integers(1, 3))
def test_what_is_written_is_the_object(writes: list[bytes], at_once: int) -> None:
    session = Recorded(at_once)
    try:
        upload = PartUpload(session)
        assert [upload.write(data) for data in writes] == list(map(len, writes))
        assert session.object is None
        upload.commit()
        upload.discard()
    finally:
        session.stop()
    assert session.object == b"".join(writes)
    assert session.most <= at_once
    assert session.aborted == 0


def test_parts_grow(session: Recorded) -> None:
    upload = PartUpload(session)
    upload.write(bytes(10 * 4 + 20 * 4 + 40 + 1))
    upload.commit()
    assert [len(session.parts[n]) for n in sorted(session.parts)] == [10] * 4 + [20] * 4 + [40, 1]


def test_the_last_part_is_sent_beside_the_others(session: Recorded) -> None:
    session.barrier = asyncio.Barrier(2)
    upload = PartUpload(session)
    upload.write(bytes(11))
    upload.commit()
    assert session.object == bytes(11)


def test_a_part_that_fails_is_told_and_all_is_given_up(session: Recorded) -> None:
    session.fails_at = 1
    upload = PartUpload(session)
    with pytest.raises(OSError, match="no more"):
        upload.write(bytes(100))
    upload.discard()
    upload.discard()
    assert (session.object, session.aborted) == (None, 1)


@pytest.mark.parametrize(
    ("begun", "more", "is_it"),
    [
        (NOW, 0, True),
        (NOW + LAG, 0, True),
        (NOW + 2 * LAG, 0, False),
        (None, 0, False),
        (NOW, 1, False),
    ],
    ids=["whole", "noted before", "older", "no time", "another"],
)
def test_where_the_last_answer_is_lost_the_object_is_looked_up(
    session: Recorded, begun: datetime | None, more: int, is_it: bool
) -> None:
    session.loses_the_answer, session.begun, session.more = True, begun, more
    upload = PartUpload(session)
    upload.write(bytes(25))
    with nullcontext() if is_it else pytest.raises(OSError, match="lost"):
        upload.commit()


def test_what_is_being_sent_is_cancelled(session: Recorded) -> None:
    session.held = True
    upload = PartUpload(session)
    upload.write(bytes(20))
    upload.discard()
    assert (session.object, session.aborted, session.parts) == (None, 1, {})


def test_a_spooled_object_is_sent_from_its_beginning() -> None:
    """Also where ``/dev/fd`` shares the position, as it does outside of Linux."""
    positions: list[int] = []

    def upload(path: str) -> None:
        positions.append(os.lseek(int(path.rpartition("/")[2]), 0, os.SEEK_CUR))
        assert Path(path).read_bytes() == b"all of it"

    spooled = SpooledObject("memory://bucket/object", upload)
    spooled.write(b"all of it")
    spooled.commit()
    spooled.discard()
    assert positions == [0]
