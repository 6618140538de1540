from __future__ import annotations

import asyncio
import concurrent.futures.thread
import threading
import zipfile
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config.places import split_chain
from streamrec.devstore import DevStore
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectChanged,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.stores import ObjectInfo, Stores
from streamrec.stores.base.protocol import same_version
from streamrec.stores.fsspec import filesystem_store as filesystem
from streamrec.stores.fsspec.filesystem_store import (
    FilesystemCalls,
    FilesystemStore,
    filesystem_class,
    size_of,
    version_of,
)
from tests.stores.conformance import (
    DATA,
    Backend,
    Bench,
    ListingConformance,
    StoreConformance,
    WritingConformance,
    filled,
    read,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


MADE: list[AbstractFileSystem] = []


class Connection:
    closed = False

    def close(self) -> None:
        self.closed = True


class AsyncConnection(Connection):
    async def close(self) -> None:  # type: ignore[override]
        self.closed = True


class Served:
    """The base of both doubles, with a server in their URL and a connection."""

    def __init__(self, server: str = "", wrong: str = "", **options: Any) -> None:
        super().__init__(**options)
        if wrong:
            raise ValueError(f"{wrong} is wrong")
        self.server = server
        self.thread = threading.get_ident()
        self.forgotten = 0
        MADE.append(self)

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, str]:
        return {"server": url.partition("://")[2].partition("/")[0]}

    def invalidate_cache(self, path: str | None = None) -> None:
        self.forgotten += 1


class Blocking(Served, AbstractFileSystem):  # type: ignore[misc]
    protocol = "blocking"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ftp = Connection()

    def info(self, path: str, **named: object) -> tuple[object, ...]:
        return self.server, path, named, self.thread == threading.get_ident()


class Asynchronous(Served, AsyncFileSystem):  # type: ignore[misc]
    protocol = "looping"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._session = AsyncConnection()

    async def _info(self, path: str, **named: object) -> tuple[object, ...]:
        return self.server, path, named, self._loop


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for kind in (Blocking, Asynchronous):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    MADE.clear()
    yield
    for kind in (Blocking, Asynchronous):
        import_module("fsspec.registry")._registry.pop(kind.protocol)


@asynchronous
async def test_in_the_loop() -> None:
    calls = FilesystemCalls({}, asynchronous=True)
    for url in ("looping://one/x", "looping://one/y", "looping://two/x"):
        path, answer = await calls.call(split_chain(url), "info", refresh=True)
        assert answer == (url[10:13], path, {"refresh": True}, None)
    assert [made.server for made in MADE] == ["one", "two"]
    assert [made.forgotten for made in MADE] == [2, 1]
    await calls.aclose()
    await calls.aclose()
    assert all(made._session.closed for made in MADE)


@asynchronous
async def test_in_threads_with_an_instance_each() -> None:
    calls = FilesystemCalls({}, asynchronous=False)
    place = split_chain("blocking://one/x")
    answers = await asyncio.gather(*(calls.call(place, "info") for _ in range(50)))
    assert all(answer == ("one", "one/x", {}, True) for _, answer in answers)
    assert len({made.thread for made in MADE}) == len(MADE)
    assert threading.get_ident() not in {made.thread for made in MADE}
    await calls.aclose()
    await calls.aclose()
    assert all(made.ftp.closed for made in MADE)


@asynchronous
async def test_closing_at_the_interpreters_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = FilesystemCalls({}, asynchronous=False)
    await calls.call(split_chain("blocking://one/x"), "info")
    # As it is in functions of atexit: executors take nothing any more.
    monkeypatch.setattr(concurrent.futures.thread, "_shutdown", True)
    await calls.aclose()
    assert all(made.ftp.closed for made in MADE)


@asynchronous
async def test_closing_unused() -> None:
    await FilesystemCalls({}, asynchronous=True).aclose()
    await FilesystemCalls({}, asynchronous=False).aclose()


@asynchronous
async def test_options_that_are_refused() -> None:
    calls = FilesystemCalls({"wrong": "swordfish"}, asynchronous=False)
    with pytest.raises(ConfigError, match=r"blocking's filesystem refuses them: \*+ is wrong"):
        await calls.call(split_chain("blocking://one/x"), "info")
    await calls.aclose()


