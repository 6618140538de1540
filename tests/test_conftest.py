from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.test_skips import run

if TYPE_CHECKING:
    from pathlib import Path

HANGS = """
import threading
from hypothesis import given, strategies

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
    done = run(path, "--timeout", "1", *options, skips="")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PropertyHangs: it has taken more than 1 s" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
