from __future__ import annotations

import asyncio
from collections import deque

import pytest

from streamrec.errors import AccessDenied, StoreUnavailable
from streamrec.flow import retry
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.base.read_range import RETRIES, SILENCE, read_range
from tests.pipeline import scripted_store
from tests.pipeline.scripted_store import Body, ScriptedStore
from tests.pipeline.simulated_store import simulated
from tests.support import asynchronous

DATA = bytes(range(100))
GONE = StoreUnavailable("gone")


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(backoff: retry.Backoff, *_: object) -> float:
        backoff.attempt += 1
        return 0.0

    monkeypatch.setattr(retry.Backoff, "next", at_once)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 100), (7, 50), (90, 1000), (0, 0), (100, 200), (500, 600)]
)
@asynchronous
async def test_a_range_is_clipped_to_the_end(start: int, stop: int) -> None:
    store = ScriptedStore({"o": DATA}, piece=9)
    data, info = await read_range(store, ObjectInfo("o"), start, stop)
    assert data.tobytes() == DATA[start:stop]
    assert info.size == len(DATA)
    assert len(store.asked) == 1


@asynchronous
async def test_it_goes_on_at_the_last_byte_of_the_same_version() -> None:
    store = ScriptedStore({"o": DATA}, piece=9, faults=deque([GONE, (20, GONE), GONE]))
    data, _ = await read_range(store, ObjectInfo("o"), 10, 90)
    assert data.tobytes() == DATA[10:90]
    assert store.asked == [
        *[("o", 10, 90, None)] * 2,
        *[("o", 30, 90, '"v1"')] * 2,
    ]


@asynchronous
async def test_bytes_start_the_count_of_failures_anew() -> None:
    store = ScriptedStore({"o": DATA}, faults=deque([(1, GONE)] * 50))
    data, _ = await read_range(store, ObjectInfo("o"), 0, 100)
    assert data.tobytes() == DATA


@asynchronous
async def test_it_is_given_up_in_the_end() -> None:
    store = ScriptedStore({"o": DATA}, faults=deque([(20, GONE), *[GONE] * 99]))
    with pytest.raises(StoreUnavailable) as caught:
        await read_range(store, ObjectInfo("o"), 10, 90)
    assert caught.value.offset == 30
    assert len(store.asked) == 1 + RETRIES


class SilentBody(Body):
    """A body that is silent for ever once its first bytes have come."""

    async def readinto(self, view: memoryview) -> int:
        if len(self.data) < len(DATA):
            await asyncio.Event().wait()
        return await super().readinto(view)


@simulated
async def test_a_body_that_is_silent_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScriptedStore({"o": DATA}, piece=40)
    with monkeypatch.context() as patch:
        patch.setattr(scripted_store, "Body", SilentBody)
        with pytest.raises(StoreUnavailable, match="sent nothing for too long"):
            await read_range(store, ObjectInfo("o"), 0, 100, retries=0)
    assert asyncio.get_running_loop().time() == pytest.approx(SILENCE)
    data, _ = await read_range(store, ObjectInfo("o"), 0, 100)
    assert data.tobytes() == DATA


@asynchronous
async def test_what_will_not_pass_is_not_repeated() -> None:
    store = ScriptedStore({"o": DATA}, faults=deque([AccessDenied("no")]))
    with pytest.raises(AccessDenied):
        await read_range(store, ObjectInfo("o"), 0, 10)
    assert len(store.asked) == 1
