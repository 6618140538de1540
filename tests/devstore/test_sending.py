from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING

import aiohttp
import pytest

from streamrec.devstore import DevStore, FaultRule
from streamrec.devstore.objects import DirectoryObjects
from streamrec.devstore.sending import RequestRecord, RequestStatistics
from streamrec.flow.bridge import new_event_loop
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def record(method: str = "GET", kind: str = "GetObject") -> RequestRecord:
    return RequestRecord(method, "/b/k", {"x": "y"}, "bytes=0-1", None, "query", kind=kind)


def test_requests_are_counted_by_kind_and_status() -> None:
    statistics = RequestStatistics()
    for one, size in ((record(), 5), (record(), 6), (record("PUT", "PutObject"), 0)):
        statistics.arrive(one)
        statistics.answer(one, 200)
        statistics.send(one, size)
        statistics.leave()
    assert statistics.requests == 3
    assert statistics.bytes_sent == 11
    assert statistics.by_kind == {"GetObject": 2, "PutObject": 1}
    assert statistics.by_status == {200: 3}
    assert statistics.by_kind["HeadObject"] == 0


def test_a_record_grows_with_its_request() -> None:
    statistics = RequestStatistics()
    one = record()
    statistics.arrive(one)
    assert list(statistics.records) == [one]
    statistics.answer(one, 206)
    statistics.send(one, 2)
    statistics.send(one, 3)
    assert (one.status, one.sent) == (206, 5)
    assert statistics.bytes_sent == 5


def test_the_peak_of_requests_in_flight() -> None:
    statistics = RequestStatistics()
    statistics.arrive(record())
    statistics.arrive(record())
    statistics.leave()
    statistics.arrive(record())
    assert (statistics.in_flight, statistics.peak_in_flight) == (2, 2)


def test_clear_keeps_what_is_in_flight() -> None:
    statistics = RequestStatistics()
    statistics.arrive(record())
    statistics.arrive(record())
    statistics.leave()
    statistics.clear()
    assert statistics == RequestStatistics(in_flight=1, peak_in_flight=1)


def test_plain_data() -> None:
    statistics = RequestStatistics()
    one = record()
    statistics.arrive(one)
    statistics.answer(one, 206)
    assert "records" not in statistics.to_dict()
    plain = json.loads(json.dumps(statistics.to_dict(records=True)))
    assert plain["by_status"] == {"206": 1}
    assert plain["records"][0]["range"] == "bytes=0-1"
    assert plain["records"][0]["signed"] == "query"


