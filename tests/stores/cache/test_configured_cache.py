from __future__ import annotations

import asyncio
import os
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from streamrec.config.cache import CacheSettings
from streamrec.config.memory_budget import memory_share
from streamrec.errors import ConfigError
from streamrec.stores.cache.cached_store import CachedStore
from streamrec.stores.cache.configured_cache import open_cache
from streamrec.stores.open import Stores
from tests.support import asynchronous

GIB = 1 << 30


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"folder": "/x"}, "<PieceCache of None bytes in <CacheFolder /x>>"),
        (
            {"folder": "~/x", "size": GIB},
            f"<PieceCache of {GIB} bytes in <CacheFolder /home/me/x>>",
        ),
        ({}, "<PieceCache of None bytes in <CacheFolder /caches/streamrec/ranges>>"),
        (
            {"of": "batches"},
            "<PieceCache of None bytes in <CacheFolder /caches/streamrec/batches>>",
        ),
        (
            {"folder": "memory", "size": GIB},
            f"<PieceCache of {GIB} bytes in <ProcessMemory of {GIB} bytes>>",
        ),
    ],
)
def test_folders_and_sizes(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], shown: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert repr(open_cache(CacheSettings(**settings), {})) == shown


@pytest.mark.parametrize(("owner", "is_taken"), [(0, True), (77, True), (78, False)])
@pytest.mark.parametrize("of", ["ranges", "batches"])
def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, is_taken: bool, of: str
) -> None:
    """Who may write there could change what is read; the CRC of a piece is no secret."""
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    real, facts = Path.stat, list(tmp_path.stat())
    facts[stat.ST_UID] = owner
    found = os.stat_result(facts)
    monkeypatch.setattr(Path, "stat", lambda path: found if path == tmp_path else real(path))
    values: dict[str, Any] = {"folder": str(tmp_path), "size": GIB, "of": of}
    with nullcontext() if is_taken else pytest.raises(ConfigError, match="another user"):
        open_cache(CacheSettings(**values), {})


def test_memory_without_a_size_is_a_quarter_of_the_machines() -> None:
    assert f"of {memory_share()} bytes" in repr(open_cache(CacheSettings(folder="memory"), {}))


def test_equal_names_at_another_endpoint_are_other_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    settings = CacheSettings(folder="/x")
    options: list[dict[str, Any]] = [
        {},
        {"endpoint_url": "http://one"},
        {"client_kwargs": {"endpoint_url": "http://two"}},
    ]

    def key(options: dict[str, Any]) -> str:
        cache = open_cache(settings, options)
        assert cache
        return cache.key_of("s3://bucket/x", "1")

    keys = [key(each) for each in options]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://three")
    keys.append(key({}))
    assert len(set(keys)) == 4
    assert key({"anon": True}) == keys[-1]


@asynchronous
async def test_remote_stores_alone_are_cached(tmp_path: Path) -> None:
    stores = await asyncio.to_thread(Stores, cache=CacheSettings(folder=str(tmp_path / "cache")))
    assert isinstance(stores.store_for("https://host/x"), CachedStore)
    assert stores.store_for("https://host/y") is stores.store_for("https://host/x")
    for local in ("/data/x", "file:///data/x", "memory://x"):
        assert not isinstance(stores.store_for(local), CachedStore)
    await stores.aclose()
    assert not (tmp_path / "cache").exists()


@asynchronous
async def test_a_cache_of_batches_is_in_front_of_no_store(tmp_path: Path) -> None:
    stores = await asyncio.to_thread(
        Stores, cache=CacheSettings(of="batches", folder=str(tmp_path / "cache"))
    )
    assert stores.cache is not None
    assert not isinstance(stores.store_for("https://host/x"), CachedStore)
    await stores.aclose()
