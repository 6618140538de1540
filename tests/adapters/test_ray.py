"""Ray Data, in processes of its own; with_ray.py and ray_nodes.py are what they run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 250
"""Seconds for a program, on a machine that has much else to do."""

# By day Ray is not installed where changes are tested: it takes 0.5 GB, and a minute of the cores.
pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.timeout(PATIENCE + 10),
    pytest.mark.xdist_group("ray"),
]


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("start", [1, 2, 3])
def test_a_node_is_killed(start: int, tmp_path: Path) -> None:
    run("tests.adapters.ray_nodes", str(tmp_path), str(start))


def test_a_node_is_killed_while_a_command_writes(tmp_path: Path) -> None:
    run("tests.adapters.ray_command", str(tmp_path))


@pytest.mark.parametrize("tests", ["with_ray.py", "with_ray_feeders.py"])
def test_the_tests_in_a_cluster_pass(tests: str) -> None:
    run("pytest", "-q", "-p", "no:cacheprovider", f"tests/adapters/{tests}")
