from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.by_day import each_once
from tests.skips import KNOWN, is_known

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

pytest.importorskip("os")

def test_that_passes():
    pass

def test_that_is_skipped():
    pytest.skip({reason!r})
"""
MODULE = "import pytest; pytest.importorskip('nothing_of_this_name', reason={reason!r})"


def run(path: Path, *options: str, skips: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a file with the settings of this repository."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml")]
    return subprocess.run(
        [*command, "-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(path)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "STREAMREC_TEST_SKIPS": skips},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(("text", "options"), each_once([TESTS, MODULE], [(), ("-n", "1")]))
def test_an_unknown_reason_fails_the_run(
    tmp_path: Path, text: str, options: tuple[str, ...]
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text.format(reason="the moon is full"))
    done = run(path, *options, skips="known")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the moon is full" in done.stdout
    assert run(path, *options, skips="").returncode in (0, 5)


def test_a_known_reason_does_not(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(TESTS.format(reason="there is no CUDA device"))
    assert run(path, skips="known").returncode == 0


def test_each_pattern_is_a_whole_reason() -> None:
    assert is_known("Skipped: Ray is not installed")
    assert not is_known("Skipped: Ray is not installed, nor anything else")
    assert all(KNOWN.values())
