"""Each reason for which the kernel in C does not run, and what is said to do about it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from streamrec.kernel import choice
from streamrec.kernel.choice import explain

if TYPE_CHECKING:
    from pathlib import Path

ERROR = ImportError("undefined symbol: PyOdd")


@pytest.fixture(autouse=True)
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    monkeypatch.setenv("CC", sys.executable)  # a program that is here


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -pthread")


def package(root: Path, *, clone: bool = False, built: bool = False) -> Path:
    (root / "streamrec" / "kernel").mkdir(parents=True)
    if clone:
        (root / "setup.py").touch()
    if built:
        (root / "streamrec" / "kernel" / "_native.abi3.so").touch()
    return root / "streamrec"


def test_a_clone_hides_the_installed_package(tmp_path: Path) -> None:
    clone = package(tmp_path / "clone", clone=True)
    installed = package(tmp_path / "site", built=True)
    said = explain(ERROR, clone, [str(tmp_path / "clone"), str(tmp_path / "site")])
    assert said.reason == (
        f"is not beside the sources at {clone}, which Python found before the package at "
        f"{installed}, which has it"
    )
    assert said.remedy == (
        f"leave {tmp_path}/clone (or take it off PYTHONPATH), or run `pip install -e .` there"
    )


def test_a_clone_in_the_working_directory_is_no_other_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = package(tmp_path, clone=True, built=True)
    monkeypatch.chdir(tmp_path)
    assert explain(ERROR, clone, ["", "."]).reason == f"was not built beside the sources at {clone}"


def test_a_clone_in_which_nothing_was_built(tmp_path: Path) -> None:
    clone = package(tmp_path, clone=True)
    package(tmp_path / "site")  # it has none either
    said = explain(ERROR, clone, [str(tmp_path), str(tmp_path / "site")])
    assert said.reason == f"was not built beside the sources at {clone}"
    assert said.remedy == f"run `pip install -e .` in {tmp_path}"


@pytest.mark.usefixtures("no_compiler")
def test_a_clone_without_a_compiler(tmp_path: Path) -> None:
    said = explain(ERROR, package(tmp_path, clone=True), [])
    assert said.remedy == (
        f"install a C compiler, gcc or clang; then run `pip install -e .` in {tmp_path}"
    )


@pytest.mark.usefixtures("no_compiler")
def test_an_installation_without_a_compiler(tmp_path: Path) -> None:
    installed = package(tmp_path)
    said = explain(ERROR, installed, [str(tmp_path)])
    assert said.reason == f"was not built when streamrec was installed at {installed}"
    assert said.remedy == (
        "install a C compiler, gcc or clang; then install streamrec again, with pip's "
        "--force-reinstall and --no-cache-dir"
    )


def test_an_installation_where_a_compiler_came_later(tmp_path: Path) -> None:
    said = explain(ERROR, package(tmp_path), [str(tmp_path)])
    assert said.remedy.startswith("install streamrec again, with pip's --force-reinstall")


def test_what_was_built_and_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    said = explain(ERROR, package(tmp_path, clone=True, built=True), [])
    assert said.reason == "cannot be loaded (undefined symbol: PyOdd)"
    assert said.remedy == f"run `pip install -e .` in {tmp_path}"


def test_the_package_that_runs_is_the_one_that_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choice.PACKAGE.name == "streamrec"
    monkeypatch.setattr(sys, "path", [])
    assert str(choice.PACKAGE) in explain(ERROR).reason
