"""Validated configuration: the settings of a stream and of the daemon, under the same names.

Settings are plain values (JSON-able), so that they can be sent to the engine process, written in
TOML and compared. Anything wrong raises :class:`~streamrec.errors.ConfigError`.
"""

from streamrec.config.cache import MEMORY, CacheSettings, default_folder
from streamrec.config.daemon import DaemonSettings, load_daemon
from streamrec.config.dataset import (
    DEFAULT_LANES,
    FEWEST_OPEN_SHARDS,
    MIB,
    MOST_OPEN_SHARDS,
    WINDOW_A_SHARD,
    Compression,
    DatasetSettings,
    Function,
    StreamSettings,
    compression_name,
    ends,
)
from streamrec.config.pack import Pack
from streamrec.config.validation import Settings, byte_size, validate

__all__ = [
    "DEFAULT_LANES",
    "FEWEST_OPEN_SHARDS",
    "MEMORY",
    "MIB",
    "MOST_OPEN_SHARDS",
    "WINDOW_A_SHARD",
    "CacheSettings",
    "Compression",
    "DaemonSettings",
    "DatasetSettings",
    "Function",
    "Pack",
    "Settings",
    "StreamSettings",
    "byte_size",
    "compression_name",
    "default_folder",
    "ends",
    "load_daemon",
    "validate",
]
