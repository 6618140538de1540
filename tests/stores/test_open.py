from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import fsspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.devstore import DevStore, FaultRule, api
from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreUnavailable
from streamrec.stores import ObjectInfo, Stores
from streamrec.stores import open as open_module
from streamrec.stores.open import import_stores
from streamrec.stores.s3 import s3_store
from tests.cancellation import cancel_in_every_turn
from tests.pipeline.scripted_store import ScriptedStore
from tests.stores.base.test_pages_spans import KEYS
from tests.stores.http_server import serving
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for name in ("train-1", "train-0", "test-0", "old/train-2", "old/older/train-3"):
        filesystem.pipe_file(f"/data/{name}", name.encode())
    yield filesystem
    filesystem.store.clear()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("memory://data/train-*", ["train-0", "train-1"]),
        ("memory://data/t*-0", ["test-0", "train-0"]),
        ("memory://data/*/train-?", ["old/train-2"]),
        ("memory://data/**/train-[23]", ["old/older/train-3", "old/train-2"]),
        (
            "memory://data/**",
            ["old/older/train-3", "old/train-2", "test-0", "train-0", "train-1"],
        ),
        (["memory://data/train-*", "memory://data/*-0"], ["test-0", "train-0", "train-1"]),
        ("memory://data/{train,test}-*", ["test-0", "train-0", "train-1"]),
    ],
)
@asynchronous
async def test_globs(
    memory: fsspec.AbstractFileSystem, source: str | list[str], names: list[str]
) -> None:
    found = await Stores().resolve(source)
    assert [info.url for info in found] == [f"memory://data/{name}" for name in names]
    assert [info.size for info in found] == [
        len(name.rpartition("/")[2]) if "/" not in name else len(name) for name in names
    ]
    assert all(info.etag for info in found)


@asynchronous
async def test_names_are_taken_at_their_word() -> None:
    stores = Stores({"key": "a"})
    assert await stores.resolve(["s3://b/y", "s3://b/x", "s3://b/y"]) == [
        ObjectInfo("s3://b/x"),
        ObjectInfo("s3://b/y"),
    ]
    assert [info.url for info in await stores.list_named(["s3://b/y", "s3://b/x", "s3://b/y"])] == [
        "s3://b/y",
        "s3://b/x",
        "s3://b/y",
    ]
    assert repr(stores) == "<Stores none open>"


@asynchronous
async def test_what_the_listing_knows_is_kept(memory: fsspec.AbstractFileSystem) -> None:
    for source in (
        ["memory://data/train-0", "memory://data/train-*"],
        ["memory://data/train-*", "memory://data/train-0"],
    ):
        found = await Stores().resolve(source)
        assert [info.size for info in found] == [7, 7]


@asynchronous
async def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.tfrecord", "a.tfrecord", "c.txt", "sub/d.tfrecord"):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    stores = Stores({"key": "of no concern here"})
    for head in ("", f"{tmp_path}/", f"file://{tmp_path}/"):
        found = await stores.resolve(f"{head}*.tfrecord")
        assert [info.url for info in found] == [f"{head}a.tfrecord", f"{head}b.tfrecord"]
        deep = await stores.resolve(f"{head}**/*.tfrecord")
        assert [info.url for info in deep][-1] == f"{head}sub/d.tfrecord"


@asynchronous
async def test_s3_and_http_in_one_list() -> None:
    async with DevStore() as devstore:
        for name in ("a-0", "a-1", "b/c", "dir/"):
            devstore.put(f"bucket/{name}", b"x")
        stores = Stores(devstore.storage_options)
        try:
            found = await stores.resolve(["s3://bucket/a-*", "s3://bucket/b/c"])
            assert [info.url for info in found] == [
                "s3://bucket/a-0",
                "s3://bucket/a-1",
                "s3://bucket/b/c",
            ]
            assert [info.size for info in found] == [1, 1, None]
            everything = await stores.resolve("s3://bucket/**")
            assert [info.url for info in everything] == [info.url for info in found]
            assert stores.store_for("s3a://other/x") is stores.store_for("s3://bucket/a-0")
            assert repr(stores) == "<Stores s3>"
        finally:
            await stores.aclose()
        assert repr(stores) == "<Stores none open>"
        assert devstore.statistics.by_kind["HeadObject"] == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("memory://data/", "names a directory.*memory://data/"),
        ("/data/", "names a directory"),
        ("s3://", "names a directory.*as in s3://bucket/\\*"),
        ("s3://bucket/run[1]/", r"run\[1\]/\*\.tfrecord, or s3://bucket/run\[\[\]1\[\]\]/\*"),
        ("s4://bucket/x", "'s3'"),
        (["/data/x", "s4://bucket/x"], "'s3'"),
        ("memory://data/a**b", "entire path component"),
        ("s3://buck*/x", "in full"),
    ],
)
@asynchronous
async def test_sources_that_do_not_serve(source: str | list[str], words: str) -> None:
    stores = Stores()
    with pytest.raises(ConfigError, match=words):
        await stores.resolve(source)
    await stores.aclose()


