"""Each break has a text to change; whether its check turns red takes minutes."""

from __future__ import annotations

from tests.break_checks import BREAKS
from tests.test_layers import ROOT


def test_each_break_finds_its_text() -> None:
    trees = {broken: (ROOT.parent / broken.path).read_text() for broken in BREAKS}
    assert [broken for broken, text in trees.items() if broken.before not in text] == []
