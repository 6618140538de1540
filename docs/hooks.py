"""Bring some pages from outside of docs/ into the site, and list all pages for language models."""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUTSIDE = {
    "bench.md": "bench/README.md",
    "results.md": "bench/results/README.md",
    "changelog.md": "CHANGELOG.md",
}
CHARTS = {
    f"images/{path.name}": f"bench/results/{path.name}"
    for path in sorted((ROOT / "bench" / "results").glob("*.svg"))
}

ICONS = {
    "Start": "material-play-circle",
    "Train": "material-school",
    "Write data": "material-database-plus",
    "Serve": "material-server-network",
    "Measure": "material-speedometer",
    "Look up": "material-book-open-variant",
    "Understand": "material-lightbulb-on",
}
"""The icon of each card of the landing page."""
WIDE = {"index.md", "explanation/compare.md", "reference/promises.md"}
"""Pages that need the room of the table of contents."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside, and llms.txt."""
    from mkdocs.structure.files import File  # here, so that a test of the rest needs no mkdocs

    for name, path in OUTSIDE.items():
        text = re.sub(r"\]\((\.\./)*docs/", "](", (ROOT / path).read_text())
        for other, target in OUTSIDE.items():
            text = text.replace(f"]({relpath(target, Path(path).parent)}", f"]({other}")
        files.append(File.generated(config, name, content=text))
    for name, path in CHARTS.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "llms.txt", content=overview(config.nav or [])))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Send links that leave docs/ to the pages that were brought in; show all code as code.

    A word such as ``no-run`` is for the tests: the site's fences know none.
    """
    if page.file.src_uri == "index.md":
        markdown = landing(markdown)
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    markdown = re.sub(r"^( *```\w+) [\w -]+$", r"\1", markdown, flags=re.MULTILINE)
    folder = (DOCS / page.file.src_uri).parent
    for name, path in (OUTSIDE | CHARTS).items():
        there, here = relpath(ROOT / path, folder), relpath(DOCS / name, folder)
        markdown = markdown.replace(f"]({there}", f"]({here}")
    return markdown


def landing(markdown: str) -> str:
    """Make buttons of the line of links, and give the cards their icons.

    The page itself has neither, so that it reads well in the repository too.
    """
    line = next(line for line in markdown.splitlines() if " · " in line)
    first, *others = line.split(" · ")
    marks = [f"{first}{{ .md-button .md-button--primary }}"]
    marks += [f"{link}{{ .md-button }}" for link in others]
    markdown = markdown.replace(line, "\n".join(marks))
    for card, icon in ICONS.items():
        markdown = markdown.replace(f"- **{card}**", f"- :{icon}: **{card}**")
    return markdown


# -- llms.txt (https://llmstxt.org) ----------------------------------------------------------------


def overview(nav: list[Any]) -> str:
    """Return the text of llms.txt: each page of the navigation with its first sentence."""
    title, about = opening("index.md")
    lines = [f"# {title}", "", f"> {about}"]
    for group in nav:
        for name, entries in group.items():
            lines += ["", f"## {name}", ""]
            lines += [entry(path) for path in paths(entries)]
    return "\n".join([*lines, ""])


def paths(entries: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation, those of inner parts too."""
    if isinstance(entries, str):
        yield entries
    else:
        for one in entries.values() if isinstance(entries, dict) else entries:
            yield from paths(one)


def entry(path: str) -> str:
    """Return the line of a page; a page of tables alone has no sentence."""
    title, about = opening(path)
    about = about.removeprefix("At the end of this page, ")
    address = "./" if path == "index.md" else path.removesuffix(".md") + "/"
    sentence = f": {about[:1].upper()}{about[1:]}" if about else ""
    return f"- [{title}]({address}){sentence}"


def opening(path: str) -> tuple[str, str]:
    """Return a page's title and its first sentence, without marks and links."""
    text = (ROOT / OUTSIDE.get(path, f"docs/{path}")).read_text()
    found = re.search(r"^# (.+)\n+((?:[^#|\n].*\n)*)", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{path} does not begin with a title; give it one")
    words = " ".join(re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", found[2]).split())
    return found[1], re.split(r"(?<=[.:!?]) (?=[A-Z`*])", words, maxsplit=1)[0]
