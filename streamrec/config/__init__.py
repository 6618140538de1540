"""Validated configuration: the settings of a stream, under the same names as the daemon's.

The daemon's own are in `config.daemon`, which a program that only streams never imports.

Settings are plain values (JSON-able), so that they can be sent to the engine process, written in
TOML and compared. Anything wrong raises :class:`~streamrec.errors.ConfigError`.
"""

from streamrec.config.dataset import Compression, DatasetSettings, Pack, StreamSettings
from streamrec.config.validation import Settings, validate

__all__ = ["Compression", "DatasetSettings", "Pack", "Settings", "StreamSettings", "validate"]