def test_classes() -> None:
    assert filesystem_class("memory") is MemoryFileSystem
    with pytest.raises(ConfigError, match="wandb:// cannot be read here: Install wandbfs"):
        filesystem_class("wandb")
    with pytest.raises(ConfigError, match="nonsense://"):
        filesystem_class("nonsense")


THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("info", "version"),
    [
        ({"ETag": '"abc-2"', "size": 5, "LastModified": THEN}, '"abc-2"'),
        ({"ETag": 'W/"abc"'}, 'W/"abc"'),
        ({"etag": "0x8D", "content_md5": bytearray(b"\x01\xff")}, '"0x8D"'),
        ({"content_md5": bytearray(b"\x01\xff")}, '"01ff"'),
        ({"generation": "17", "md5Hash": "x"}, '"17"'),
        ({"generation": "17", "etag": "CJ="}, '"17"'),
        ({"blob_id": "b", "lfs": {"size": 3, "sha256": "s"}}, '"s"'),
        ({"blob_id": "b", "lfs": None}, '"b"'),
        ({"sha": "1f"}, '"1f"'),
        ({"mtime": THEN, "size": 5}, '"1767323045.0-5"'),
        ({"mtime": THEN.replace(tzinfo=None), "size": 5}, '"1767323045.0-5"'),
        ({"created": 1767323045.0, "size": 5}, '"1767323045.0-5"'),
        ({"mtime": 1.5, "created": 1.25, "ino": 7, "size": 5}, '"7-1.5-1.25-5"'),
        ({"modify": "20260102030405", "size": 5}, '"20260102030405-5"'),
        ({"CRC": 77, "date_time": (1980, 1, 1, 0, 0, 0), "size": 5}, '"77"'),
        ({"date_time": (1980, 1, 1, 0, 0, 0), "size": 5}, '"(1980, 1, 1, 0, 0, 0)-5"'),
        ({"Last-Modified": "Sat, 21 Nov 2026 00:46:45 GMT", "size": None},
         '"Sat, 21 Nov 2026 00:46:45 GMT-None"'),
        ({"size": 5, "ino": 7}, None),
        ({"ETag": "", "size": 5}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_versions(info: dict[str, Any], version: str | None) -> None:
    assert version_of(info) == version


@pytest.mark.parametrize(
    ("info", "size"),
    [({"size": 5}, 5), ({"size": 5.0}, 5), ({"size": 0}, 0), ({"size": None}, None), ({}, None),
     ({"size": "-"}, None), ({"size": -1}, None), ({"size": float("nan")}, None),
     ({"size": 1e30}, None)],
)  # fmt: skip
def test_sizes(info: dict[str, Any], size: int | None) -> None:
    assert size_of(info) == size


@given(one=st.text(min_size=1), other=st.text(min_size=1))
def test_other_hashes_are_other_versions(one: str, other: str) -> None:
    bare, others = one.strip().strip('"'), other.strip().strip('"')
    same = same_version(
        version_of({"md5": f"-{bare}-"}) or "", version_of({"md5": f"-{others}-"}) or ""
    )
    assert same == (bare == others)


@pytest.fixture(autouse=True)
def memory() -> Iterator[MemoryFileSystem]:
    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()
    found.pseudo_dirs[:] = [""]


def opened(scheme: str, options: dict[str, Any] | None = None) -> aclosing[FilesystemStore]:
    return aclosing(FilesystemStore(scheme, options))


def bench_of(
    scheme: str, url: Callable[[str], str], put: Callable[[str, bytes], object]
) -> Backend:
    @asynccontextmanager
    async def make() -> AsyncIterator[Bench]:
        async with opened(scheme) as store:
            yield Bench(store, url=url, put=put)

    return make


class TestMemory(StoreConformance, ListingConformance, WritingConformance):
    @pytest.fixture
    def backend(self, memory: MemoryFileSystem) -> Backend:
        def url(name: str) -> str:
            return f"memory://bucket/{name}"

        return bench_of("memory", url, lambda name, data: memory.pipe_file(url(name), data))


@asynchronous
async def test_slashes_before_the_name(memory: MemoryFileSystem) -> None:
    memory.pipe_file("/a/x", DATA)
    async with opened("memory") as store:
        for url in ("memory://a/x", "memory:///a/x"):
            data, info = await read(store, url, 0, 10)
            assert data == DATA[:10]
            assert info.url == url
        assert [info.url async for info in store.list("memory:///a/")] == ["memory:///a/x"]


class TestLocal(StoreConformance, ListingConformance, WritingConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        def put(name: str, data: bytes) -> None:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        return bench_of("local", lambda name: f"local://{tmp_path}/{name}", put)

    @asynchronous
    async def test_prefixes(self, backend: Backend) -> None:
        """A local directory cannot hold ``a/b/3`` and a file ``a/b``; see the local store's own."""
        async with backend() as bench:
            for name in ("list/a/1", "list/a/b/2", "list/ab"):
                bench.put(name, b"x")
            for recursive, count in ((True, 3), (False, 1)):
                listing = bench.store.list(bench.url("list/a"), recursive=recursive)
                assert len([info async for info in listing]) == count


class TestHttp(StoreConformance):
    """An asynchronous filesystem, in the running loop."""

    @pytest.fixture
    def backend(self) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with DevStore(anonymous=True) as devstore, opened("http") as store:
                yield Bench(
                    store,
                    url=lambda name: devstore.url("bucket/" + quote(name)),
                    put=lambda name, data: devstore.put(f"bucket/{name}", data),
                    devstore=devstore,
                )

        return make

    @asynchronous
    async def test_what_was_not_found_says_why(self) -> None:
        """fsspec's http raises FileNotFoundError for everything."""
        async with DevStore() as devstore, opened("http") as store:
            with pytest.raises(AccessDenied):
                await read(store, devstore.url("bucket/x"), 0, 1)
        async with opened("http") as store:
            with pytest.raises(StoreUnavailable):
                await read(store, "http://127.0.0.1:1/x", 0, 1)


@pytest.mark.night  # by day the store that falls back to it passes the suite
class TestS3(StoreConformance, ListingConformance):
    """The store over s3fs, to which the S3 store falls back."""

    @pytest.fixture
    def backend(self) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with DevStore() as devstore, opened("s3", devstore.storage_options) as store:
                yield Bench(
                    store,
                    url=lambda name: f"s3://bucket/{name}",
                    put=lambda name, data: devstore.put(f"bucket/{name}", data),
                    devstore=devstore,
                )

        return make


class Odd(LocalFileSystem):  # type: ignore[misc]
    """Does what no filesystem should."""

    protocol = "odd"
    told: ClassVar[dict[str, Any]] = {}
    cut: int | None = None
    calls: ClassVar[list[tuple[str, int]]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("odd://")))

    def info(self, path: str, **_: object) -> dict[str, Any]:
        self.calls.append(("info", threading.get_ident()))
        return {**super().info(path), **self.told}

    def ls(self, path: str, detail: bool = False, **_: object) -> list[dict[str, Any]]:
        entries = super().ls(path, detail=True)
        return [{**entry, "ETag": None} for entry in entries]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self.calls.append(("cat_file", threading.get_ident()))
        return bytes(super().cat_file(path, start, end)[: self.cut])


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an object of DATA in a filesystem of its own."""
    fsspec.register_implementation("odd", Odd, clobber=True)
    (tmp_path / "x").write_bytes(DATA)
    Odd.calls = []
    yield f"odd://{tmp_path}/x"
    Odd.told, Odd.cut = {}, None
    import_module("fsspec.registry")._registry.pop("odd")


@asynchronous
async def test_calls_of_a_range(odd: str) -> None:
    async with opened("odd") as store:
        _, info = await read(store, odd, 0, 10)
        assert [name for name, _ in Odd.calls] == ["info", "cat_file", "info"]
        await read(store, odd, 10, 20, etag=info.etag)
        assert [name for name, _ in Odd.calls[3:]] == ["cat_file", "info"]
        await read(store, odd, 0, 0, etag=info.etag)
        assert [name for name, _ in Odd.calls[5:]] == ["info"]
    assert threading.get_ident() not in {thread for _, thread in Odd.calls}


@asynchronous
async def test_pieces(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "PIECE_BYTES", 1000)
    async with opened("odd") as store:
        data, _ = await read(store, odd, 100, 4100)
    assert data == DATA[100:4100]
    assert [name for name, _ in Odd.calls] == ["info", *["cat_file"] * 4, "info"]


@asynchronous
async def test_change_while_a_range_is_read(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "PIECE_BYTES", 1000)
    async with opened("odd") as store, store.open_range(odd, 0, 2000) as body:
        view = memoryview(bytearray(1000))
        assert await filled(body, view) == 1000
        Odd.told = {"ETag": "another"}
        with pytest.raises(ObjectChanged, match="another"):
            await filled(body, view)


@asynchronous
async def test_a_change_explains_a_short_read(odd: str) -> None:
    async with opened("odd") as store, store.open_range(odd, 0, 2000) as body:
        Odd.told, Odd.cut = {"ETag": "another"}, 5
        with pytest.raises(ObjectChanged):
            await filled(body, memoryview(bytearray(10)))


@asynchronous
async def test_short_read(odd: str) -> None:
    Odd.cut = 5
    async with opened("odd") as store:
        with pytest.raises(StoreUnavailable, match="5 bytes early"):
            await read(store, odd, 0, 10)


@asynchronous
async def test_filesystem_without_versions(odd: str) -> None:
    Odd.told = dict.fromkeys(("mtime", "created", "ino"))
    async with opened("odd") as store:
        data, info = await read(store, odd, 0, 10)
        assert (data, info.etag) == (DATA[:10], None)
        with pytest.raises(ObjectChanged, match="without a name"):
            await read(store, odd, 0, 10, etag='"old"')


@asynchronous
async def test_filesystem_without_sizes(odd: str) -> None:
    Odd.told = {"size": None}
    async with opened("odd") as store:
        with pytest.raises(StoreMisbehaved, match="does not report the object's size"):
            await read(store, odd, 0, 10)


@asynchronous
async def test_listings_with_other_versions_than_objects_name_none(odd: str) -> None:
    Odd.told = {"ETag": "only of one"}
    async with opened("odd") as store:
        [info] = [info async for info in store.list(odd)]
    assert info == ObjectInfo(odd, len(DATA))


@asynchronous
async def test_directory(odd: str) -> None:
    async with opened("odd") as store:
        with pytest.raises(StoreError, match="directory"):
            await read(store, odd[:-2], 0, 10)


@asynchronous
async def test_what_is_remembered_has_an_end(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "MAX_KNOWN", 2)
    async with opened("odd") as store:
        for name in ("x", "y", "z"):
            (Path(odd[6:]).parent / name).write_bytes(b"1")
            await read(store, f"{odd[:-1]}{name}", 0, 1)
        assert list(store._known) == [f"{odd[:-1]}{name}" for name in "yz"]


@asynchronous
async def test_shards_in_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("train-0", "train-1", "test-0", "deep/train-2"):
            archive.writestr(name, name * 100)
    stores = Stores()
    head, tail = "zip://", f"::{tmp_path}/a.zip"
    found = await stores.resolve(f"{head}train-*{tail}")
    assert [info.url for info in found] == [f"{head}train-{n}{tail}" for n in (0, 1)]
    found = await stores.resolve(f"{head}**{tail}")
    assert [info.url for info in found] == [
        f"{head}{name}{tail}" for name in ("deep/train-2", "test-0", "train-0", "train-1")
    ]
    store = stores.store_for(found[0].url)
    wanted = found * 8
    answers = await asyncio.gather(
        *(read(store, info.url, 5, 20, etag=info.etag) for info in wanted)
    )
    assert [info.size for _, info in answers] == [info.size for info in wanted]
    assert {len(data) for data, _ in answers} == {15}
    await stores.aclose()


@asynchronous
async def test_filters_before_a_url(memory: MemoryFileSystem, tmp_path: Path) -> None:
    memory.pipe_file("/b/x-1", DATA)
    stores = Stores({"simplecache": {"cache_storage": str(tmp_path)}})
    [info] = await stores.resolve("simplecache::memory://b/x-*")
    assert info.url == "simplecache::memory://b/x-1"
    data, _ = await read(stores.store_for(info.url), info.url, 3, 9)
    assert data == DATA[3:9]
    await stores.aclose()


def test_package_that_is_not_installed() -> None:
    with pytest.raises(ConfigError, match=r"box:// cannot be read here: .*install boxfs"):
        Stores().store_for("box://x/y")


@asynchronous
async def test_options_that_the_filesystem_does_not_take() -> None:
    async with opened("github", {}) as store:
        with pytest.raises(ConfigError, match="github's filesystem refuses them"):
            await read(store, "github://x", 0, 1)
