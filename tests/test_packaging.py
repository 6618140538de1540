"""Holds what a release is made of: the sdist, the wheels, and the version."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

import streamrec
from tests.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEELS: dict[str, Any] = PYPROJECT["tool"]["cibuildwheel"]
OF_ITSELF = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
"""What setuptools adds to each sdist."""


def listed_by_git(*options: str) -> set[str]:
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", *options],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return {name for name in names.stdout.decode().split("\0") if (ROOT / name).is_file()}


@pytest.mark.skipif(
    not ((ROOT / ".git").exists() and shutil.which("git")), reason="this is not a checkout of git"
)
def test_an_sdist_holds_what_git_tracks(monkeypatch: pytest.MonkeyPatch) -> None:
    egg_info = pytest.importorskip("setuptools.command.egg_info")
    monkeypatch.chdir(ROOT)
    files = egg_info.FileList()
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        if not line.startswith("#"):
            files.process_template_line(line)
    tracked, new = listed_by_git(), listed_by_git("--others", "--exclude-standard")
    assert tracked - {*files.files, *OF_ITSELF} == set()
    assert {*files.files} - tracked - new == set()


def test_the_version_has_one_place() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "streamrec.version.__version__"
    }
    assert re.fullmatch(r"\d+\.\d+\.\d+", streamrec.__version__)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("CHANGELOG.md", r"^## \[([\d.]+)\]"),
        ("deploy/kubernetes/base/kustomization.yaml", r"newTag: (\S+)"),
        ("deploy/kubernetes/sidecar/kustomization.yaml", r"newTag: (\S+)"),
        ("deploy/kubernetes/jobs/jobset.yaml", r"streamrec:(\S+)"),
        ("deploy/helm/streamrec/Chart.yaml", r"appVersion: (\S+)"),
        ("deploy/helm/streamrec/Chart.yaml", r"^version: (\S+)"),
    ],
)
def test_who_names_the_version_names_this_one(name: str, pattern: str) -> None:
    found = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
    assert found
    assert found[1] == streamrec.__version__


def test_wheels_are_built_for_each_python_that_is_declared() -> None:
    declared = {
        "cp" + line.rpartition(" ")[2].replace(".", "") + "-*"
        for line in PYPROJECT["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    }
    assert {build for build in WHEELS["build"] if not build.endswith("t-*")} == declared
    assert "cp314t-*" in WHEELS["build"]
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"
    assert min(declared) == "cp311-*"  # whose limited API setup.py takes


def test_wheels_are_built_for_both_processors_and_need_the_kernel() -> None:
    assert WHEELS["linux"]["archs"] == ["x86_64", "aarch64"]
    assert not without_musl(WHEELS.get("skip", []))
    assert WHEELS["environment"] == {"STREAMREC_BUILD_KERNEL": "require"}
    assert WHEELS["test-environment"] == {"STREAMREC_KERNEL": "native"}
    assert WHEELS["test-command"] == "streamrec demo"


def without_musl(skipped: Iterable[str]) -> bool:
    return any("musl" in pattern for pattern in skipped)


def test_what_is_installed_without_gcsfs_is_all_else_that_the_project_needs() -> None:
    text = (ROOT / "docs" / "install.md").read_text().replace("\\\n", " ")
    named = [
        name
        for line in re.findall(r"^pip install (.*)$", text, re.MULTILINE)
        for name in line.split()
    ]
    needed = {
        re.split(r"[^\w.-]", line)[0]
        for line in PYPROJECT["project"]["dependencies"]
        if "python_version < '3.14'" not in line
    }
    come_along = {"botocore", "pydantic-core"}  # in the version that aiobotocore and pydantic say
    assert needed - come_along - {"gcsfs"} <= set(named)
    assert "gcsfs" not in named
