from __future__ import annotations

from pathlib import Path

import pytest

import streamrec
from streamrec.suggestions import close_names, did_you_mean, nearest

KNOWN = ("shuffle", "shuffle_window", "batch_size")


def test_the_closest_name_is_first() -> None:
    assert close_names("shufle", KNOWN) == ["shuffle"]
    assert close_names("shuffle_windw", KNOWN, most=2) == ["shuffle_window", "shuffle"]
    assert close_names("s4", ["s3"]) == []
    assert close_names("s4", ["s3"], cutoff=0.5) == ["s3"]


@pytest.mark.parametrize(
    ("name", "meant", "hint"),
    [
        ("batchsize", None, "did you mean 'batch_size'?"),
        ("lanes", None, "leave it out"),
        ("lanes", "batch_size", "did you mean 'batch_size'?"),
    ],
)
def test_a_hint_is_a_question_or_another_hint(name: str, meant: str | None, hint: str) -> None:
    assert did_you_mean(name, iter(KNOWN), meant=meant) == hint


def test_half_a_sentence_has_the_name_or_all_of_them() -> None:
    assert nearest("batchsize", KNOWN) == "; did you mean 'batch_size'?"
    assert nearest("lanes", KNOWN) == "; there are batch_size, shuffle, shuffle_window"


def test_nothing_else_looks_for_close_names() -> None:
    root = Path(streamrec.__file__).parent
    looking = {path.name for path in root.rglob("*.py") if "difflib" in path.read_text()}
    assert looking == {"suggestions.py"}
