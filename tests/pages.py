"""The pages of the documentation, and the code in them."""

from __future__ import annotations

import ast
import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import streamrec as sr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

FENCE = re.compile(r"^```(?P<info>.*)\n(?P<body>(?:.*\n)*?)```$", re.MULTILINE)
_ROW = re.compile(r"^\| `(?P<theirs>[^|`]*)` \| `(?P<ours>[^|`]*)` \|(?P<remark>.*)$", re.MULTILINE)


class Block(NamedTuple):
    info: str
    body: str
    line: int
    """Number of its first line of code, from 1."""
    after: str
    """The text between the block before and this one."""


class Row(NamedTuple):
    """A row of a table whose first two cells are code that does the same."""

    theirs: str
    ours: str
    remark: str


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text, found, end = page.read_text(), [], 0
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        between = text[end : match.start()].strip()
        found.append(Block(match["info"].strip(), match["body"], line, between))
        end = match.end()
    return found


def rows_of_code(page: Path) -> list[Row]:
    return [Row(*cells) for cells in _ROW.findall(FENCE.sub("", page.read_text()))]


@contextmanager
def reading_in_threads() -> Iterator[None]:
    """Have a thread read for plain loops, and close the streams that a page leaves open.

    The engine process takes a second to start.
    """
    streams: list[sr.Stream] = []

    def kept(make: Callable[..., sr.Stream], *arguments: Any, **settings: Any) -> sr.Stream:
        streams.append(make(*arguments, **{"engine": "thread", **settings}))
        return streams[-1]

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "mix"):
            patch.setattr(sr, name, partial(kept, getattr(sr, name)))
        try:
            yield
        finally:
            for stream in streams:
                stream.close()


def run_block(block: Block, page: Path, names: dict[str, object]) -> None:
    """Run a block of Python in a namespace; its lines have the page's numbers."""
    lines = "\n" * (block.line - 1) + block.body
    exec(compile(lines, page, "exec"), names)


_TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def named_tests(text: str) -> list[tuple[Path, list[str]]]:
    """Return the tests that a text names in backquotes: the file, then the class and function."""
    return [(ROOT / path, names.split("::")) for path, names in _TEST.findall(text)]


def is_defined(path: Path, names: list[str]) -> bool:
    """Return whether a file of tests defines such a function, or such a method of a class."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body if path.exists() else []
    for name in names:
        definitions = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
        inner = [one.body for one in body if isinstance(one, definitions) and one.name == name]
        if not inner:
            return False
        body = inner[0]
    return names[-1].startswith("test_")
