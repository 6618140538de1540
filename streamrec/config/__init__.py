"""Validated configuration: the settings of a stream, under the same names as the daemon's.

Anything wrong raises :class:`~streamrec.errors.ConfigError`.
"""

from streamrec.config.dataset import Compression, DatasetSettings, Pack, StreamSettings
from streamrec.config.episodes import Episodes
from streamrec.config.lazy_settings import validate

__all__ = ["Compression", "DatasetSettings", "Episodes", "Pack", "StreamSettings", "validate"]
