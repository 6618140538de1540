"""Validated configuration: the settings of a stream and of the daemon, under the same names.

Settings are plain values (JSON-able), so that they can be sent to the engine process, written in
TOML and compared. Anything wrong raises :class:`~streamrec.errors.ConfigError`.
"""

from streamrec.config.daemon import DaemonSettings, load_daemon
from streamrec.config.dataset import Compression, DatasetSettings, StreamSettings
from streamrec.config.pack import Pack
from streamrec.config.validation import Settings, validate

__all__ = [
    "Compression",
    "DaemonSettings",
    "DatasetSettings",
    "Pack",
    "Settings",
    "StreamSettings",
    "load_daemon",
    "validate",
]
