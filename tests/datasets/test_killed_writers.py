"""Writers are killed at any moment: no object is ever half there, and none is left behind.

tests/README.md has the command for the long form.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.by_day import is_day

if TYPE_CHECKING:
    from pathlib import Path

KILLS = int(os.environ.get("STREAMREC_TEST_KILLS", "2" if is_day() else "20"))
"""Kills of each of the ways to write."""
SEED = os.environ.get("STREAMREC_TEST_SEED", "1")
PROGRAM = "tests.datasets.killed_writers"


def test_killed_and_run_again(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", PROGRAM, str(tmp_path), str(KILLS), SEED]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
