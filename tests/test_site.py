"""Holds what the site shows: its navigation, its pages' first sentences, extras and images."""

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.pages import DOCS, ROOT, name_of
from tests.test_dependencies import FOR_PEOPLE, PROJECT
from tests.test_docs import PAGES, section

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
_EXTRA = re.compile(r"^\| `([\w-]+)` \| (.*) \|$", re.MULTILINE)


class Loader(yaml.SafeLoader):
    """Reads ``mkdocs.yml`` without the functions that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def navigation() -> list[Any]:
    nav: list[Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    return nav


# -- llms.txt --------------------------------------------------------------------------------------


def test_llms_txt_has_each_page_and_what_it_is_about() -> None:
    text = hooks().overview(navigation())
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    for page in {*pages, *hooks().OUTSIDE}:
        address = "./" if page == "index.md" else page[:-3] + "/"
        (line,) = re.findall(rf"^- \[.+\]\({re.escape(address)}\)(.*)$", text, re.MULTILINE)
        assert len(line) > 20, page


def test_an_opening_is_one_sentence_without_marks() -> None:
    title, about = hooks().opening("how-to/writing.md")
    assert title == "Write a dataset"
    assert about.startswith("At the end of this page, your records are a dataset")
    assert about.endswith("in a store.")
    _, about = hooks().opening("how-to/deploy-a-feeder.md")
    assert "](" not in about


def test_the_landing_page_gets_buttons_and_icons() -> None:
    page = (DOCS / "index.md").read_text()
    landing = hooks().landing(page)
    assert landing.count("{ .md-button") == 3
    cards = re.findall(r"^- (.*)\*\*[\w ]+\*\*$", landing, re.MULTILINE)
    assert len(cards) == len(hooks().ICONS) > 5
    assert all(card.startswith(":material-") for card in cards)
    assert "md-button" not in page


@pytest.mark.parametrize("language", ["python", "sh"])
def test_words_for_the_tests_are_not_in_the_site_s_fences(language: str) -> None:
    """The site takes a fence with such a word for text, up to the end of the next fence."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/mix.md"), meta={})
    shown = hooks().on_page_markdown(f"```{language} no-run\ncode\n```\n", page)
    assert shown == f"```{language}\ncode\n```\n"


# -- pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", HOW_TO, ids=name_of)
def test_a_how_to_begins_with_its_result(page: Path) -> None:
    _, first, *_ = page.read_text().split("\n\n")
    assert first.startswith("At the end of this page, ")
    assert first.count(". ") <= 1, "one or two sentences"


def test_every_extra_is_on_the_page_of_installing() -> None:
    text = section(DOCS / "install.md", "## Extras")
    listed = {name: cells.split(" | ") for name, cells in _EXTRA.findall(text)}
    assert listed.keys() == EXTRAS.keys()
    for name in EXTRAS.keys() - FOR_PEOPLE:
        installs = {re.split(r"[^\w.-]", line)[0] for line in EXTRAS[name]}
        assert set(re.findall(r"`([\w-]+)`", listed[name][-1])) == installs, name


def test_every_image_is_on_a_page() -> None:
    shown = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
    }
    assert set((DOCS / "images").iterdir()) <= shown


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_both_front_pages_say_the_same_of_it(page: str) -> None:
    sentences = (ROOT / "README.md").read_text().split("\n\n")[1]
    assert sentences in (ROOT / page).read_text()
