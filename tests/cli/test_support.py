from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cli.support import started


def test_what_still_runs_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired), started("--version") as process:
        process.wait(0)
    assert process.returncode == -signal.SIGKILL
