from __future__ import annotations

from streamrec.config import StreamSettings
from streamrec.config.keywords import MixKeywords

POSITIONAL = {"source", "features", "batch_size", "weights"}
"""Settings that are parameters of the functions themselves."""


def test_the_keywords_are_the_settings() -> None:
    assert MixKeywords.__annotations__.keys() == StreamSettings.model_fields.keys() - POSITIONAL
