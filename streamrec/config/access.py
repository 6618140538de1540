"""The settings of a dataset that a feeder serves, with those that say who may read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.config.dataset import DatasetSettings

if TYPE_CHECKING:
    from streamrec.config.validation import NonEmpty

_NO_FILES: list[str] = []


class ServedSettings(DatasetSettings):
    """The settings of a dataset that a feeder serves."""

    tokens: list[NonEmpty] = _NO_FILES
    """Files of tokens that open this dataset alone."""
