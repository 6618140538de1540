"""Orders the files of tests by how near they are to a source file.

The nearest is its mirror, and then one of the same name elsewhere. The others follow by how many
imports lead from them to the file, those of the file's folder and room first, and those of the
whole package last.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
IN_ONE_WORKER = "nearest tests"
"""The group of the tests that need the graph of all imports, which takes seconds to make."""
FAR = 9
"""The distance of tests in the file's room to which no import leads, and of those of all rooms."""


def nearest_tests(path: Path) -> list[str]:
    """Return the files of tests that lead to a source file, the nearest first."""
    relative = path.relative_to(ROOT / "streamrec")
    mirror = f"tests/{relative.parent}/test_{relative.stem.strip('_')}.py".replace("/./", "/")

    def rank(test: str) -> tuple[bool, bool, int, int]:
        is_other = Path(test).name != Path(mirror).name
        far = distances[test] + _rooms_between(test, relative)
        return test != mirror, is_other, far, _size(test)

    distances = _distances(_name_of(path))
    room = ROOT / "tests" / relative.parent
    while not room.exists():  # the tests of a folder may lie in that of its room
        room = room.parent
    for test in room.glob("test_*.py") if room.parent == ROOT else room.rglob("test_*.py"):
        distances.setdefault(str(test.relative_to(ROOT)), FAR)
    return sorted(distances, key=rank)


def _rooms_between(test: str, relative: Path) -> int:
    """Return 0 for a test of the file's folder, 1 for one of its room, and 2 for one of another.

    Those of the whole package and of its pages are slow, and come last.
    """
    folder = Path(test).relative_to("tests").parent
    if folder == relative.parent:
        return 0
    if folder.parts[:1] == relative.parts[:1]:
        return 1
    return 2 if folder.parts else FAR


def _distances(module: str) -> dict[str, int]:
    """Return how many imports lead from each file of tests to a module."""
    importers = _importers()
    found: dict[str, int] = {module: 0}
    queue = [module]
    for name in queue:
        for importer in importers[name] - found.keys():
            found[importer] = found[name] + 1
            queue.append(importer)
    return {
        name.replace(".", "/") + ".py": steps
        for name, steps in found.items()
        if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")
    }


@cache
def _importers() -> dict[str, set[str]]:
    """Return the modules that import each module, of the package and of the tests."""
    rooms = ROOT / "streamrec", ROOT / "tests"
    paths = {_name_of(path): path for room in rooms for path in room.rglob("*.py")}
    importers = defaultdict[str, set[str]](set)
    for name, path in paths.items():
        for imported in _imported(ast.parse(path.read_bytes())) & paths.keys():
            importers[imported].add(name)
    return importers


def _imported(tree: ast.AST) -> set[str]:
    """Return what may be the names of imported modules; tables of them are strings."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update([node.module, *(f"{node.module}.{each.name}" for each in node.names)])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def _name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _size(test: str) -> int:
    return (ROOT / test).stat().st_size
