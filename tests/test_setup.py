"""Installing builds the kernel in C, or does without it, as the variable says."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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


def goes_into_a_wheel(name: str) -> bool:
    """Return whether a file of the sources is installed: modules, types, and what they read."""
    path = Path(name)
    if path.is_relative_to("streamrec/datasets/pictures"):
        return True  # with its README, which has the authors and licences
    return path.parts[0] == "streamrec" and path.suffix not in (".c", ".h", ".md")


def test_without_a_compiler_the_twin_is_installed(sources: Path) -> None:
    done = build(sources, **NO_COMPILER, STREAMREC_BUILD_KERNEL="")
    assert done.returncode == 0, done.stderr
    names = contents(sources)
    assert "streamrec/kernel/reference/__init__.py" in names
    assert not [name for name in names if name.endswith(".so")]
    package = [name for name in names if not name.startswith("streamrec-0")]
    assert set(package) == {name for name in copied() if goes_into_a_wheel(name)}


def test_where_the_kernel_is_required_a_failure_is_one(sources: Path) -> None:
    done = build(sources, **NO_COMPILER, STREAMREC_BUILD_KERNEL="require")
    assert done.returncode != 0
    assert not [*(sources / "wheels").glob("*.whl")]


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the next run of setup.py gives to setuptools."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", lambda **named: given.update(named))
    monkeypatch.chdir(ROOT)
    return given


def without_gil(monkeypatch: pytest.MonkeyPatch, disabled: int | None) -> None:
    variables = {"Py_GIL_DISABLED": disabled}
    monkeypatch.setattr(sysconfig, "get_config_var", variables.get)


@pytest.mark.parametrize("disabled", [0, None])
def test_one_extension_for_every_python_with_a_gil(
    disabled: int | None, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gil(monkeypatch, disabled)
    runpy.run_path("setup.py")
    (kernel,) = arguments["ext_modules"]
    assert kernel.py_limited_api
    assert kernel.define_macros == [("Py_LIMITED_API", "0x030b0000")]
    assert arguments["options"] == {"bdist_wheel": {"py_limited_api": "cp311"}}


def test_one_for_each_python_without(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gil(monkeypatch, 1)
    runpy.run_path("setup.py")
    (kernel,) = arguments["ext_modules"]
    assert not kernel.py_limited_api
    assert kernel.define_macros == []
    assert arguments["options"] == {}


@pytest.mark.night
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler is here")
def test_with_a_compiler_a_wheel_has_the_kernel(sources: Path) -> None:
    done = build(sources, STREAMREC_BUILD_KERNEL="require")
    assert done.returncode == 0, done.stderr
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        suffix, tags = sysconfig.get_config_var("EXT_SUFFIX"), "cp3??-cp3??t"
    else:
        suffix, tags = ".abi3.so", "cp311-abi3"
    assert f"streamrec/kernel/_native{suffix}" in contents(sources)
    assert [*(sources / "wheels").glob(f"*-{tags}-*.whl")]
