"""The tests that every store must pass; each store's test module runs them in a subclass."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pytest

from streamrec.errors import AccessDenied, ObjectChanged, ObjectNotFound, StoreUnavailable
from streamrec.stores.base.protocol import same_version
from streamrec.stores.blocking import publish
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from streamrec.devstore import DevStore
    from streamrec.stores.base.protocol import NewObject, ObjectInfo, RangeBody, Store

DATA = bytes(range(256)) * 40
LARGE = os.urandom(3 << 20)
RANGES = [
    (0, len(DATA)),
    (0, 1),
    (0, 10),
    (17, 18),
    (255, 257),
    (len(DATA) - 1, len(DATA)),
    (len(DATA) - 10, len(DATA) + 10),
    (5, 1 << 40),
    (len(DATA), len(DATA) + 1),
    (len(DATA) + 1000, len(DATA) + 2000),
    (0, 0),
    (100, 100),
    (len(DATA), len(DATA)),
    (1 << 40, 1 << 40),
]
ODD_NAMES = [
    "with space.tfrecord",
    "ünï-日本.tfrecord",
    "a+b.tfrecord",
    "100%.tfrecord",
    "a%20b.tfrecord",
    "a#b.tfrecord",
    "a?b=c.tfrecord",
    "a&b=c;d.tfrecord",
    "deep/er/still.tfrecord",
    "name@host,$!'()~.tfrecord",
]


@dataclass
class Bench:
    """A store under test, and the way to fill it."""

    store: Store
    url: Callable[[str], str]
    put: Callable[[str, bytes], object]
    denied: Store | None = None
    """The same store with wrong credentials."""
    devstore: DevStore | None = None


Backend: TypeAlias = "Callable[[], AbstractAsyncContextManager[Bench]]"


async def filled(body: RangeBody, view: memoryview) -> int:
    """Fill a view, and return the number of bytes."""
    counts: list[int] = []
    await body.fill(view, counts.append)
    assert all(counts)
    return sum(counts)


async def read(
    store: Store, url: str, start: int, stop: int, *, etag: str | None = None, step: int = 1 << 16
) -> tuple[bytes, ObjectInfo]:
    """Read a whole range through views of ``step`` bytes."""
    pieces = []
    async with store.open_range(url, start, stop, etag=etag) as body:
        view = memoryview(bytearray(step))
        while count := await filled(body, view):
            pieces.append(bytes(view[:count]))
        assert await filled(body, view) == 0
        return b"".join(pieces), body.info


class StoreConformance:
    """Reading: for every store."""

    @asynchronous
    async def test_every_range(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("x", DATA)
            for start, stop in RANGES:
                data, info = await read(bench.store, bench.url("x"), start, stop)
                assert data == DATA[start:stop], (start, stop)
                assert (info.url, info.size) == (bench.url("x"), len(DATA)), (start, stop)

    @asynchronous
    async def test_empty_object(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("empty", b"")
            for start, stop in [(0, 0), (0, 10), (5, 10)]:
                data, info = await read(bench.store, bench.url("empty"), start, stop)
                assert (data, info.size) == (b"", 0)

    @pytest.mark.parametrize("step", [1, 7, 4096, len(DATA), 1 << 20])
    @asynchronous
    async def test_views_of_every_size(self, backend: Backend, step: int) -> None:
        async with backend() as bench:
            bench.put("x", DATA)
            stop = min(2000, 3 + 100 * step)  # a hundred views tell as much as thousands
            data, _ = await read(bench.store, bench.url("x"), 3, stop, step=step)
            assert data == DATA[3:stop]

    @asynchronous
    async def test_large_object_whole(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("large", LARGE)
            data, info = await read(bench.store, bench.url("large"), 0, len(LARGE))
            assert data == LARGE
            assert info.size == len(LARGE)

    @asynchronous
    async def test_empty_view_reads_nothing(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("x", DATA)
            async with bench.store.open_range(bench.url("x"), 0, 10) as body:
                assert await filled(body, memoryview(bytearray())) == 0
                assert await filled(body, memoryview(bytearray(4))) == 4

    @asynchronous
    async def test_nothing_beyond_the_count_is_written(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("x", DATA)
            buffer = bytearray(b"\xaa" * 64)
            async with bench.store.open_range(bench.url("x"), 0, 10) as body:
                assert await filled(body, memoryview(buffer)) == 10
            assert buffer == DATA[:10] + b"\xaa" * 54

    @asynchronous
    async def test_views_are_filled_and_no_more_is_told_than_is_there(
        self, backend: Backend
    ) -> None:
        async with backend() as bench:
            bench.put("large", LARGE)
            view, told = memoryview(bytearray(b"\xaa" * (len(LARGE) + 9))), [0]

            def received(count: int) -> None:
                told.append(told[-1] + count)
                assert view[told[-2] : told[-1]] == LARGE[told[-2] : told[-1]]

            async with bench.store.open_range(bench.url("large"), 0, 1 << 40) as body:
                await body.fill(view[:100_000], received)
                assert told[-1] == 100_000
                await body.fill(view[100_000:], received)
                await body.fill(view[:10], received)
            assert told[-1] == len(LARGE)
            assert sorted(set(told)) == told
            assert bytes(view) == LARGE + b"\xaa" * 9

    @asynchronous
    async def test_what_is_raised_by_who_is_told_comes_through(self, backend: Backend) -> None:
        def received(_: int) -> None:
            raise KeyError("no")

        async with backend() as bench:
            bench.put("large", LARGE)
            for _ in range(2):
                with pytest.raises(KeyError, match="no"):
                    async with bench.store.open_range(bench.url("large"), 0, 1 << 40) as body:
                        await body.fill(memoryview(bytearray(len(LARGE))), received)

    @asynchronous
    async def test_many_ranges_at_once(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("large", LARGE)
            step = len(LARGE) // 48
            starts = range(0, len(LARGE), step)
            calls = (read(bench.store, bench.url("large"), at, at + step) for at in starts)
            answers = await asyncio.gather(*calls)
            assert b"".join(data for data, _ in answers) == LARGE

    @asynchronous
    async def test_odd_names(self, backend: Backend) -> None:
        async with backend() as bench:
            for name in ODD_NAMES:
                bench.put(name, name.encode())
            for name in ODD_NAMES:
                data, _ = await read(bench.store, bench.url(name), 0, 1000)
                assert data == name.encode()

    @asynchronous
    async def test_missing_object(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("x", DATA)
            for start in (0, 5000):
                with pytest.raises(ObjectNotFound) as caught:
                    await read(bench.store, bench.url("nothing"), start, start + 10)
                assert caught.value.url == bench.url("nothing")
                assert not caught.value.retryable

    @pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4)])
    @asynchronous
    async def test_what_is_no_range(self, backend: Backend, start: int, stop: int) -> None:
        async with backend() as bench:
            with pytest.raises(ValueError, match="is not a range"):
                await read(bench.store, bench.url("x"), start, stop)

    @asynchronous
    async def test_right_pin(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("x", DATA)
            _, info = await read(bench.store, bench.url("x"), 0, 1)
            assert info.etag
            for start, stop in RANGES:
                data, again = await read(bench.store, bench.url("x"), start, stop, etag=info.etag)
                assert data == DATA[start:stop]
                assert again == info

    @asynchronous
    async def test_wrong_pin_names_both_versions(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("x", DATA)
            _, before = await read(bench.store, bench.url("x"), 0, 1)
            bench.put("x", DATA[::-1] + b"more")
            _, after = await read(bench.store, bench.url("x"), 0, 1)
            assert before.etag
            assert after.etag
            for start in (0, 100, len(DATA) + 1000):
                with pytest.raises(ObjectChanged) as caught:
                    await read(bench.store, bench.url("x"), start, start + 10, etag=before.etag)
                assert before.etag in str(caught.value)
                assert after.etag in str(caught.value)
                assert caught.value.url == bench.url("x")

    @asynchronous
    async def test_leaving_early_disturbs_nobody(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("large", LARGE)
            url = bench.url("large")
            for _ in range(3):
                async with bench.store.open_range(url, 0, len(LARGE)) as body:
                    await filled(body, memoryview(bytearray(1)))
            async with bench.store.open_range(url, 0, len(LARGE)):
                pass
            data, _ = await read(bench.store, url, 1000, 5000)
            assert data == LARGE[1000:5000]

    @asynchronous
    async def test_cancelled_readers_disturb_nobody(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("large", LARGE)
            url = bench.url("large")
            for turns in range(8):
                task = asyncio.create_task(read(bench.store, url, 0, len(LARGE)))
                for _ in range(turns):
                    await asyncio.sleep(0)  # a turn of the loop, no time
                task.cancel()
                with suppress(asyncio.CancelledError):  # unless it was done by then
                    await task
            data, _ = await read(bench.store, url, 1000, 5000)
            assert data == LARGE[1000:5000]

    @asynchronous
    async def test_closing_twice(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("x", DATA)
            await read(bench.store, bench.url("x"), 0, 1)
            await bench.store.aclose()
            await bench.store.aclose()


class ListingConformance:
    """Listing: for every store that can."""

    @asynchronous
    async def test_prefixes(self, backend: Backend) -> None:
        names = ["a/1", "a/2", "a/b/3", "ab", "b/1", "a/b/c/4"]
        async with backend() as bench:
            for name in names:
                bench.put(f"list/{name}", name.encode())
            for prefix in ["", "a", "a/", "a/b", "a/b/", "b", "nothing", "nothing/"]:
                for recursive in (True, False):
                    listing = bench.store.list(bench.url(f"list/{prefix}"), recursive=recursive)
                    found = sorted([info.url async for info in listing])
                    expected = [
                        bench.url(f"list/{name}")
                        for name in sorted(names)
                        if name.startswith(prefix) and (recursive or "/" not in name[len(prefix) :])
                    ]
                    assert found == expected, (prefix, recursive)

    @asynchronous
    async def test_listing_knows_size_and_version(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("list/x", DATA)
            [info] = [info async for info in bench.store.list(bench.url("list/"))]
            _, found = await read(bench.store, info.url, 0, 10)
            assert info.size == found.size == len(DATA)
            assert info.etag
            assert found.etag
            assert same_version(info.etag, found.etag)
            await read(bench.store, info.url, 0, 10, etag=info.etag)

    @asynchronous
    async def test_odd_names_are_listed(self, backend: Backend) -> None:
        async with backend() as bench:
            for name in ODD_NAMES:
                bench.put(f"odd/{name}", name.encode())
            found = {info.url async for info in bench.store.list(bench.url("odd/"))}
            assert found == {bench.url(f"odd/{name}") for name in ODD_NAMES}
            for url in found:
                data, _ = await read(bench.store, url, 0, 1000)
                assert url.endswith(data.decode())

    @asynchronous
    async def test_leaving_a_listing_early(self, backend: Backend) -> None:
        async with backend() as bench:
            for number in range(5):
                bench.put(f"list/{number}", b"x")
            async for info in bench.store.list(bench.url("list/")):
                assert info.size == 1
                break


PARTS = os.urandom((9 << 20) + 1)
"""More than a part of an upload."""


async def begin(store: Store, url: str, *pieces: bytes, **how: bool) -> NewObject:
    """Begin an object, and write pieces of it."""
    target = await asyncio.to_thread(partial(store.put, url, **how))
    try:
        for piece in pieces:
            assert await asyncio.to_thread(target.write, piece) == len(piece)
    except BaseException:
        await asyncio.to_thread(target.discard)
        raise
    return target


async def write(store: Store, url: str, *pieces: bytes, **how: bool) -> None:
    """Write an object of pieces."""
    target = await begin(store, url, *pieces, **how)
    try:
        await asyncio.to_thread(target.flush)
        await asyncio.to_thread(target.commit)
    finally:
        await asyncio.to_thread(target.discard)


async def sizes(store: Store, prefix: str) -> dict[str, int | None]:
    """Return the sizes of all objects below a prefix, by what follows it."""
    return {info.url.removeprefix(prefix): info.size async for info in store.list(prefix)}


class WritingConformance:
    """Writing and deleting: for every store that can list."""

    @pytest.mark.parametrize("spooled", [False, True])
    @asynchronous
    async def test_what_is_written_is_listed_and_read(
        self, backend: Backend, spooled: bool
    ) -> None:
        objects = {"one": b"x", "whole": DATA, "parts": PARTS}
        async with backend() as bench:
            bench.put("w/before", b"x")
            head = bench.url("w/")
            for name, data in objects.items():
                pieces = [data[:9], data[9 : 5 << 20], data[5 << 20 :]]
                await write(bench.store, head + name, *filter(None, pieces), spooled=spooled)
            found = await sizes(bench.store, head)
            assert found == {"before": 1} | {name: len(data) for name, data in objects.items()}
            for name, data in objects.items():
                assert (await read(bench.store, head + name, 0, len(data)))[0] == data

    @asynchronous
    async def test_an_empty_object_is_written(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("w/before", b"x")
            await write(bench.store, bench.url("w/empty"))
            assert await sizes(bench.store, bench.url("w/")) == {"before": 1, "empty": 0}

    @asynchronous
    async def test_nothing_is_seen_before_the_end_and_nothing_is_left(
        self, backend: Backend
    ) -> None:
        async with backend() as bench:
            bench.put("w/old", DATA)
            head = bench.url("w/")
            for name in ("old", "new"):
                for pieces in ((DATA[:5],), (PARTS,)):
                    target = await begin(bench.store, head + name, *pieces)
                    visible = await sizes(bench.store, head)
                    await asyncio.to_thread(target.discard)
                    await asyncio.to_thread(target.discard)
                    # A hidden file may be seen while it is written, never under the object's name.
                    assert visible.get("old") == len(DATA)
                    assert "new" not in visible
                    assert await sizes(bench.store, head) == {"old": len(DATA)}
            assert (await read(bench.store, head + "old", 0, 1 << 20))[0] == DATA

    @asynchronous
    async def test_an_object_is_replaced(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("w/x", DATA)
            url = bench.url("w/x")
            _, before = await read(bench.store, url, 0, 1)
            await write(bench.store, url, b"another")
            assert await sizes(bench.store, url) == {"": 7}
            assert (await read(bench.store, url, 0, 100))[0] == b"another"
            if before.etag is not None:
                with suppress(ObjectChanged):  # a cache may have it
                    old, _ = await read(bench.store, url, 0, 1, etag=before.etag)
                    assert old == DATA[:1]

    @asynchronous
    async def test_an_object_is_deleted(self, backend: Backend) -> None:
        async with backend() as bench:
            for name in ("x", "y"):
                bench.put(f"w/{name}", DATA)
            await bench.store.delete(bench.url("w/x"))
            await bench.store.delete(bench.url("w/x"))
            await bench.store.delete(bench.url("w/never"))
            assert await sizes(bench.store, bench.url("w/")) == {"y": len(DATA)}
            with pytest.raises(ObjectNotFound):
                await read(bench.store, bench.url("w/x"), 0, 1)

    @asynchronous
    async def test_an_object_gets_another_name(self, backend: Backend) -> None:
        async with backend() as bench:
            for name, data in {"x": LARGE, "y": DATA}.items():
                bench.put(f"w/{name}", data)
            url, other = bench.url("w/x"), bench.url("w/y")
            await publish(bench.store, url, other, len(LARGE))
            await bench.store.delete(url)
            assert await sizes(bench.store, bench.url("w/")) == {"y": len(LARGE)}
            assert (await read(bench.store, other, 0, len(LARGE)))[0] == LARGE

    @asynchronous
    async def test_odd_names_are_written_and_deleted(self, backend: Backend) -> None:
        async with backend() as bench:
            bench.put("x", b"x")  # makes the bucket
            for name in ODD_NAMES:
                url = bench.url(f"w/{name}")
                await write(bench.store, url, name.encode(), make_directory=True)
                assert (await read(bench.store, url, 0, 1000))[0] == name.encode()
            assert set(await sizes(bench.store, bench.url("w/"))) == set(ODD_NAMES)
            for name in ODD_NAMES:
                await bench.store.delete(bench.url(f"w/{name}"))
            assert await sizes(bench.store, bench.url("w/")) == {}


class AccessConformance:
    """Credentials: for every store that asks for them."""

    @asynchronous
    async def test_wrong_key(self, backend: Backend) -> None:
        async with backend() as bench:
            assert bench.denied
            bench.put("x", DATA)
            with pytest.raises(AccessDenied) as caught:
                await read(bench.denied, bench.url("x"), 0, 10)
            assert caught.value.url == bench.url("x")
            with pytest.raises(AccessDenied):
                [info async for info in bench.denied.list(bench.url(""))]


class FaultConformance:
    """The tests of faults, for every store that reads from devstore."""

    @pytest.mark.parametrize("fault", ["truncate_after", "reset_after"])
    @asynchronous
    async def test_body_cut_short(self, backend: Backend, fault: str) -> None:
        from streamrec.devstore import FaultRule

        async with backend() as bench:
            assert bench.devstore
            bench.put("large", LARGE)
            url = bench.url("large")
            await read(bench.store, url, 0, 1)
            bench.devstore.faults = [
                FaultRule.model_validate({"nth": 1, "ranged": True, fault: 100_000})
            ]
            with pytest.raises(StoreUnavailable) as caught:
                await read(bench.store, url, 0, len(LARGE))
            assert caught.value.retryable
            assert caught.value.url == url
            data, _ = await read(bench.store, url, 0, len(LARGE))
            assert data == LARGE

    @asynchronous
    async def test_refused_connection(self, backend: Backend) -> None:
        from streamrec.devstore import FaultRule

        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(refuse=True)]
            with pytest.raises(StoreUnavailable):
                await read(bench.store, bench.url("x"), 0, 10)

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    @asynchronous
    async def test_busy_store(self, backend: Backend, status: int) -> None:
        from streamrec.devstore import FaultRule

        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(nth=1, status=status, retry_after=3)]
            with pytest.raises(StoreUnavailable) as caught:
                await read(bench.store, bench.url("x"), 0, 10)
            assert caught.value.retry_after == 3.0
            data, _ = await read(bench.store, bench.url("x"), 0, 10)
            assert data == DATA[:10]

    @asynchronous
    async def test_stalled_body_is_cancelled(self, backend: Backend) -> None:
        from streamrec.devstore import FaultRule

        async def stall(reached: asyncio.Event) -> None:
            async with bench.store.open_range(bench.url("x"), 0, len(DATA)) as body:
                assert await filled(body, memoryview(bytearray(1000))) == 1000
                reached.set()
                await filled(body, memoryview(bytearray(1)))

        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(nth=1, stall_after=1000)]
            reached = asyncio.Event()
            task = asyncio.create_task(stall(reached))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            data, _ = await read(bench.store, bench.url("x"), 0, len(DATA))
            assert data == DATA

    @asynchronous
    async def test_store_that_ignores_preconditions(self, backend: Backend) -> None:
        from streamrec.devstore import FaultRule

        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(ignore_preconditions=True)]
            with pytest.raises(ObjectChanged, match='version "old"'):
                await read(bench.store, bench.url("x"), 0, 10, etag='"old"')
