"""Ways to decode packed lists, and the table of docs/explanation/kernel.md."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from bench.machine import ROOT
from bench.varints.library import check, compiled, default_compiler

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("1 byte", "tokens, uniform, 2-3 bytes", "negative, 10 bytes")
"""The lists whose figures the page has."""


@pytest.mark.skipif(not shutil.which(default_compiler()), reason="no C compiler is here")
def test_all_ways_agree_between_guard_pages(tmp_path: Path) -> None:
    able, unable = compiled(tmp_path, default_compiler())
    assert check(able, 200) > 0
    names = {decoder.name for decoder in able}
    assert {"scalar", "kernel: words"} <= names
    assert {"kernel: avx2", "kernel: vbmi2"} <= names | set(unable)


def test_the_page_says_what_was_measured() -> None:
    results = json.loads((ROOT / "bench/results/varints.json").read_text())
    measured = results["nanoseconds_per_value"]
    page = (ROOT / "docs/explanation/kernel.md").read_text()
    for way in ("words", "avx2", "vbmi2"):
        figures = " | ".join(f"{measured[f'kernel: {way}'][kind]:.2f}" for kind in KINDS)
        assert re.search(rf"^\| `{way}` \| .* \| {re.escape(figures)} \|$", page, re.MULTILINE)
