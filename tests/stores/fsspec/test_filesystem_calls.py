from __future__ import annotations

import asyncio
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from streamrec.errors import ConfigError
from streamrec.stores.base.source_text import split_chain
from streamrec.stores.fsspec.filesystem_calls import FilesystemCalls, filesystem_class
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator

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
