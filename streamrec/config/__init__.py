"""Validated configuration: the settings of a stream, under the same names as the daemon's.

Anything wrong raises :class:`~streamrec.errors.ConfigError`.
"""

from streamrec.config.dataset import Compression, DatasetSettings, StreamSettings
from streamrec.config.lazy_settings import validate
from streamrec.config.record_choice import Balance, Pack, Window

__all__ = [
    "Balance",
    "Compression",
    "DatasetSettings",
    "Pack",
    "StreamSettings",
    "Window",
    "validate",
]
