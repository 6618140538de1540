"""The making of the cache that the settings name."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamrec.config.cache import MEMORY, default_folder
from streamrec.config.memory_budget import memory_share
from streamrec.errors import ConfigError
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.shelves import CacheFolder, ProcessMemory
from streamrec.surroundings import expand_user

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from streamrec.config.cache import CacheSettings

_log = logging.getLogger("streamrec.cache")

# As the AWS SDK looks: the variable for S3 alone comes before the common one.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")


def open_cache(settings: CacheSettings, storage_options: Mapping[str, Any]) -> PieceCache | None:
    """Make a cache; its folder is made when the first piece is kept.

    Returns ``None``, with a warning, if the settings name no folder and the user has no home.

    Args:
        settings: What it keeps, its folder and its size.
        storage_options: The stores' options, of which the endpoint tells apart equal names.

    Raises:
        ConfigError: The folder belongs to another user.
    """
    size = settings.size and int(settings.size)
    endpoint = _endpoint(storage_options)
    if settings.folder == MEMORY:
        size = size or memory_share()
        return PieceCache(ProcessMemory(size), size, endpoint=endpoint)
    named = settings.folder
    folder = default_folder(settings.of) if named is None else expand_user(named)
    if folder is None:
        _log.warning(
            "nothing is cached, since this user has no home directory; set XDG_CACHE_HOME, or set "
            "cache to a folder"
        )
        return None
    _check_owner(folder)
    return PieceCache(CacheFolder(folder), size, endpoint=endpoint)


def _check_owner(folder: Path) -> None:
    """Check that nobody else could have put pieces into the folder; root may prepare one."""
    with suppress(OSError):
        if (owner := folder.stat().st_uid) not in (os.geteuid(), 0):
            raise ConfigError(
                f"cache: the folder {folder} belongs to another user ({owner}), who could change "
                "what is read; name a folder of your own"
            )


def _endpoint(options: Mapping[str, Any]) -> str:
    of_client = options.get("client_kwargs")
    inner = of_client.get("endpoint_url") if isinstance(of_client, dict) else None
    named = options.get("endpoint_url") or inner
    return str(named or next(filter(None, map(os.environ.get, _ENDPOINTS)), ""))
