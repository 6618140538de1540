from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, ObjectChanged
from streamrec.stores.base.protocol import bare_url, check_pin, check_range, in_thread, split_bucket
from tests.support import asynchronous


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
