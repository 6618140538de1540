"""Fills the tables of README.md and the documentation from the results.

::

    python -m bench.publish

A table stands between two comments, the first of which names it. A test holds that the pages have
what this would write.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from bench.machine import ROOT
from bench.published import TABLES

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = re.compile(r"<!-- table: (?P<name>[a-z_]+) -->\n.*?<!-- end of the table -->", re.DOTALL)


@click.command()
def main() -> None:
    """Fill the tables of all pages, and name the pages that have changed."""
    for page in pages():
        before = page.read_text()
        after = filled(before)
        if after != before:
            page.write_text(after)
            click.echo(page.relative_to(ROOT))


def pages() -> list[Path]:
    """Return the pages that have tables of results."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/README.md")]
    return sorted(page for page in found if BLOCK.search(page.read_text()))


def names(text: str) -> list[str]:
    """Return the names of the tables of a page."""
    return [block["name"] for block in BLOCK.finditer(text)]


def filled(text: str) -> str:
    """Return a page with its tables as the results have them."""

    def table(block: re.Match[str]) -> str:
        name = block["name"]
        return f"<!-- table: {name} -->\n\n{TABLES[name]()}\n\n<!-- end of the table -->"

    return BLOCK.sub(table, text)


if __name__ == "__main__":
    main()
