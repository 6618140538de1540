"""Holds the architecture: imports run downward only, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import streamrec

pytestmark = pytest.mark.xdist_group("layers")  # the files are parsed once, in one worker

ROOT = Path(streamrec.__file__).parent
TESTS = Path(__file__).parent
LAYERS = [
    {"config", "errors", "masking", "suggestions", "surroundings", "values", "version"},
    {"kernel"},
    {"formats", "plan", "wire"},
    {"flow"},
    {"report", "stores"},
    {"pipeline", "sources"},
    {"feeder"},
    {"streams"},
    {"datasets"},
    {"adapters", "demo", "measure"},
    {"cli", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
WITHIN_A_LEVEL = {
    ("config", "errors"),
    ("config", "masking"),
    ("config", "suggestions"),
    ("config", "surroundings"),
    ("errors", "masking"),
    ("surroundings", "errors"),
    ("__main__", "cli"),
}
FLOORS = {
    "feeder": [
        {"access", "functions", "page"},
        {"client"},
        {"server"},
        {"engine"},
        {"workers"},
        {"operate"},
    ],
    "formats": [{"images", "shards"}, {"examples"}, {"tfds"}],
    "pipeline": [{"batch"}, {"terms"}, {"fetch"}, {"lane"}],
    "plan": [{"order"}, {"reading", "state"}],
    "stores": [{"base"}, {"fsspec"}, {"http"}, {"gcs", "s3"}, {"cache", "processes"}],
}
"""The rooms within a room, from the ground floor up. The room's own files stand above them all."""
DEVSTORE_MAY = {"devstore", "errors", "config", "flow"}
ASYNCIO_ROOMS = {
    "cli", "datasets", "demo", "devstore", "feeder", "flow", "measure", "pipeline", "stores",
    "streams",
}  # fmt: skip
CLOUD = {"aiobotocore", "botocore", "boto3", "gcsfs", "google.auth", "google.cloud", "s3fs"}
FRAMEWORKS = {
    "accelerate", "jax", "keras", "lightning", "megatron", "orbax", "ray", "tensorflow", "torch",
    "torchtitan", "transformers",
}  # fmt: skip
TENSORS = {ROOT / f"pipeline/batch/torch_{name}.py" for name in ("batch", "columns")}
"""The files behind ``Batch.to_torch``, which import torch; only that imports them."""

PICKLES = {"cloudpickle", "marshal", "pickle", "shelve"}
SENT = ROOT / "feeder/functions/sent_functions.py"

IMPORTERS = {"import_module", "__import__"}
COMPUTED = "<a name that is made at run time>"
COMPUTING = {
    "__init__.py",  # the public names, by their table
    "flow/child_start.py",  # the module that its command names
    "formats/images/picture.py",  # Pillow and simplejpeg
    "kernel/choice.py",  # one of the two kernels
    "pipeline/batch/functions.py",  # the user's own functions, by name
    "sources/arrow_fields.py",  # parts of pyarrow
}
"""The files that import a module whose name is not in their text."""

STARRED = {
    ROOT / name for name in ("errors.py", "formats/examples/example.py", "measure/figures.py")
}
"""The files whose names are all taken, by a star or by a test."""

CALLERS = re.compile(
    r"_getframe|currentframe|inspect\.stack|(walk|extract)_stack\((None)?\)|f_back|"
    r"stacklevel=(?!\d)"
)
"""Ways to look at the frames of callers. The stacks of threads are something else."""

PUBLIC = streamrec._HOME_OF

FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path, *, for_types: bool = False) -> list[str]:
    """Every module that the file imports, when it runs or later; those for types on demand."""
    when_it_runs, for_checkers = all_imports(path)
    return when_it_runs + for_checkers if for_types else when_it_runs


@cache
def all_imports(path: Path) -> tuple[list[str], list[str]]:
    """Return the modules that the file imports when it runs or later, and those for types alone."""
    found: tuple[list[str], list[str]] = [], []
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), False)]
    while nodes:
        node, for_types = nodes.pop()
        if isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING":
            for_types = True
        if isinstance(node, ast.Import):
            found[for_types].extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, node)
            names = (f"{module}.{alias.name}" for alias in node.names)
            found[for_types].extend((module, *names))
        elif isinstance(node, ast.Call) and last_name(node.func) in IMPORTERS:
            found[for_types].append(known_part(node.args[0]))
        nodes.extend((child, for_types) for child in ast.iter_child_nodes(node))
    return found


