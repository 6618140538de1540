"""The identity of a map whose results are cached: its code, and all that this reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.pipeline.functions import load

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings

__all__ = ["with_identity"]


def with_identity(settings: DatasetSettings) -> DatasetSettings:
    """Give a cache of what ``map`` makes the key of this map, if it is to have one and has none.

    Raises:
        ConfigError: What the function reads cannot be told, so the cache needs a key.
    """
    cache = settings.cache
    if cache is None or cache.of != "mapped" or cache.key is not None or settings.map is None:
        return settings
    from streamrec.feeder.sent_functions import identity_of  # cloudpickle: few streams need it

    function = load("map", settings.map) if isinstance(settings.map, str) else settings.map
    return settings.model_copy(
        update={"cache": cache.model_copy(update={"key": identity_of(function)})}
    )
