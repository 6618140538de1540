"""Holds the architecture: imports run downward only, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import streamrec

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(streamrec.__file__).parent
TESTS = Path(__file__).parent
LAYERS = [
    {"config", "errors", "masking", "surroundings", "values"},
    {"kernel"},
    {"formats", "plan", "wire"},
    {"flow"},
    {"stores"},
    {"pipeline"},
    {"feeder"},
    {"streams"},
    {"shard_tools"},
    {"adapters", "demo", "measure"},
    {"cli", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
WITHIN_A_LEVEL = {
    ("config", "errors"),
    ("config", "masking"),
    ("config", "surroundings"),
    ("errors", "masking"),
    ("surroundings", "errors"),
    ("__main__", "cli"),
}
DEVSTORE_MAY = {"devstore", "errors", "config", "flow"}
ASYNCIO_ROOMS = {
    "cli", "demo", "devstore", "feeder", "flow", "measure", "pipeline", "shard_tools", "stores",
    "streams",
}  # fmt: skip
CLOUD = {"aiobotocore", "botocore", "boto3", "gcsfs", "google.auth", "google.cloud", "s3fs"}
FRAMEWORKS = {"jax", "keras", "orbax", "ray", "tensorflow", "torch"}
TENSORS = {ROOT / f"pipeline/batch/torch_{name}.py" for name in ("batch", "columns")}
"""The files behind ``Batch.to_torch``, which import torch; only that imports them."""

PICKLES = {"cloudpickle", "marshal", "pickle", "shelve"}
SENT = ROOT / "feeder/sent_functions.py"

FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports(path: Path, *, for_types: bool = False) -> list[str]:
    """Every module that the file imports, when it runs or later; those for types on demand."""

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

    return list(visit(ast.parse(path.read_text())))


def rooms_used(path: Path) -> set[str]:
    """The rooms of what the file imports, for types too."""
    every = imports(path, for_types=True)
    parts = [name.split(".") for name in every if name.startswith("streamrec.")]
    return {part[1] for part in parts if part[1] in LEVEL or part[1] == "devstore"}


def belongs(name: str, libraries: set[str]) -> bool:
    return any(name == library or name.startswith(f"{library}.") for library in libraries)


# A file is no case of its own: hundreds of them take longer than what they hold.


def test_imports_run_downward() -> None:
    wrong = [f"{path} must not import {used}" for path in FILES for used in upward(path)]
    assert wrong == []


def upward(path: Path) -> set[str]:
    """The rooms that the file imports and may not."""
    room, used = room_of(path), rooms_used(path)
    if room == "__init__":
        return set()
    if room == "devstore":
        return used - DEVSTORE_MAY
    down = {other for other in LEVEL if LEVEL[other] < LEVEL[room]}
    return {other for other in used - down - {room} if (room, other) not in WITHIN_A_LEVEL}


def test_libraries_stay_in_their_rooms() -> None:
    wrong = [
        f"{path} must not import {name}"
        for path in FILES
        for name in imports(path)
        if belongs(name, libraries_of_others(path))
    ]
    assert wrong == []


def libraries_of_others(path: Path) -> set[str]:
    """The libraries that the file must leave to other rooms, and pickles to the one that may."""
    room = room_of(path)
    found = set() if room in ASYNCIO_ROOMS else {"asyncio"}
    found |= set() if room == "stores" else CLOUD
    found |= set() if room == "adapters" or path in TENSORS else FRAMEWORKS
    return found | (set() if path == SENT else PICKLES)


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
