from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

from streamrec.flow.child_start import start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import gc, sys
imported = gc.isenabled()
seen = []
def main():
    seen[:] = [imported, gc.isenabled(), gc.get_freeze_count() > 0, sys.argv]
"""


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_a_module_is_imported_without_the_collector_and_run_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program_to_start.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["child_start", "program_to_start", "7"])
    start()
    assert sys.modules.pop("program_to_start").seen == [False, True, True, ["child_start", "7"]]
