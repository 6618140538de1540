"""Holds the files that others read about the project: by their schemas, and against each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import streamrec
from tests.pages import ROOT
from tests.test_packaging import PYPROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator

GITHUB = ROOT / ".github"
SCHEMAS = {
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.github-issue-forms": [
        path
        for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
        if path.name != "config.yml"
    ],
    "vendor.github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
}
CITATION = yaml.load((ROOT / "CITATION.cff").read_text(), yaml.BaseLoader)
RECIPE = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text())


@pytest.mark.parametrize("schema", SCHEMAS)
def test_it_fits_its_schema(schema: str) -> None:
    schemas = pytest.importorskip(
        "check_jsonschema.builtin_schemas", reason="check-jsonschema is not installed"
    )
    validators = pytest.importorskip("jsonschema.validators")
    described = schemas.get_builtin_schema(schema)
    validator = validators.validator_for(described)(described)
    assert SCHEMAS[schema]
    for path in SCHEMAS[schema]:
        # Dates stay texts, and so does the key `on`.
        read = yaml.load(path.read_text(), _Plain)
        assert [error.message for error in validator.iter_errors(read)] == [], path


class _Plain(yaml.SafeLoader):
    """Reads YAML 1.2, in which `on` is a text, and leaves dates as texts."""


_Plain.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":timestamp"))
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Plain.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"true|false"), list("tf"))


def test_the_citation_is_of_this_version() -> None:
    assert CITATION["version"] == streamrec.__version__
    assert CITATION["license"] == PYPROJECT["project"]["license"]
    heading = re.search(
        r"^## \[[\d.]+\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert heading
    assert heading[1] in (CITATION["date-released"], "unreleased")


def test_a_version_of_the_changelog_has_each_heading_once() -> None:
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert versions[0].startswith(f"[{streamrec.__version__}]")
    for version in versions:
        headings = re.findall(r"^#{3,} .*$", version, re.MULTILINE)
        assert len(headings) == len(set(headings)), version.partition("\n")[0]


def test_security_names_the_minor_version_that_is_mended() -> None:
    minor = streamrec.__version__.rpartition(".")[0]
    assert f"now {minor} |" in (ROOT / "SECURITY.md").read_text()


def requirements(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield names as conda-forge writes them, and the bounds."""
    for line in lines:
        name, bound = re.fullmatch(
            r"([\w.-]+?) ?((?:>=[\d.]+)?)", line.partition(";")[0].strip()
        ).groups()  # type: ignore[union-attr]
        yield name.lower().replace("_", "-"), bound


def test_the_recipe_needs_what_the_project_needs() -> None:
    assert RECIPE["context"]["version"] == streamrec.__version__
    run = dict(requirements(RECIPE["requirements"]["run"]))
    assert run.pop("python") == PYPROJECT["project"]["requires-python"]
    assert run == dict(requirements(PYPROJECT["project"]["dependencies"]))


def test_the_recipe_demands_the_kernel_and_shows_the_demo() -> None:
    assert RECIPE["build"]["script"]["env"] == {"STREAMREC_BUILD_KERNEL": "require"}
    commands: dict[str, Any] = RECIPE["tests"][1]["script"]
    assert commands["env"] == {"STREAMREC_KERNEL": "native"}
    assert "streamrec demo" in commands["content"]
