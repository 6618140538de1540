"""Keras on each of its backends, in a process of its own; with_keras.py is what it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.by_day import at_night, is_day

ROOT = Path(__file__).parents[2]
PATIENCE = 250
"""Seconds for a program, on a machine that has much else to do."""
FEW = "learns or padding or no_copy or unknown or next_run[5-None] or two_ends or killed and 7-2"
"""What runs by day, as each model's step is compiled for a second."""

pytestmark = [
    pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed"),
    pytest.mark.timeout(PATIENCE + 10),
    pytest.mark.xdist_group("tensorflow"),
]


@pytest.mark.parametrize("backend", [at_night("jax"), "tensorflow", at_night("torch")])
def test_the_tests_on_a_backend_pass(backend: str) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    variables = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/adapters/with_keras.py"]
    if is_day():
        command += ["-k", FEW]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
