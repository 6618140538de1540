"""Installing builds the kernel in C, or does without it, as the variable says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.deploy.dockerfile import copied

ROOT = Path(__file__).parents[1]
NO_COMPILER = {"CC": "false", "CXX": "false"}


def setuptools_is_new() -> bool:
    try:
        return int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not setuptools_is_new(), reason="setuptools is not installed in the version that builds"
)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Copy the files that a build reads, the image's too, to a place for its own files."""
    copy = tmp_path / "sources"
    for name in copied():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(sources: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q"]
    return subprocess.run(
        [*command, "--wheel-dir", str(sources / "wheels"), str(sources)],
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
    )


def contents(sources: Path) -> list[str]:
    (wheel,) = (sources / "wheels").glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_without_a_compiler_the_twin_is_installed(sources: Path) -> None:
    done = build(sources, **NO_COMPILER, STREAMREC_BUILD_KERNEL="")
    assert done.returncode == 0, done.stderr
    names = contents(sources)
    assert "streamrec/kernel/reference/__init__.py" in names
    assert not [name for name in names if name.endswith(".so")]
    pages = [name for name in copied() if Path(name).suffix in (".css", ".html", ".js")]
    assert len(pages) >= 8
    assert set(map(str, pages)) <= set(names)


def test_where_the_kernel_is_required_a_failure_is_one(sources: Path) -> None:
    done = build(sources, **NO_COMPILER, STREAMREC_BUILD_KERNEL="require")
    assert done.returncode != 0
    assert not [*(sources / "wheels").glob("*.whl")]


@pytest.mark.night
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler is here")
def test_with_a_compiler_one_wheel_serves_every_python(sources: Path) -> None:
    done = build(sources, STREAMREC_BUILD_KERNEL="require")
    assert done.returncode == 0, done.stderr
    assert "streamrec/kernel/_native.abi3.so" in contents(sources)
    assert [wheel.name for wheel in (sources / "wheels").glob("*-cp311-abi3-*.whl")]
