"""Bring some pages from outside of docs/ into the site, and send links to them there."""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "bench.md": "bench/README.md",
    "results.md": "bench/results/README.md",
    "verdicts.md": "bench/results/verdicts.md",
    "repeated_verdicts.md": "bench/results/repeated_verdicts.md",
    "changelog.md": "CHANGELOG.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    for name, path in OUTSIDE.items():
        text = (ROOT / path).read_text().replace("](../../docs/", "](")
        for other, target in OUTSIDE.items():
            text = text.replace(f"]({relpath(target, Path(path).parent)}", f"]({other}")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Send links that leave docs/ to the pages that were brought in; show all code as code.

    A word such as ``no-run`` is for the tests: the site's fences know none.
    """
    markdown = re.sub(r"^(```python) [\w-]+$", r"\1", markdown, flags=re.MULTILINE)
    for name, path in OUTSIDE.items():
        markdown = markdown.replace(f"](../../{path}", f"](../{name}")
    return markdown
