"""The settings that say who may read: certificates and files of tokens."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from streamrec.config.dataset import DatasetSettings
from streamrec.config.validation import Settings

_Path: TypeAlias = Annotated[str, Field(min_length=1)]

TokenFiles: TypeAlias = list[_Path]
"""The paths of files with a token a line."""
_NO_FILES: TokenFiles = []


class TlsSettings(Settings):
    """The PEM files of ``tls://`` addresses; they are read again when they change."""

    cert: _Path
    """The feeder's certificate, with the intermediate ones behind it."""
    key: _Path | None = None
    """Its private key; ``None``: it is in ``cert``."""
    client_ca: _Path | None = None
    """The authorities that sign clients' certificates; ``None``: clients need none."""


class ServedSettings(DatasetSettings):
    """The settings of a dataset that a feeder serves."""

    tokens: TokenFiles = _NO_FILES
    """Files of tokens that open this dataset alone."""
