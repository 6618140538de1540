from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from tests import conftest
from tests.test_skips import run

if TYPE_CHECKING:
    from pathlib import Path

HANGS = """
import threading
import pytest
from hypothesis import given, strategies

def test_before_it():
    \"\"\"It takes as long as it likes to set up what the session needs.\"\"\"

@pytest.mark.timeout(1)
@given(strategies.integers())
def test_that_hangs(number):
    threading.Event().wait()

def test_behind_it():
    pass
"""


@pytest.mark.parametrize(
    "options", [(), ("-n", "1", "--dist", "loadgroup")], ids=["alone", "worker"]
)
def test_a_property_that_hangs_is_ended(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(HANGS)
    done = run(path, *options, skips="")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PropertyHangs: it has taken more than 1 s" in done.stdout
    assert "1 failed, 2 passed" in done.stdout


@pytest.mark.parametrize(("few", "freezes"), [(0, True), (1 << 20, False)])
def test_what_tests_import_is_taken_out_of_collections(
    few: int, freezes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "FEW_MODULES", few)
    made: list[list[int]] = [[] for _ in range(1000)]
    before = gc.get_freeze_count()
    conftest.pytest_runtest_logfinish()
    assert (gc.get_freeze_count() >= before + len(made)) == freezes
