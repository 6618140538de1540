"""Holds the tables that lead to rooms, files and libraries against the code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.pages import DOCS, FENCE
from tests.pages import ROOT as TREE
from tests.test_dependencies import PROJECT, distributions
from tests.test_docs import section
from tests.test_layers import DEVSTORE_MAY, FILES, LAYERS, LEVEL, ROOT, WITHIN_A_LEVEL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DESIGN = DOCS / "explanation" / "design.md"
CONTRIBUTING = TREE / "CONTRIBUTING.md"
STARTS = {"__main__"}
"""What starts the program, and is no room to look for."""
FRAMEWORKS = {"huggingface", "jax", "keras", "ray", "tensorflow", "torch", "torchtitan"}
"""Extras of adapters. Each is for users of the framework, and needs no reason."""

READMES = sorted(path.parent / "README.md" for path in ROOT.glob("*/__init__.py"))

_ROOM = re.compile(r"`(\w+)(?:/|\.py)`(?: \(([\w, ]+)\))?")
_LINK = re.compile(r"\[[^\]]+\]\(((?:streamrec|tests)/[^)]*)\)")


def cells(text: str) -> list[list[str]]:
    """Return the cells of the rows of a text's tables, without their headings."""
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def rows(page: Path, heading: str) -> list[list[str]]:
    """Return the rows of all tables below a heading."""
    tables = re.split(r"^\|[-|]+\|$", section(page, heading), flags=re.MULTILINE)
    return [row for table in tables[1:] for row in cells(table.partition("\n\n")[0])]


def inner_rooms(room: str) -> set[str]:
    return {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}


def code(text: str) -> list[str]:
    """Return what stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def test_the_levels_are_those_of_the_layers() -> None:
    levels = [dict(_ROOM.findall(where)) for _, where, _ in rows(DESIGN, "## Layers")]
    assert [set(level) for level in levels] == [level - STARTS for level in LAYERS]
    for level in levels:
        for room, inner in level.items():
            assert set(inner.split(", ") if inner else ()) == inner_rooms(room), room


def test_each_library_that_is_declared_has_its_reason() -> None:
    listed = [
        name
        for first, *_ in rows(DESIGN, "## Libraries")
        for name in re.findall(r"[\w.-]+", re.sub(r"\(extra .*\)|\(with |\)", "", first).lower())
    ]
    assert len(listed) == len(set(listed))
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    of_frameworks = {
        re.split(r"[^\w.-]", line)[0] for extra in FRAMEWORKS for line in extras[extra]
    }
    declared = {name.replace(".", "-") for name in distributions()}
    assert {name.replace(".", "-") for name in listed} == declared - of_frameworks


def test_the_objects_on_a_byte_s_path_are_classes() -> None:
    text = FENCE.sub("", section(DESIGN, "## The path of a byte"))
    everything = "\n".join(path.read_text() for path in FILES)
    names = [name for name in code(text) if re.fullmatch(r"[A-Z]\w+", name)]
    assert len(names) > 8
    for name in names:
        assert re.search(rf"^class {name}\b", everything, re.MULTILINE), name


def files_named(row: str) -> Iterator[tuple[str, list[Path]]]:
    """Yield each file that a text names, and the files that it may mean.

    A name without a folder is looked for in the folders that the text links.
    """
    linked = [TREE / link.partition("#")[0] for link in _LINK.findall(row)]
    yield from ((str(path), [path] if path.exists() else []) for path in linked)
    for name in code(row):
        if re.fullmatch(r"[\w/*]+(?:\.py|\.md|/)", name):
            near = [found for path in linked for found in path.rglob(name.rstrip("/"))]
            whole = [*TREE.glob(name), *ROOT.glob(name)]
            yield name, [*(near if "/" not in name else []), *whole]


@pytest.mark.parametrize("page", [CONTRIBUTING, DESIGN], ids=lambda page: page.name)
def test_each_file_that_is_named_exists(page: Path) -> None:
    for line in page.read_text().splitlines():
        for name, found in files_named(line):
            is_free = "/" not in name and not line.startswith("|")  # in prose, beside its folder
            assert found or is_free, name


def test_what_is_added_is_added_where_the_table_says() -> None:
    table = [" | ".join(row) for row in rows(CONTRIBUTING, "## Where is …")]
    added = [row for row in table if row.startswith(("a ", "an "))]
    assert len(added) >= 5
    for row in added:
        paths = [path for _, found in files_named(row) for path in found]
        text = "\n".join(
            file.read_text() for path in paths for file in ([*path.rglob("*.py")] or [path])
            if file.suffix in (".py", ".toml")
        )  # fmt: skip
        for name in code(row):
            if re.fullmatch(r"\w+", name):
                assert re.search(rf"\b{name}\b", text), f"{name}: {row}"


def rooms_in(page: Path, words: str) -> set[str]:
    """Return the rooms that a README names in the sentence with these words."""
    text = " ".join(page.read_text().split())
    sentence = re.search(rf"[^.]*\b{words}\b[^.]*\.", text)
    assert sentence, f"{page} must have a sentence with {words!r}"
    return {name for name in code(sentence[0]) if name in LEVEL} - {page.parent.name}


def may_import(room: str, other: str) -> bool:
    if room == "devstore":
        return other in DEVSTORE_MAY
    return LEVEL[other] < LEVEL[room] or (room, other) in WITHIN_A_LEVEL


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.parent.name)
def test_a_room_s_readme_names_what_is_there(page: Path) -> None:
    room = page.parent
    files = {path.name for path in room.glob("*.py")} - {"__init__.py"}
    there = files | {f"{path.parent.name}/" for path in room.glob("*/__init__.py")}
    named = {name for name in code(page.read_text()) if re.fullmatch(r"[\w/]+(?:\.py|/)", name)}
    assert there <= named
    for name in named - there:  # in a room of this one
        assert list(room.rglob(name.rstrip("/"))), f"{page} names {name}, which does not exist"


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.parent.name)
def test_a_room_s_readme_says_who_may_import(page: Path) -> None:
    room = page.parent.name
    assert [other for other in rooms_in(page, "may import it") if not may_import(other, room)] == []
    assert [other for other in rooms_in(page, "It imports") if not may_import(room, other)] == []
    assert f"`python -m pytest -q tests/{room}`" in page.read_text()
