from __future__ import annotations

import asyncio
import heapq
import json
import socket
import types
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import aiohttp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.devstore import DevStore, FaultRule
from streamrec.devstore.objects import DirectoryObjects
from streamrec.devstore.sending import (
    BURST_SECONDS,
    SLACK_SECONDS,
    UNPACED_SLICE,
    Jitter,
    Pace,
    RequestRate,
    RequestRecord,
    RequestStatistics,
    SharedLink,
)
from streamrec.flow.bridge import new_event_loop
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path


def admitted(rate: float, arrivals: list[float]) -> int:
    times = iter(arrivals)
    limit = RequestRate(rate, lambda: next(times))
    return sum(limit.admit() for _ in arrivals)


@given(st.floats(1, 5000), st.floats(1.0, 3.0))
def test_what_is_admitted_is_the_rate(rate: float, excess: float) -> None:
    arrivals = [n / (rate * excess) for n in range(int(10 * rate * excess))]
    most = max(2.0, rate * BURST_SECONDS)
    assert 10 * rate - 2 <= admitted(rate, arrivals) <= 10 * rate + most


def test_a_burst_is_a_tenth_of_a_second() -> None:
    assert admitted(80.0, [5.0] * 50) == 8
    assert admitted(80.0, [5.0] * 50 + [5.125] * 50) == 16
    assert admitted(80.0, [5.0] * 50 + [99.0] * 50) == 16


@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0])
def test_a_slow_store_admits_two_at_once(rate: float) -> None:
    assert admitted(rate, [0.0] * 5) == 2


def draws(deviation: float, seed: int = 0, number: int = 20_000) -> list[float]:
    jitter = Jitter(deviation, seed)
    return [jitter.draw(0.05) for _ in range(number)]


@pytest.mark.parametrize("deviation", [0.1, 0.3, 1.0])
def test_mean_and_deviation_are_as_asked(deviation: float) -> None:
    seconds = draws(deviation)
    assert fmean(seconds) == pytest.approx(0.05, rel=0.02)
    assert stdev(seconds) == pytest.approx(0.05 * deviation, rel=0.05)
    assert min(seconds) > 0


@given(st.floats(0, 100), st.integers())
def test_without_jitter_each_latency_is_the_mean(mean: float, seed: int) -> None:
    assert Jitter(0.0, seed).draw(mean) == mean


def test_latencies_follow_the_seed() -> None:
    assert draws(0.3, seed=1, number=9) == draws(0.3, seed=1, number=9)
    assert draws(0.3, seed=1, number=9) != draws(0.3, seed=2, number=9)


class FakeTime:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


async def send(pace: Pace, size: int) -> list[int]:
    """Send a body in the slices that the pace wants; their sizes."""
    slices = []
    while size:
        slices.append(min(pace.slice, size))
        await pace.wait(slices[-1])
        size -= slices[-1]
    return slices


@given(st.integers(1, 50_000_000), st.floats(1e5, 1e10))
def test_a_body_takes_its_size_over_the_rate(size: int, rate: float) -> None:
    time = FakeTime()
    asyncio.run(send(Pace(rate, time.clock, time.sleep), size))
    assert time.now - 1000.0 == pytest.approx(size / rate, rel=1e-6, abs=1e-6)


def test_slices_begin_small_and_double_to_ten_milliseconds() -> None:
    time = FakeTime()
    slices = asyncio.run(send(Pace(60e6, time.clock, time.sleep), 3_000_000))
    kib = 1024
    assert slices[:6] == [16 * kib, 16 * kib, 32 * kib, 64 * kib, 128 * kib, 256 * kib]
    assert max(slices) == 600_000


def test_a_slow_connection_still_sends_slices_worth_a_write() -> None:
    time = FakeTime()
    assert set(asyncio.run(send(Pace(1000.0, time.clock, time.sleep), 1 << 16))) == {16 << 10}


def test_a_slice_is_never_larger_than_without_a_cap() -> None:
    time = FakeTime()
    assert max(asyncio.run(send(Pace(1e12, time.clock, time.sleep), 1 << 24))) == UNPACED_SLICE


def test_without_a_cap_nothing_waits() -> None:
    time = FakeTime()
    slices = asyncio.run(send(Pace(None, time.clock, time.sleep), 5 << 20))
    assert slices == [UNPACED_SLICE] * 5
    assert not time.naps


def test_a_short_delay_is_caught_up() -> None:
    time = FakeTime()
    pace = Pace(1e6, time.clock, time.sleep)
    time.now += SLACK_SECONDS / 2
    asyncio.run(send(pace, 1_000_000))
    assert time.now == pytest.approx(1001.0)


def test_a_reader_that_stopped_gains_the_slack_only() -> None:
    time = FakeTime()
    pace = Pace(1e6, time.clock, time.sleep)
    time.now += 10
    asyncio.run(send(pace, 1_000_000))
    assert time.now == pytest.approx(1011.0 - SLACK_SECONDS)


@types.coroutine
def nap(seconds: float) -> Generator[float]:
    yield seconds


def ends(link: SharedLink, rate: float | None, bodies: Sequence[tuple[float, int]]) -> list[float]:
    """Send bodies of (start, size) over a link, all at once, and return the times of their ends."""
    now = 0.0
    finished = [0.0] * len(bodies)

    async def body(number: int, size: int) -> None:
        await nap(bodies[number][0])
        await send(Pace(rate, lambda: now, nap, link), size)
        finished[number] = now

    running = [body(number, size) for number, (_, size) in enumerate(bodies)]
    waking = [(0.0, number) for number in range(len(bodies))]
    while waking:
        now, number = heapq.heappop(waking)
        try:
            heapq.heappush(waking, (now + running[number].send(None), number))
        except StopIteration:
            continue
    return finished


@given(st.lists(st.integers(1, 20_000_000), min_size=1, max_size=20), st.floats(1e6, 1e10))
def test_bodies_take_their_sum_over_the_rate_of_their_link(sizes: list[int], rate: float) -> None:
    last = max(ends(SharedLink(rate), None, [(0.0, size) for size in sizes]))
    assert last == pytest.approx(sum(sizes) / rate, rel=1e-6, abs=1e-6)


@given(st.integers(1, 30), st.floats(1e7, 1e9), st.floats(1e7, 1e9))
@example(bodies=14, rate=432_794_000.0, connection=43_279_400.0)
def test_the_smaller_of_both_rates_counts(bodies: int, rate: float, connection: float) -> None:
    size = int(rate / 10)  # so many slices that one of them is less than the error below
    expected = size / min(connection, rate / bodies)
    for end in ends(SharedLink(rate), connection, [(0.0, size)] * bodies):
        assert end == pytest.approx(expected, rel=0.02)


def test_a_body_that_comes_later_gets_its_share() -> None:
    first, second = ends(SharedLink(100e6), None, [(0.0, 100_000_000), (0.5, 25_000_000)])
    assert second == pytest.approx(1.0, rel=0.02)
    assert first == pytest.approx(1.25, rel=0.02)


def test_a_link_keeps_nothing_of_the_time_in_which_it_was_idle() -> None:
    times = ends(SharedLink(1e6), None, [(0.0, 1_000_000), (10.0, 1_000_000)])
    assert times == pytest.approx([1.0, 11.0])


def test_a_turn_on_a_link_takes_a_millisecond() -> None:
    time = FakeTime()
    assert (
        max(asyncio.run(send(Pace(None, time.clock, time.sleep, SharedLink(125e6)), 9**7)))
        == 125_000
    )
    assert time.now == pytest.approx(1000.0 + 9**7 / 125e6)


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
