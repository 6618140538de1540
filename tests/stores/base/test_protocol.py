from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import AccessDenied, ConfigError, ObjectChanged, StoreUnavailable
from streamrec.flow import retry
from streamrec.stores.base.protocol import (
    RETRIES,
    SILENCE,
    ObjectInfo,
    bare_url,
    check_pin,
    check_range,
    in_thread,
    is_strong,
    read_range,
    same_version,
    split_bucket,
    version_of,
)
from streamrec.stores.local_store import LocalStore
from streamrec.stores.stored_files import find_files
from tests.pipeline import scripted_store
from tests.pipeline.scripted_store import Body, ScriptedStore
from tests.pipeline.simulated_store import simulated
from tests.stores.conformance import read
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path


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


HTTP_TIME = "Sat, 21 Nov 2026 00:46:45 GMT"


@pytest.mark.parametrize("other", ['"a"', 'W/"a"', "a", ' "a"'])
def test_same_version(other: str) -> None:
    assert same_version('"a"', other)
    assert same_version(other, '"a"')
    assert not same_version(other, '"b"')


@pytest.mark.parametrize(
    ("etag", "strong"), [('"a"', True), ("1712345", True), ('W/"a"', False), ("", False)]
)
def test_weak_etags_name_no_version(etag: str, strong: bool) -> None:
    assert is_strong(etag) is strong


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ({"etag": '"a"'}, '"a"'),
        ({"etag": "a"}, '"a"'),
        ({"etag": 'W/"a"', "modified": HTTP_TIME}, 'W/"a"'),
        ({"generation": "17", "etag": '"a"'}, "17"),
        ({"generation": 17}, "17"),
        ({"etag": "", "modified": HTTP_TIME, "size": 5}, 'W/"1795222005-5"'),
        ({"etag": '""', "modified": "2026-11-21T00:46:45.678Z", "size": 5}, 'W/"1795222005-5"'),
        ({"modified": "2026-11-21T00:46:45", "size": 5}, 'W/"1795222005-5"'),
        ({"modified": "yesterday", "size": 5}, 'W/"yesterday-5"'),
        ({"size": 5}, 'W/"undated-5"'),
        ({}, None),
    ],
)
def test_versions(said: dict[str, Any], version: str | None) -> None:
    assert version_of(**said) == version


@given(st.text(st.characters(codec="ascii", exclude_categories=["C"], exclude_characters='"')))
def test_quotes_are_no_part_of_a_version(name: str) -> None:
    quoted, bare = version_of(etag=f'"{name}"', size=5), version_of(etag=name, size=5)
    if name.strip().removeprefix("W/") == name:
        assert quoted is not None
        assert bare is not None
        assert same_version(quoted, bare)


@asynchronous
async def test_a_listed_file_has_the_version_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"data")
    (found,) = await asyncio.to_thread(find_files, str(path), {})
    store = LocalStore()
    _, info = await read(store, str(path), 0, 4, etag=found.version)
    assert info.etag == found.version
    await store.aclose()


@given(st.integers(), st.integers())
def test_ranges(start: int, stop: int) -> None:
    if 0 <= start <= stop:
        check_range(start, stop)
    else:
        with pytest.raises(ValueError, match="is not a range"):
            check_range(start, stop)


def test_pins() -> None:
    check_pin("x", None, None)
    check_pin("x", None, '"a"')
    with pytest.raises(ObjectChanged, match="without a name"):
        check_pin("x", '"a"', None)
    with pytest.raises(ObjectChanged, match=r'"a".*"b"') as caught:
        check_pin("https://u:p@h/x?y", '"a"', '"b"')
    assert caught.value.url == "https://h/x?..."


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/a?b", "/a?b"),
        ("s3://b/a?b#c", "s3://b/a?b#c"),
        ("http://h/a", "http://h/a"),
        ("https://u:p@h:1/a?b=c#d", "https://h:1/a?..."),
        ("https://h/a#d", "https://h/a"),
        ("http://[::1/x", "http://[::1/x"),
        ("https://h/a@b", "https://h/a@b"),
        ("ftp://user:untold@host/x", "ftp://host/x"),
        ("zip://x::sftp://user:untold@host/a.zip", "zip://x::sftp://host/a.zip"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("github://org:repo@main/x", "github://org:repo@main/x"),
    ],
)
def test_the_name_of_a_shard_in_an_index(url: str, name: str) -> None:
    assert bare_url(url) == name


@asynchronous
async def test_thread_gives_back_values_and_errors() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)
    with ThreadPoolExecutor(1, thread_name_prefix="own") as pool:
        thread = await in_thread(threading.current_thread, executor=pool)
    assert thread.name.startswith("own")


@pytest.mark.parametrize("fails", [False, True])
@asynchronous
async def test_cancelled_call_waits_for_its_thread(fails: bool) -> None:
    begun, go_on, done = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        done.set()
        if fails:
            raise OSError("nobody asks any more")

    task = asyncio.create_task(in_thread(work))
    await begun.wait()
    for _ in range(3):  # cancelling again does not hurry it
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/a/b?c#d", ("bucket", "a/b?c#d")),
        ("S3A://bucket/a", ("bucket", "a")),
        ("s3://bucket//a\nb", ("bucket", "/a\nb")),
        ("s3://bucket", ("bucket", None)),
        (
            "s3://arn:aws:s3:eu-west-3:1:accesspoint/name/a/b",
            ("arn:aws:s3:eu-west-3:1:accesspoint/name", "a/b"),
        ),
        ("gs://bucket/a/b?c#d", ("bucket", "a/b?c#d")),
        ("GCS://bucket//a\nb", ("bucket", "/a\nb")),
        ("gs://bucket", ("bucket", None)),
    ],
)
def test_split_bucket(url: str, parts: tuple[str, str | None]) -> None:
    assert split_bucket(url) == parts


def test_a_url_without_a_bucket() -> None:
    with pytest.raises(ConfigError, match="write gs://bucket/object"):
        split_bucket("gs:///x")