def last_name(node: ast.expr) -> str:
    """Return the name of a function or of a value, without those of what it is in."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def known_part(name: ast.expr) -> str:
    """Return the name of a module that is imported by a call, as far as the text says it."""
    if isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
        name = name.values[0]
    value = name.value if isinstance(name, ast.Constant) else None
    return value.rstrip(".") if isinstance(value, str) else COMPUTED


def absolute(path: Path, node: ast.ImportFrom) -> str:
    """Return the whole name of the module that the file imports from."""
    if node.level == 0:
        assert node.module is not None
        return node.module
    package = path.relative_to(ROOT.parent).parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def rooms_used(path: Path) -> set[str]:
    """Return the rooms of what the file imports, for types too."""
    return {room for name in imports(path, for_types=True) if (room := room_named(name))}


def room_named(name: str) -> str | None:
    """Return the room of a module or of a public name of the package; else ``None``."""
    parts = name.split(".")
    if parts[0] != "streamrec" or len(parts) < 2:
        return None
    if parts[1] in LEVEL or parts[1] == "devstore":
        return parts[1]
    return PUBLIC[parts[1]].split(".")[1] if parts[1] in PUBLIC else None


def belongs(name: str, libraries: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:end]) in libraries for end in range(1, len(parts) + 1))


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


def test_imports_within_a_room_run_downward() -> None:
    wrong = [f"{path} must not import {used}" for path in FILES for used in upward_within(path)]
    assert wrong == []


def upward_within(path: Path) -> set[str]:
    """The modules of its room that the file imports, from its own floor or from above."""
    room, *folders = path.relative_to(ROOT).parts[:-1] or [""]
    if room not in FLOORS:
        return set()
    floors = {inner: floor for floor, all_of in enumerate(FLOORS[room]) for inner in all_of}
    own, top = (folders or [""])[0], len(FLOORS[room])
    used = {name: name.split(".")[2] for name in imports(path, for_types=True) if is_in(room, name)}
    return {
        name
        for name, other in used.items()
        if other != own and floors.get(other, top) >= floors.get(own, top) and own in floors
    }


def is_in(room: str, name: str) -> bool:
    """Return whether a name is that of a module or of a room in the room."""
    return name.startswith(f"streamrec.{room}.")


def test_every_room_within_a_room_has_a_floor() -> None:
    for room, floors in FLOORS.items():
        inner = {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
        assert inner == set().union(*floors), room


def test_files_do_not_import_each_other_in_a_circle() -> None:
    modules = {name_of(path): path for path in FILES if path.parent != ROOT}
    used = {
        name: {
            other
            for other in imports(path, for_types=True)
            # The packages around a file are imported before it in any case.
            if other in modules and not f"{name}.".startswith(f"{other}.")
        }
        for name, path in modules.items()
    }
    TopologicalSorter(used).prepare()  # raises a CycleError, which names the files


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_no_name_of_a_module_is_made_at_run_time_elsewhere() -> None:
    found = {str(path.relative_to(ROOT)) for path in FILES if COMPUTED in imports(path)}
    assert found == COMPUTING


def test_each_way_to_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    folder = tmp_path / "stores" / "s3"
    folder.mkdir(parents=True)
    ways = {
        "import streamrec.feeder.access.access": "feeder",
        "from streamrec.feeder import tls": "feeder",
        "from streamrec import connect": "streams",
        "from streamrec import feeder": "feeder",
        "from ...feeder import tls": "feeder",
        "from ... import feeder": "feeder",
        "from ..base import Store": "stores",
        "import_module('streamrec.cli.top')": "cli",
        "importlib.import_module(f'streamrec.cli.{name}')": "cli",
        "__import__('streamrec.cli')": "cli",
    }
    for number, (way, room) in enumerate(ways.items()):
        path = folder / f"x{number}.py"
        path.write_text(f"{way}\n")
        # The package's own name is that of the folder here.
        used = {name.replace(tmp_path.name, "streamrec") for name in imports(path)}
        assert room in {room_named(name) for name in used}, way


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


def test_frames_of_callers_are_inspected_in_one_file() -> None:
    found = {path for path in FILES if CALLERS.search(path.read_text())}
    assert found == {ROOT / "flow/callers.py"}


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


def test_all_stands_where_names_are_handed_on() -> None:
    """Elsewhere a module's names are those without an underscore: ``__all__`` says them twice."""
    own = [path for path in FILES if path.name != "__init__.py" and room_of(path) != "adapters"]
    for path in set(own) - STARRED:
        body = ast.parse(path.read_text()).body
        defined = set().union(*map(names_bound, body))
        listed = {
            name
            for statement in body
            if isinstance(statement, ast.Assign) and names_bound(statement) == {"__all__"}
            for name in ast.literal_eval(statement.value)
        }
        assert not listed or listed - defined, path


def names_bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines itself."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return {
            node.id
            for node in ast.walk(statement)
            if isinstance(getattr(node, "ctx", None), ast.Store) and isinstance(node, ast.Name)
        }
    return set()
