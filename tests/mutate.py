"""Changes the source a little, many times, and counts how often a test notices.

::

    python -m tests.mutate --count 300 --seed 1

Each mutant is one change of one expression: ``<`` for ``<=``, ``and`` for ``or``, another number,
a call left out. The tests of its file run first, then those of its room, then those of whole
streams. A change that none of them notices is printed: either a test is missing, or the change
means nothing. It takes about 15 seconds a mutant and core, and works on copies of the tree.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift,
}  # fmt: skip
LEFT_OUT = ("__repr__", "__init_subclass__")
"""Functions whose result nothing depends on."""
QUIET = ("log.", "logger.", "_log.", "click.echo", "warnings.warn")
"""Calls that only say something."""
WHOLE = ("tests/streams/test_stream.py", "tests/streams/test_stream_state.py")
"""What notices a change that no test of its room does."""
PATIENCE = 300.0
"""Seconds after which a mutant that hangs counts as noticed."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: Path
    line: int
    begin: int
    """The bytes of the file that are replaced, from here on."""
    end: int
    text: str

    @property
    def room(self) -> str:
        return self.path.relative_to(ROOT / "streamrec").parts[0].removesuffix(".py")

    def source(self) -> bytes:
        data = self.path.read_bytes()
        return data[: self.begin] + self.text.encode() + data[self.end :]

    def __str__(self) -> str:
        before = self.path.read_bytes()[self.begin : self.end].decode()
        return (
            f"{self.path.relative_to(ROOT)}:{self.line}: {' '.join(before.split())} -> {self.text}"
        )


def mutants_of(path: Path) -> list[Mutant]:
    """Return all changes of a file."""
    data = path.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def made(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(path, node.lineno, begin, end, text)

    return [made(node, text) for node, text in changes(ast.parse(data))]


def changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield each node that can be changed, and the text to put in its place."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in LEFT_OUT:
            continue
        if isinstance(node, ast.Raise | ast.Assert | ast.arguments | ast.Import | ast.ImportFrom):
            continue  # messages, types, defaults that are documented and tested as a table
        if isinstance(node, ast.AnnAssign):
            yield from changes(ast.Tuple([node.value] if node.value else []))
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield from changed(node)
        if not is_quiet(node):
            yield from changes(node)


def is_quiet(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr | ast.FormattedValue) or (
        isinstance(node, ast.Call) and ast.unparse(node.func).startswith(QUIET)
    )


def changed(node: ast.expr | ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the changes of one node itself."""
    other = copy.deepcopy(node)
    match node, other:
        case ast.Compare(ops=[op]), ast.Compare() if type(op) in COMPARISONS:
            other.ops = [COMPARISONS[type(op)]()]
            yield node, ast.unparse(other)
        case ast.BinOp(op=operator), ast.BinOp() if type(operator) in ARITHMETIC:
            other.op = ARITHMETIC[type(operator)]()
            yield node, ast.unparse(other)
        case ast.BoolOp(), ast.BoolOp():
            other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, f"({ast.unparse(other)})"
        case ast.UnaryOp(op=ast.Not()), _:
            yield node, f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool()), _:
            yield node, str(not node.value)
        case ast.Constant(value=int()), _:
            yield node, str(int(str(node.value)) + 1)
        case ast.Expr(value=ast.Call()), _ if not is_quiet(node.value):
            yield node, "pass"


def suites_of(path: Path) -> list[list[str]]:
    """Return the tests of a file, of its room, and of whole streams."""
    relative = path.relative_to(ROOT / "streamrec")
    room = Path("tests") / relative.parent
    mirror = room / f"test_{path.name}"
    found = [[str(mirror)]] if (ROOT / mirror).exists() else []
    return [*found, [str(room)], list(WHOLE)]


def is_noticed(mutant: Mutant, tree: Path) -> bool:
    """Run the tests over the change in a copy of the tree."""
    place = tree / mutant.path.relative_to(ROOT)
    place.write_bytes(mutant.source())
    try:
        return any(fails(tests, tree) for tests in suites_of(mutant.path))
    finally:
        shutil.copy(mutant.path, place)


def fails(tests: list[str], tree: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "CI": "true"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)


def sample(count: int, seed: int, room: str | None) -> list[Mutant]:
    """Draw mutants, each file as likely as it has changes."""
    paths = sorted((ROOT / "streamrec" / (room or "")).rglob("*.py"))
    found = [one for path in paths for one in mutants_of(path)]
    return random.Random(seed).sample(found, min(count, len(found)))


def copy_of_tree(place: str) -> Path:
    ignored = shutil.ignore_patterns(".git", "*_cache", "__pycache__", "build", "*.egg-info")
    return Path(shutil.copytree(ROOT, Path(place, "tree"), ignore=ignored))


@click.command()
@click.option("--count", default=300, show_default=True, help="Mutants to try.")
@click.option("--seed", default=1, show_default=True)
@click.option("--room", default=None, help="Only files of this room.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True)
def main(count: int, seed: int, room: str | None, jobs: int) -> None:
    """Try mutants, print those that nobody noticed, and a table by room."""
    tried, noticed = Counter[str](), Counter[str]()
    trees: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(jobs) as threads:
        for number in range(jobs):
            trees.put(copy_of_tree(f"{place}/{number}"))

        def attempt(mutant: Mutant) -> tuple[Mutant, bool]:
            tree = trees.get()
            try:
                return mutant, is_noticed(mutant, tree)
            finally:
                trees.put(tree)

        for mutant, was_noticed in threads.map(attempt, sample(count, seed, room)):
            tried[mutant.room] += 1
            noticed[mutant.room] += was_noticed
            if not was_noticed:
                click.echo(f"not noticed: {mutant}")
    click.echo("\n| room | tried | noticed |\n|---|---|---|")
    for name in sorted(tried):
        click.echo(f"| {name} | {tried[name]} | {noticed[name]} |")
    click.echo(f"| all | {tried.total()} | {noticed.total()} |")


if __name__ == "__main__":
    main()
