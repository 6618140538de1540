"""Checks the code of the documentation that no test runs: its names, settings and options exist."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
import pytest

import streamrec
from streamrec.cli.program import program
from streamrec.config import StreamSettings
from streamrec.streams.opening import connect
from tests.cli.support import verbs_of
from tests.pages import ROOT, Block, blocks, name_of
from tests.test_docs import PAGES, RUNNABLE, runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHELLS = ("sh", "bash")
SETTINGS = {
    "open": set(StreamSettings.model_fields),
    "mix": {*StreamSettings.model_fields, "weights"},
}
TARGETS = re.compile(r"\s(?:\d?>>?|<)\s*\S+")
"""Redirections, which are the shell's."""
VARIABLE = re.compile(r"\$\{?\w+\}?")


def is_run(page: Path, block: Block) -> bool:
    return page in RUNNABLE and runs(block)


def unrun(page: Path) -> list[Block]:
    """Return the blocks of Python of ours that no other test runs."""
    python = [block for block in blocks(page) if block.info.split(" ")[0] == "python"]
    return [b for b in python if not is_run(page, b) and "TensorFlow" not in b.info]


def calls(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yield each call of a function of ``sr``, with the names of its arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("sr."):
            named = {keyword.arg for keyword in node.keywords if keyword.arg}
            yield ast.unparse(node.func).removeprefix("sr."), named


def arguments_of(function: str) -> set[str]:
    if function in SETTINGS:
        return SETTINGS[function]
    found = connect if function == "connect" else getattr(streamrec, function)
    return set(inspect.signature(found).parameters)


def wrong_names(code: str) -> list[str]:
    """Return the names of ours, and of their arguments, that there are not."""
    tree = ast.parse(code)
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sr":
            wrong += [] if hasattr(streamrec, node.attr) else [f"sr.{node.attr}"]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamrec"):
            wrong += [f"{node.module}.{a.name}" for a in node.names if not is_there(node, a.name)]
    for function, named in calls(tree):
        if hasattr(streamrec, function):
            wrong += [f"sr.{function}({n}=)" for n in sorted(named - arguments_of(function))]
    return wrong


def is_there(node: ast.ImportFrom, name: str) -> bool:
    """Return whether a module of ours has the name; a framework that is not here hides it."""
    assert node.module
    framework = node.module.rpartition(".")[2]
    libraries = {"huggingface": "torch", "tensorflow": "tensorflow", "orbax": "orbax"}
    if "adapters" in node.module and find_spec(libraries.get(framework, framework)) is None:
        return True
    return hasattr(import_module(node.module), name)


def command_lines(block: Block) -> list[str]:
    """Return a block's commands, each in one line, without comments and the shell's own words."""
    text = block.body.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [part.strip() for line in lines for part in re.split(r"&&|\|\||;|\||\s&$", line) if part]


def check_command(line: str) -> None:
    """Have the command line read by the program that it names, without running it."""
    words = shlex.split(VARIABLE.sub("1", TARGETS.sub("", line)))
    while words and ("=" in words[0] or words[0] in ("do", "then", "exec", "time", "nohup")):
        words.pop(0)
    if words[:3] == ["python", "-m", "streamrec"]:
        words = ["streamrec", *words[3:]]
    if words[:1] == ["python"] and len(words) > 1 and words[1].endswith(".py"):
        assert "/" not in words[1] or (ROOT / words[1]).exists(), line
    if words[:1] == ["streamrec"] and len(words) > 1 and not words[1].startswith("-"):
        verb = verbs_of(program)[words[1]]
        verb.make_context(words[1], words[2:])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_that_is_not_run_names_what_there_is(page: Path) -> None:
    wrong = {
        f"line {block.line}": found for block in unrun(page) if (found := wrong_names(block.body))
    }
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_shell_that_is_not_run_has_commands_and_options(page: Path) -> None:
    for block in blocks(page):
        if block.info.split(" ")[0] not in SHELLS or "TensorFlow" in block.info:
            continue
        read = subprocess.run(
            ["bash", "-n"], input=block.body, text=True, check=False, capture_output=True
        )
        assert read.returncode == 0, (block.line, read.stderr)
        for line in command_lines(block):
            try:
                check_command(line)
            except (click.UsageError, KeyError) as error:
                pytest.fail(f"line {block.line}: {line}: {error}")


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("sr.open('x', batch_size=2)", []),
        ("sr.open('x', bach_size=2)", ["sr.open(bach_size=)"]),
        ("sr.connect('x', ranks=2)", ["sr.connect(ranks=)"]),
        ("sr.opn", ["sr.opn"]),
        ("from streamrec.adapters.torch import as_loder", ["streamrec.adapters.torch.as_loder"]),
    ],
)  # fmt: skip
def test_a_wrong_name_is_found(code: str, wrong: list[str]) -> None:
    assert wrong_names(code) == wrong


@pytest.mark.parametrize(
    "line",
    [
        "streamrec cta x",
        "streamrec cat x --frist 2",
        "X=1 streamrec info --no-such-option x > y",
        "streamrec bench x --seconds many",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises((click.UsageError, KeyError)):
        check_command(line)


def test_the_commands_of_a_block() -> None:
    body = (
        "# first\nA=1 streamrec index x && streamrec cat \\\n  y -n 2 # why\nfor a in b; do\ndone\n"
    )
    found = command_lines(Block("sh", body, 1, ""))
    assert found[:2] == ["A=1 streamrec index x", "streamrec cat    y -n 2"]
