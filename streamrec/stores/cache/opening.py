"""The making of the cache that the settings name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.config.cache import MEMORY, default_folder
from streamrec.config.memory_budget import memory_share
from streamrec.stores.cache.folder import Folder
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.process_memory import ProcessMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config.cache import CacheSettings

__all__ = ["open_cache"]

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")


def open_cache(settings: CacheSettings, storage_options: Mapping[str, Any]) -> PieceCache:
    """Make a cache; its folder is made when the first piece is kept.

    Args:
        settings: What it keeps, its folder and its size.
        storage_options: The stores' options, of which the endpoint tells apart equal names.
    """
    size = settings.size and int(settings.size)
    endpoint = _endpoint(storage_options)
    if settings.folder == MEMORY:
        size = size or memory_share()
        return PieceCache(ProcessMemory(size), size, endpoint=endpoint)
    folder = default_folder(settings.of) if settings.folder is None else Path(settings.folder)
    return PieceCache(Folder(folder.expanduser()), size, endpoint=endpoint)


def _endpoint(options: Mapping[str, Any]) -> str:
    of_client = options.get("client_kwargs")
    inner = of_client.get("endpoint_url") if isinstance(of_client, dict) else None
    named = options.get("endpoint_url") or inner
    return str(named or next(filter(None, map(os.environ.get, _ENDPOINTS)), ""))
