"""Holds the architecture: imports run downward only, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import streamrec

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(streamrec.__file__).parent
TESTS = Path(__file__).parent
LAYERS = [
    {"config", "errors", "masking", "values"},
    {"kernel"},
    {"formats", "plan", "wire"},
    {"flow"},
    {"stores"},
    {"pipeline", "shard_tools"},
    {"feeder"},
    {"streams"},
    {"adapters", "demo", "measure"},
    {"cli", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
WITHIN_A_LEVEL = {
    ("config", "errors"),
    ("config", "masking"),
    ("errors", "masking"),
    ("__main__", "cli"),
}
DEVSTORE_MAY = {"devstore", "errors", "config", "flow"}
ASYNCIO_ROOMS = {
    "cli", "demo", "devstore", "feeder", "flow", "measure", "pipeline", "shard_tools", "stores",
    "streams",
}  # fmt: skip
CLOUD = {"aiobotocore", "botocore", "boto3", "gcsfs", "google.auth", "google.cloud", "s3fs"}
FRAMEWORKS = {"jax", "keras", "orbax", "tensorflow", "torch"}
TENSORS = {ROOT / f"pipeline/batch/torch_{name}.py" for name in ("batch", "columns")}
"""The files behind ``Batch.to_torch``, which import torch; only that imports them."""

PICKLES = {"cloudpickle", "marshal", "pickle", "shelve"}
SENT = ROOT / "feeder/sent_functions.py"

FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, when it runs or later; not those for types alone."""
    yield from _imports(path, for_types=False)


def _imports(path: Path, *, for_types: bool) -> Iterator[str]:

    def visit(node: ast.AST) -> Iterator[str]:
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if is_for_types and not for_types:
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(path.read_text()))


def rooms_used(path: Path) -> set[str]:
    """The rooms of what the file imports, for types too."""
    every = _imports(path, for_types=True)
    parts = [name.split(".") for name in every if name.startswith("streamrec.")]
    return {part[1] for part in parts if part[1] in LEVEL or part[1] == "devstore"}


def belongs(name: str, libraries: set[str]) -> bool:
    return any(name == library or name.startswith(f"{library}.") for library in libraries)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downward(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    if room == "devstore":
        assert rooms_used(path) <= DEVSTORE_MAY
        return
    for used in rooms_used(path) - {room}:
        down = used != "devstore" and LEVEL[used] < LEVEL[room]
        assert down or (room, used) in WITHIN_A_LEVEL, f"{room} must not import {used}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_libraries_stay_in_their_rooms(path: Path) -> None:
    room = room_of(path)
    for name in imports(path):
        assert room in ASYNCIO_ROOMS or not belongs(name, {"asyncio"}), f"{room} is synchronous"
        assert room == "stores" or not belongs(name, CLOUD), f"{name} belongs in stores"
        allowed = room == "adapters" or path in TENSORS
        assert allowed or not belongs(name, FRAMEWORKS), f"{name} belongs in adapters"
        assert path == SENT or not belongs(name, PICKLES), "nothing else is ever unpickled"


def test_what_calls_the_kernel_is_tested_with_both() -> None:
    calling = [path for path in FILES if "streamrec.kernel" in imports(path)]
    outside = [path.relative_to(ROOT) for path in calling if room_of(path) != "kernel"]
    assert outside
    for path in outside:
        tests = TESTS / path.with_name(f"test_{path.name}")
        assert "both_kernels" in tests.read_text(), f"{tests} lacks the mark"


def test_every_room_has_a_layer() -> None:
    rooms = {room_of(path) for path in FILES}
    assert rooms - LEVEL.keys() == {"__init__", "devstore"}
