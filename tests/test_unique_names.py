"""Holds that one name stands for one thing: classes in the package, and modules in its rooms."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

import streamrec

ROOT = Path(streamrec.__file__).parent
NATIVE, REFERENCE = ROOT / "kernel" / "native", ROOT / "kernel" / "reference"
"""The twins: two kernels, whose files and classes correspond by their names."""
MOST_ROOMS = 2
"""The most rooms that have a module of the same name. A room is a folder; the twins are one."""

FILES = sorted(ROOT.rglob("*.py"))


def classes_of(path: Path) -> list[str]:
    """Return the names of a file's classes, nested ones too; ``_X`` counts as ``X``."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.name.lstrip("_") for node in nodes if isinstance(node, ast.ClassDef)]


def own_classes_of(path: Path) -> list[str]:
    """Return the names of a file's classes, without those of its twin."""
    twin = REFERENCE / path.name
    others = classes_of(twin) if path.parent == NATIVE and twin.exists() else []
    return [name for name in classes_of(path) if name not in others]


def test_a_class_name_stands_once() -> None:
    homes = defaultdict[str, list[str]](list)
    for path in FILES:
        for name in own_classes_of(path):
            homes[name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_a_module_name_stands_in_few_rooms() -> None:
    rooms = {
        (path.stem, REFERENCE if path.parent == NATIVE else path.parent)
        for path in FILES
        if not path.stem.startswith("__")
    }
    counts = Counter(name for name, _ in rooms)
    assert [name for name, count in counts.items() if count > MOST_ROOMS] == []
