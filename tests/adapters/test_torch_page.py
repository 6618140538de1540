"""The code of the page about PyTorch runs, where PyTorch is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.pages import DOCS, blocks
from tests.test_docs import run, runs

if TYPE_CHECKING:
    from pathlib import Path

PAGE = DOCS / "how-to" / "train-with-pytorch.md"


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_page_runs(tmp_path: Path) -> None:
    code = [block.body for block in blocks(PAGE) if runs(block) or block.info == "python torch"]
    script = tmp_path / "page.py"
    script.write_text("\n".join(code))
    work = tmp_path / "work"
    work.mkdir()
    assert run([str(script)], work) == ""
