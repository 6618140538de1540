"""The small changes of the source that ``tests.mutate`` tries.

Left out is what no test of behaviour can notice: flags of dataclasses, texts, types, ``__repr__``,
and messages. What is left and means nothing was judged by reading, and stands in
``mutants_that_mean_nothing.txt``.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
JUDGED = Path(__file__).with_name("mutants_that_mean_nothing.txt")
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
FORMAL = ("field", "TypeVar", "cast", "NewType")
"""Calls that say something to dataclasses and type checkers."""
CHECKS = ("strict",)
"""Arguments that are assertions: of :func:`zip`."""


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

    @cached_property
    def name(self) -> str:
        """The change in words, which stays the same when lines are added above."""
        data = _source_of(self.path)
        line = data.splitlines()[self.line - 1].decode()
        before = data[self.begin : self.end].decode()
        path = self.path.relative_to(ROOT / "streamrec")
        return f"{path} | {line.strip()} | {' '.join(before.split())} -> {self.text}"


@cache
def _source_of(path: Path) -> bytes:
    return path.read_bytes()


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
        if is_left_out(node):
            continue
        if isinstance(node, ast.AnnAssign):
            yield from changes(ast.Tuple([node.value] if node.value else []))
            continue
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from changes(ast.Module(node.body, []))  # not its decorators and arguments
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield from changed(node)
        if not is_quiet(node):
            yield from changes(node)


def is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.If():
            return "TYPE_CHECKING" in ast.unparse(node.test)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name in LEFT_OUT
        case ast.keyword(arg=name):
            return name in CHECKS
        case ast.Call(func=ast.Name(id=name)):
            return name in FORMAL
        case ast.Call(func=ast.Attribute(attr="reshape")):
            return True  # any negative size is the rest
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True  # messages, and what is said to type checkers
        case _:
            return False


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


def sample(count: int, seed: int, room: str | None = None) -> list[Mutant]:
    """Draw mutants, from each room as many as its share of the lines, and at least one.

    A mutant's place in the draw follows from its name alone, so that a change of the source leaves
    the others where they were.
    """
    paths = sorted((ROOT / "streamrec" / (room or "")).rglob("*.py"))
    found: dict[str, list[Mutant]] = {}
    lines: dict[str, int] = {}
    for path in paths:
        name = Mutant(path, 0, 0, 0, "").room
        found.setdefault(name, []).extend(mutants_of(path))
        lines[name] = lines.get(name, 0) + len(path.read_bytes().splitlines())
    total = sum(size for name, size in lines.items() if found[name])

    def place(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    drawn: list[Mutant] = []
    for name, mutants in found.items():
        share = max(1, round(count * lines[name] / total))
        drawn += sorted(mutants, key=place)[:share]
    return sorted(drawn, key=place)


def judged() -> set[str]:
    """Return the names of the mutants that mean nothing, as somebody judged by reading."""
    lines = JUDGED.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}