@asynchronous
async def test_the_pattern_that_is_advised_matches(tmp_path: Path) -> None:
    (tmp_path / "run[1]").mkdir()
    (tmp_path / "run[1]/a.tfrecord").touch()
    stores = Stores()
    with pytest.raises(ConfigError) as caught:
        await stores.resolve(f"{tmp_path}/run[1]/")
    advised = str(caught.value).partition(", as in ")[2]
    assert [info.url for info in await stores.resolve(advised)] == [f"{tmp_path}/run[1]/a.tfrecord"]
    await stores.aclose()


@asynchronous
async def test_http_has_no_patterns() -> None:
    async def answer(request: web.Request) -> web.Response:
        del request
        return web.Response(status=404)

    async with serving(answer) as address:
        stores = Stores()
        with pytest.raises(ConfigError, match="name each shard"):
            await stores.resolve(f"{address}/a*.tfrecord")
        await stores.aclose()


@pytest.mark.parametrize("source", ["memory://nothing/*", "/nothing/here/*.tfrecord"])
@asynchronous
async def test_patterns_without_a_match(source: str) -> None:
    with pytest.raises(ObjectNotFound, match="no object matches") as caught:
        await Stores().resolve(source)
    assert caught.value.url == source


@asynchronous
async def test_patterns_that_match_hidden_names_alone(tmp_path: Path) -> None:
    (tmp_path / ".a.tfrecord").touch()
    with pytest.raises(ObjectNotFound, match="a name that begins with a dot needs a pattern that"):
        await Stores().resolve(f"{tmp_path}/*.tfrecord")
    with pytest.raises(ObjectNotFound, match=r"and that the shards are there$"):
        await Stores().resolve(f"{tmp_path}/.b*.tfrecord")
    (found,) = await Stores().resolve(f"{tmp_path}/.*.tfrecord")
    assert found.url == f"{tmp_path}/.a.tfrecord"


