"""Holds the workflows of GitHub, which nobody runs here: pins, permissions and commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from streamrec import __version__
from tests.pages import ROOT
from tests.test_packaging import PYPROJECT, WHEELS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USE = re.compile(r"^\s*(?:- )?uses: (?!\./)(.*)$", re.MULTILINE)
PINNED = re.compile(r"([\w/-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in read(path.name)["jobs"].items():
            yield f"{path.name}: {name}", job


def commands(name: str) -> str:
    steps = [step for job in read(name)["jobs"].values() for step in job.get("steps", [])]
    return "\n".join(step["run"] for step in steps if "run" in step)


def test_there_is_a_workflow_for_each_purpose() -> None:
    assert {"docs.yml", "release.yml", "tests.yml", "wheels.yml"} <= {
        path.name for path in WORKFLOWS
    }


def test_each_action_is_pinned_to_one_commit() -> None:
    uses = [use for path in WORKFLOWS for use in USE.findall(path.read_text())]
    pins = [PINNED.fullmatch(use) for use in uses]
    assert [use for use, pin in zip(uses, pins, strict=True) if not pin] == []
    by_action = {pin[1]: pin.groups() for pin in pins if pin}
    assert all(by_action[pin[1]] == pin.groups() for pin in pins if pin)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_job_has_permissions_that_it_does_not_name(path: Path) -> None:
    workflow = read(path.name)
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert "permissions" in job
        assert "uses" in job or "timeout-minutes" in job
        for step in job.get("steps", []):
            if "actions/checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_few_jobs_may_write() -> None:
    writers = {
        name: sorted(scope for scope, level in job["permissions"].items() if level == "write")
        for name, job in jobs()
        if "write" in job["permissions"].values()
    }
    assert writers == {
        "docs.yml: site": ["contents"],
        "release.yml: attest": ["attestations", "id-token"],
        "release.yml: publish": ["id-token"],
        "release.yml: announce": ["contents"],
    }


def test_the_tests_are_the_readme_s_on_each_python() -> None:
    declared = {
        line.rpartition(" ")[2]
        for line in PYPROJECT["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    }
    job = read("tests.yml")["jobs"]["tests"]
    assert set(job["strategy"]["matrix"]["python"]) == declared
    readme = (ROOT / "README.md").read_text()
    command = re.search(r"<!-- the test command -->\n```sh\n(.*)\n```", readme)
    assert command
    assert command[1] in commands("tests.yml")


def test_the_checks_are_those_of_ci() -> None:
    check = re.search(
        r"^check\(\) \{\n(.*)\n\}", (ROOT / ".ci/prepare.sh").read_text(), re.MULTILINE
    )
    assert check
    ran = commands("tests.yml")
    for command in check[1].strip().split(" && "):
        assert {"site": "mkdocs build --strict"}.get(command, command) in ran


@pytest.mark.parametrize(
    ("tag", "date", "is_taken"),
    [
        (f"v{__version__}", "2026-11-29", True),
        (f"v{__version__}", "unreleased", False),
        ("v9.9.9", "2026-11-29", False),
        (__version__.replace(".", "x"), "2026-11-29", False),
    ],
)
def test_a_tag_must_be_a_version_with_a_date(
    tag: str, date: str, is_taken: bool, tmp_path: Path
) -> None:
    (tmp_path / "streamrec").mkdir()
    (tmp_path / "streamrec" / "version.py").write_text(f'__version__ = "{__version__}"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{__version__}] - {date}\n")
    (step,) = (step for step in read("release.yml")["jobs"]["version"]["steps"] if "run" in step)
    # As GitHub starts a step.
    command = ["bash", "-e", "-c", step["run"]]
    environment = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": tag}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False)
    assert (done.returncode == 0) == is_taken


def test_wheels_are_built_for_the_processors_of_the_settings() -> None:
    machines = read("wheels.yml")["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    built: dict[str, set[str]] = {"linux": set(), "macos": set()}
    for machine in machines:
        built["macos" if "macos" in machine["runner"] else "linux"].add(machine["arch"])
    assert built == {system: set(WHEELS[system]["archs"]) for system in built}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_never_ran_says_so_in_both_places(path: Path) -> None:
    is_told = path.read_text().startswith("# Never run: ")
    row = re.search(
        rf"^\| `{path.name}` \|.*$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert row, f"CONTRIBUTING.md has no row for {path.name}"
    assert ("never run" in row[0]) == is_told


@pytest.mark.parametrize("command", ["actionlint", "zizmor --offline --quiet --no-progress"])
def test_a_linter_has_no_finding(command: str) -> None:
    linter, *options = command.split()
    if not shutil.which(linter):
        pytest.skip(f"{linter} is not installed")
    done = subprocess.run(
        [linter, *options, *WORKFLOWS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
