"""Holds what a contributor types: the recipes, the hooks, and the versions of the environment."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.pages import ROOT
from tests.test_docs import section
from tests.test_maps import cells, code
from tests.test_packaging import PYPROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
RECIPE = re.compile(r"^([a-z-]+)(?: \*\w+(?:=\"(.*)\")?)?:\n((?:    .+\n)+)", re.MULTILINE)
RECIPES = {
    name: [
        line.strip()
        for line in re.sub(r" ?\{\{.*?\}\}", f" {default}" if default else "", body).splitlines()
    ]
    for name, default, body in RECIPE.findall((ROOT / "justfile").read_text())
}
"""The commands of each recipe, with the arguments that it has by default."""
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
OF_PEOPLE = ("dev", "deploy", "docs", "release")
TOOLS = {"python3", "pip", "rm", "streamrec"} | {
    Requirement(line).name for extra in OF_PEOPLE for line in EXTRAS[extra]
}


def test_there_are_the_ten_recipes() -> None:
    assert set(RECIPES) == {
        "bench", "ci", "demo", "docs", "lint", "release-check", "setup", "test", "test-fast",
        "types",
    }  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_s_commands_exist(recipe: str) -> None:
    for command in RECIPES[recipe]:
        words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
        if words[0] == "python":
            assert words[1] == "-m"
            place = ROOT / words[2].replace(".", "/")
            is_ours = place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
            assert is_ours or words[2] in TOOLS
        elif "/" in words[0]:
            assert (ROOT / words[0]).stat().st_mode & 0o100
        else:
            assert words[0] in TOOLS


def test_contributing_has_the_same_commands() -> None:
    table = cells(section(CONTRIBUTING, "## Setting up"))
    told = {code(first)[0].removeprefix("just "): code(rest) for first, rest in table[1:]}
    assert set(told) == set(RECIPES)
    for recipe, commands in RECIPES.items():
        if recipe != "setup":
            assert [command for command in commands if command not in told[recipe]] in (
                [],
                ["rm -rf dist"],
            )


def test_the_environment_is_that_of_contributing() -> None:
    text = section(CONTRIBUTING, "## Setting up")
    (install,) = re.findall(r"^pip install .*$", text, re.MULTILINE)
    assert any(command.endswith(install) for command in RECIPES["setup"])
    assert install.endswith(f"-e '.[{','.join(OF_PEOPLE)}]'")


def constraints() -> Iterator[tuple[str, str]]:
    """Yield each package and its version; some have two, for different Pythons."""
    for line in (ROOT / "constraints-dev.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            one = Requirement(line)
            (specifier,) = one.specifier
            assert specifier.operator == "=="
            yield canonicalize_name(one.name), specifier.version


def requirements(lines: list[str]) -> Iterator[Requirement]:
    for line in lines:
        one = Requirement(line)
        if one.name == "streamrec":
            yield from requirements([each for extra in one.extras for each in EXTRAS[extra]])
        else:
            yield one


def test_the_versions_of_the_environment_are_those_that_the_project_takes() -> None:
    versions = list(constraints())
    lines = [*PYPROJECT["project"]["dependencies"], *(f"streamrec[{name}]" for name in OF_PEOPLE)]
    for one in requirements(lines):
        fitting = [version for name, version in versions if name == canonicalize_name(one.name)]
        assert fitting, f"constraints-dev.txt lacks {one.name}"
        assert all(version in one.specifier for version in fitting), one


def test_nothing_is_fetched_from_a_place_that_is_named() -> None:
    for name in ("constraints-dev.txt", ".pre-commit-config.yaml", "justfile"):
        assert "://" not in (ROOT / name).read_text()


def test_hooks_run_tools_of_the_environment() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    for hook in local["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].split()[0] in TOOLS


def test_just_reads_the_recipes() -> None:
    just = shutil.which("just")
    if not just:
        pytest.skip("just is not installed")
    done = subprocess.run(
        [just, "--justfile", str(ROOT / "justfile"), "--summary"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == set(RECIPES)
