"""The identity of the user's functions: their code, and all that this reads."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from streamrec.pipeline.batch.functions import SETTINGS, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.served import Served


def with_identity(settings: DatasetSettings) -> DatasetSettings:
    """Give a cache of what ``map`` makes the key of this map, if it is to have one and has none.

    Raises:
        ConfigError: What the function reads cannot be told, so the cache needs a key.
    """
    cache, function = settings.cache, settings.map
    if cache is None or function is None or not _lacks_identity(settings):
        return settings
    from streamrec.feeder.functions.sent_functions import (
        identity_of,  # cloudpickle: few streams need it
    )

    key = identity_of(_function("map", function))
    return settings.model_copy(update={"cache": cache.model_copy(update={"key": key})})


async def identify(settings: DatasetSettings) -> DatasetSettings:
    """Do the same as :func:`with_identity`, in a thread: it looks for the function's package."""
    if not _lacks_identity(settings):
        return settings
    return await asyncio.to_thread(with_identity, settings)


def _lacks_identity(settings: DatasetSettings) -> bool:
    cache = settings.cache
    is_of_maps = cache is not None and cache.of == "mapped" and cache.key is None
    return is_of_maps and settings.map is not None


class Codes:
    """The digests of the functions of a feeder's datasets, each made once, beside the loop."""

    def __init__(self) -> None:
        self._digests: WeakKeyDictionary[Served, asyncio.Task[dict[str, str]]] = WeakKeyDictionary()

    async def of(self, dataset: Served) -> dict[str, str]:
        """Return those of a dataset; see :func:`codes_of`."""
        settings = dataset.settings
        if all(getattr(settings, name) is None for name in SETTINGS):
            return {}
        # Once for each dataset: to look up its function's package takes up to a second.
        if dataset not in self._digests:
            making = asyncio.to_thread(codes_of, settings)
            self._digests[dataset] = asyncio.create_task(making, name="streamrec-codes")
        # A task would be cancelled with the client that waits for it.
        return await asyncio.shield(self._digests[dataset])


def codes_of(settings: DatasetSettings) -> dict[str, str]:
    """Return digests of the functions that can be told, by the names that WELCOME gives them.

    Each Python has another code for the same text, so its version is in the names.
    """
    from streamrec.feeder.functions.sent_functions import (
        code_of,  # cloudpickle: few feeders need it
    )

    functions = {name: getattr(settings, name) for name in SETTINGS}
    codes = {
        name: code_of(_function(name, one)) for name, one in functions.items() if one is not None
    }
    python = ".".join(map(str, sys.version_info[:2]))
    return {
        f"code of {name} in Python {python}": code
        for name, code in codes.items()
        if code is not None
    }


def _function(setting: str, function: Callable[..., Any] | str) -> Callable[..., Any]:
    return load(setting, function) if isinstance(function, str) else function