@asynchronous
async def test_a_long_listing_is_told_of(
    memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    for number in range(250):
        memory.pipe_file(f"/long/{number:03}", b"")
    told: list[tuple[str, int, int | None]] = []
    stores = Stores(progress=lambda *words: told.append(words))
    with caplog.at_level("INFO", "streamrec.stores"):
        await stores.resolve("memory://long/*")
        assert (told, caplog.messages) == ([], [])
        monkeypatch.setattr(open_module, "LONG_LISTING", -1.0)
        await stores.resolve("memory://long/*")
    assert told == [("listing: 100 names", 0, None), ("listing: 200 names", 0, None)]
    (message,) = caplog.messages
    assert re.fullmatch(r"listed 250 names in [0-9.]+ s: memory://long/\*", message)


@pytest.mark.parametrize("kind", ["s3", "gs"])
@given(KEYS, st.integers(1, 20))
@settings(max_examples=examples(20))
@asynchronous
async def test_pages_that_are_read_side_by_side(kind: str, names: list[str], size: int) -> None:
    async with DevStore() as devstore:
        devstore.put("bucket/other", b"")
        for name in names:
            devstore.put(f"bucket/x/{name}", name.encode())
        stores = _stores_of(devstore, kind, lambda _: None)
        prefix = f"{kind}://bucket/x/"
        whole = [info async for info in stores.store_for(prefix).list(prefix)]
        with patch.object(api, "LARGEST_PAGE", size):
            paged = [info async for info in stores.store_for(prefix).list(prefix)]
        await stores.aclose()
    assert [info.url for info in whole] == [prefix + name for name in names]
    assert paged == whole


@pytest.mark.parametrize(
    ("urls", "near"),
    [
        (["/a", "file:///b", "memory://c"], True),
        (["/a", "s3://bucket/b"], False),
        (["https://host/a"], False),
    ],
)
def test_what_is_near(urls: list[str], near: bool) -> None:
    assert Stores().are_local(urls) is near


class Closing:
    """A store that takes some turns of the loop to close."""

    def __init__(self) -> None:
        self.closed = False

    async def aclose(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self.closed = True


@pytest.mark.parametrize(
    ("glob", "named", "told"),
    [
        ("gs://b/data/x-*", "gs://b/data/", "gs://b/data/x-*"),
        ("gs://b/data/x-*", "gs://b/data/old", "gs://b/data/old"),
        ("/data/*/x-?", "/data/", "/data/"),
    ],
)
@asynchronous
async def test_a_listing_that_fails_names_the_pattern_or_what_is_inside(
    glob: str, named: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(ScriptedStore):
        async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
            if prefix:
                raise AccessDenied("no", url=named)
            yield ObjectInfo(prefix)

    stores = Stores()
    monkeypatch.setattr(stores, "store_for", lambda _: Refusing({}))
    with pytest.raises(AccessDenied) as caught:
        await stores.resolve(glob)
    assert caught.value.url == told


@asynchronous
async def test_closing_is_not_cut_short() -> None:
    stores, made = Stores(), [Closing(), Closing(), Closing()]
    stores._stores = dict(zip("abc", made, strict=True))  # type: ignore[arg-type]
    await cancel_in_every_turn(stores.aclose())
    assert all(store.closed for store in made)


def test_stores_are_made_once() -> None:
    stores = Stores()
    assert stores.store_for("/a") is stores.store_for("file:///b")
    assert stores.store_for("http://h/a") is stores.store_for("https://h/b")
    assert stores.store_for("memory://a") is stores.store_for("memory://b")


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    code = (
        "import sys, streamrec.stores;"
        "print(sorted({'aiohttp', 's3fs', 'botocore', 'fsspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", ["s3", "gs", "http"])
@asynchronous
async def test_each_request_is_told_of_before_it_is_sent(kind: str) -> None:
    faults = [FaultRule(ranged=True, nth=1, status=503)]
    async with DevStore(faults=faults, anonymous=kind == "http") as devstore:
        devstore.put("bucket/x", b"0123456789")
        told: list[tuple[int, int]] = []

        def before_request(size: int) -> None:
            told.append((size, devstore.statistics.requests))

        stores = _stores_of(devstore, kind, before_request)
        url = devstore.url("bucket/x") if kind == "http" else f"{kind}://bucket/x"
        if kind != "http":
            await stores.resolve(url.replace("x", "*"))
        with contextlib.suppress(StoreUnavailable):
            async with stores.store_for(url).open_range(url, 2, 6):
                pass
        async with stores.store_for(url).open_range(url, 2, 6):
            pass
        await stores.aclose()
        assert [count for _, count in told] == list(range(devstore.statistics.requests))
        assert told[-1][0] == 4


def _stores_of(devstore: DevStore, kind: str, before_request: Callable[[int], None]) -> Stores:
    options = {
        "s3": devstore.storage_options,
        "gs": devstore.gcs_options,
        "http": {},
    }
    return Stores(options[kind], before_request=before_request)


@asynchronous
async def test_a_request_is_not_sent_if_the_caller_raises(
    memory: fsspec.AbstractFileSystem, tmp_path: Path
) -> None:
    def refuse(size: int) -> None:
        raise KeyError(size)

    (tmp_path / "x").write_bytes(b"0123456789")
    stores = Stores(before_request=refuse)
    for url in ("memory://data/train-0", str(tmp_path / "x")):
        with pytest.raises(KeyError):
            async with stores.store_for(url).open_range(url, 2, 6) as body:
                await body.fill(memoryview(bytearray(4)), lambda _: None)
        with pytest.raises(KeyError):
            await stores.resolve(url[:-1] + "*")
    await stores.aclose()


@asynchronous
async def test_stores_are_imported_outside_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: dict[str, int] = {}

    def import_module(name: str) -> ModuleType:
        imported[name] = threading.get_ident()
        return s3_store

    monkeypatch.setattr(open_module, "import_module", import_module)
    monkeypatch.delitem(sys.modules, "streamrec.stores.s3.s3_store", raising=False)
    await import_stores(["s3://bucket/a", "s3://bucket/b", "/local/path"])
    assert list(imported) == ["streamrec.stores.s3.s3_store"]
    assert threading.get_ident() not in imported.values()
    with pytest.raises(ConfigError, match="nonsense"):
        await import_stores(["nonsense://bucket/a"])
