from __future__ import annotations

import pydoc

import streamrec as sr
from streamrec.config import StreamSettings
from streamrec.config.meanings import meanings


def test_every_setting_has_a_meaning() -> None:
    assert set(meanings(StreamSettings)) == set(StreamSettings.model_fields)


def test_help_lists_each_setting_with_its_default() -> None:
    said = pydoc.plain(pydoc.render_doc(sr.open))
    for name, field in StreamSettings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        named = name in {"source", "features", "batch_size", "weights", "exhausted"}
        assert named or f"{name} = {default!r}: " in said
    assert "seed = 0: The seed of all that is random" in said