SIZE = 3_000_000
DATA = bytes(range(256)) * (SIZE // 256 + 1)


async def read(store: DevStore, headers: dict[str, str] | None = None) -> tuple[bytes, str]:
    """Return the bytes that arrive of ``b/k``, and the name of the error that ends them, if any."""
    got = bytearray()
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(store.url("b/k"), headers=headers) as answer:
                async for piece in answer.content.iter_any():
                    got += piece
        except (aiohttp.ClientError, OSError) as error:
            return bytes(got), type(error).__name__
    return bytes(got), ""


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a runner for each of the two event loops."""

    def runner(test: Callable[..., object]) -> None:
        factory = new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(test())  # type: ignore[arg-type]

    return runner


def test_large_bodies_arrive_whole(run: Callable[..., None]) -> None:
    async def test() -> None:
        async with DevStore(anonymous=True) as store:
            store.put("b/k", DATA)
            assert await read(store) == (DATA, "")
            headers = {"Range": "bytes=1000-2499999"}
            assert await read(store, headers) == (DATA[1000:2_500_000], "")

    run(test)


def test_many_ranges_at_once(run: Callable[..., None]) -> None:
    async def test() -> None:
        async with DevStore(anonymous=True) as store:
            store.put("b/k", DATA)
            spans = [(n * 10_000, n * 10_000 + 200_000) for n in range(50)]
            got = await asyncio.gather(
                *(read(store, {"Range": f"bytes={a}-{b - 1}"}) for a, b in spans)
            )
            assert got == [(DATA[a:b], "") for a, b in spans]

    run(test)


@pytest.mark.parametrize("place", [0, 1, 70_000, 2_000_000])
def test_a_body_is_cut_short_in_good_order(run: Callable[..., None], place: int) -> None:
    async def test() -> None:
        async with DevStore(anonymous=True, faults=[FaultRule(truncate_after=place)]) as store:
            store.put("b/k", DATA)
            assert await read(store) == (DATA[:place], "ClientPayloadError")
            assert store.statistics.bytes_sent == place

    run(test)


@pytest.mark.parametrize("place", [0, 1, 70_000, 2_000_000])
def test_a_connection_is_reset(run: Callable[..., None], place: int) -> None:
    async def test() -> None:
        async with DevStore(anonymous=True, faults=[FaultRule(reset_after=place)]) as store:
            store.put("b/k", DATA)
            got, error = await read(store)
            assert DATA.startswith(got)
            assert len(got) <= place
            assert error in ("ClientPayloadError", "ClientOSError", "ConnectionResetError")

    run(test)


def test_a_reset_is_one(run: Callable[..., None]) -> None:
    """Seen on a bare socket: the bytes before it arrive, then RST, not the end of the stream."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with DevStore(anonymous=True, faults=[FaultRule(reset_after=5)]) as store:
            store.put("b/k", b"0123456789")
            with socket.create_connection(("127.0.0.1", int(store.endpoint.split(":")[2]))) as raw:
                raw.setblocking(False)
                await loop.sock_sendall(raw, b"GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n")
                got = bytearray()

                async def receive() -> None:
                    while piece := await loop.sock_recv(raw, 4096):
                        got.extend(piece)

                with pytest.raises(ConnectionResetError):
                    await receive()
            assert got.endswith(b"\r\n\r\n01234")

    run(test)


def test_a_request_is_refused_before_any_answer(run: Callable[..., None]) -> None:
    async def test() -> None:
        async with DevStore(anonymous=True, faults=[FaultRule(refuse=True)]) as store:
            store.put("b/k", DATA)
            got, error = await read(store)
            assert not got
            assert error in ("ClientOSError", "ServerDisconnectedError", "ConnectionResetError")
            assert store.statistics.by_status == {0: store.statistics.requests}

    run(test)


def test_a_refused_write_is_not_done(run: Callable[..., None]) -> None:
    async def test() -> None:
        async with DevStore(anonymous=True, faults=[FaultRule(refuse=True)]) as store:
            store.objects.create_bucket("b")
            async with aiohttp.ClientSession() as session:
                with pytest.raises((aiohttp.ClientError, ConnectionError)):
                    await session.put(store.url("b/k"), data=b"x")
            assert not store.objects

    run(test)


def test_a_body_stalls(run: Callable[..., None]) -> None:
    async def test() -> None:
        stalled, go = asyncio.Event(), asyncio.Event()

        async def sleep(seconds: float) -> None:
            assert seconds == 30
            stalled.set()
            await go.wait()

        fault = FaultRule(stall_after=100_000, stall=30)
        async with DevStore(anonymous=True, faults=[fault], sleep=sleep) as store:
            store.put("b/k", DATA)
            async with aiohttp.ClientSession() as session, session.get(store.url("b/k")) as answer:
                first = await answer.content.readexactly(100_000)
                await stalled.wait()
                go.set()
                assert first + await answer.read() == DATA

    run(test)


@asynchronous
async def test_a_client_that_leaves_ends_its_stall() -> None:
    stalled = asyncio.Event()
    ended = asyncio.Event()

    async def sleep(_: float) -> None:
        stalled.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with DevStore(anonymous=True, faults=[FaultRule(stall_after=0)], sleep=sleep) as store:
        store.put("b/k", DATA)
        async with aiohttp.ClientSession() as session, session.get(store.url("b/k")) as answer:
            await stalled.wait()
            answer.close()
        await ended.wait()


@pytest.mark.parametrize(
    ("asked", "changed"),
    [(None, 1_500_000), ("bytes=1500000-", 0), ("bytes=1499990-1500009", 10), ("bytes=0-99", None)],
)
@asynchronous
async def test_a_byte_of_the_object_is_flipped_in_every_range(
    asked: str | None, changed: int | None
) -> None:
    async with DevStore(anonymous=True, faults=[FaultRule(flip_object_at=1_500_000)]) as store:
        store.put("b/k", DATA)
        headers = {} if asked is None else {"Range": asked}
        got, _ = await read(store, headers)
        start = 0 if asked is None else int(asked[6:].split("-")[0])
        original = DATA[start : start + len(got)]
        found = [n for n, pair in enumerate(zip(got, original, strict=True)) if pair[0] != pair[1]]
        assert found == ([] if changed is None else [changed])


@asynchronous
async def test_errors_arrive_whole() -> None:
    fault = FaultRule(truncate_after=1, reset_after=1, flip_object_at=0, stall_after=0, stall=0)
    async with DevStore(anonymous=True, faults=[fault]) as store:
        got, error = await read(store)
        assert got.startswith(b"<?xml")
        assert (got.endswith(b"</Error>"), error) == (True, "")


@asynchronous
async def test_an_answer_without_body_is_not_cut_short() -> None:
    async with DevStore(anonymous=True, faults=[FaultRule(truncate_after=0)]) as store:
        store.put("b/k", DATA)
        async with aiohttp.ClientSession() as session, session.head(store.url("b/k")) as answer:
            assert (answer.status, answer.headers["Content-Length"]) == (200, str(len(DATA)))


@asynchronous
async def test_a_file_that_shrinks_while_it_is_sent_breaks_the_connection(tmp_path: Path) -> None:
    async def sleep(_: float) -> None:
        (tmp_path / "b/k").write_bytes(b"short")

    (tmp_path / "b").mkdir()
    (tmp_path / "b/k").write_bytes(DATA)
    objects, fault = DirectoryObjects(tmp_path), FaultRule(stall_after=1_000_000)
    async with DevStore(objects=objects, anonymous=True, faults=[fault], sleep=sleep) as store:
        got, error = await read(store)
        assert len(got) <= 1_000_000
        assert error
