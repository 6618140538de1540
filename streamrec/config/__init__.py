"""Validated configuration: the settings of a stream, under the same names as the daemon's.

Anything wrong raises :class:`~streamrec.errors.ConfigError`.
"""

from streamrec.config.dataset import Compression, DatasetSettings, Pack, StreamSettings
from streamrec.config.validation import Settings, validate

__all__ = ["Compression", "DatasetSettings", "Pack", "Settings", "StreamSettings", "validate"]
