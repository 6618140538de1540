from __future__ import annotations

import json

import pytest

from bench.machine import ROOT
from bench.pictures import PICTURES, Bar, digest

RESULTS = json.loads((ROOT / "bench/results/pictures.json").read_text())["pictures"]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_from_the_results(name: str) -> None:
    picture = (ROOT / f"docs/images/reading-{name}.svg").read_text()
    bars = [Bar(**bar) for bar in RESULTS[name]]
    assert digest(bars) in picture, "python -m bench.publish draws the pictures"


def test_other_bars_have_another_digest() -> None:
    bars = [Bar("read 1", "body", 0.1, 0.2), Bar("train", "step", 0.2, 0.3)]
    assert len({digest(bars), digest(bars[:1]), digest(bars[::-1])}) == 3
