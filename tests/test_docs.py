"""Keeps the documentation true: its code runs, its tables are complete, its links lead on."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import streamrec
from streamrec import errors, kernel
from streamrec.cli.program import program
from streamrec.config import StreamSettings
from streamrec.config.server_settings import ServerSettings
from streamrec.feeder.operate import status
from streamrec.feeder.operate.configuration import load
from streamrec.feeder.operate.status import SnapshotCollector
from streamrec.feeder.page.samples import Samples
from streamrec.feeder.server.server import Feeder
from streamrec.flow.stages import BOXES, RESOURCES, TABLE
from streamrec.streams.opening import connect
from streamrec.wire import messages
from tests.by_day import is_day
from tests.cli.support import verbs_of
from tests.pages import DOCS, FENCE, Block, blocks, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel

    from streamrec.config.lazy_settings import LazySettings

ROOT = Path(__file__).parents[1]
REFERENCE = DOCS / "reference"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "streamrec/**/*.md")
    for page in ROOT.glob(pattern)
)
RUNNABLE = [page for page in PAGES if page.is_relative_to(DOCS) or page.name == "README.md"]
PLACEHOLDERS = ("...", "gs://", "s3://bucket", "tcp://feeder")
FEEDER = "tcp://127.0.0.1:7070"
"""A page that connects to it shows its configuration before."""
STORE = "http://127.0.0.1:9000"
START_STORE = "python -m streamrec.devstore --port 9000 &"
"""A tutorial's own store. It runs on a free port, which stands for the page's."""

_FILE = re.compile(r"# (?P<name>\w+\.py)\n")
_LINK = re.compile(r"(?:\]\(|^\[[^\]]+\]:\s*<?)(?!\w+:)([^)>\s]+)", re.MULTILINE)
"""A link in place, ``[text](target)``, or the target of a reference, ``[name]: target``."""


def runs(block: Block) -> bool:
    if _FILE.match(block.body):
        return False
    return block.info == "python" and not any(mark in block.body for mark in PLACEHOLDERS)


def files(page: Path) -> dict[str, str]:
    """Return the programs that a tutorial tells to save, by the names in their first lines."""
    found = ((_FILE.match(block.body), block.body) for block in blocks(page))
    return {match["name"]: body for match, body in found if match}


def scripts(page: Path) -> tuple[str, str]:
    """Return the page's code, split where it first connects to a feeder.

    The lines have the page's numbers.
    """
    code: tuple[list[str], list[str]] = ([], [])
    for block in filter(runs, blocks(page)):
        part = code[1] if code[1] or FEEDER in block.body else code[0]
        part += [""] * (block.line - 1 - len(part)) + block.body.splitlines()
    return "\n".join(code[0]), "\n".join(code[1])


def shown_output(page: Path) -> str:
    """Return the output that the page shows: the plain blocks right behind those of Python."""
    found = blocks(page)
    pairs = itertools.pairwise(found)
    return "".join(b.body for a, b in pairs if runs(a) and not b.info and not b.after)


def commands(page: Path) -> list[tuple[list[str], str]]:
    """Return each ``$ streamrec`` of the page, as arguments, and the output that it shows."""
    shown = "".join(block.body for block in blocks(page) if block.info == "console")
    found = re.findall(r"^\$ streamrec (.*)\n((?:[^$].*\n|\n)*)", shown, re.MULTILINE)
    return [(shlex.split(line), output) for line, output in found]


def transcript(page: Path) -> list[tuple[str, str]]:
    """Return each command of the page, and the output that it shows."""
    shown = "".join(block.body for block in blocks(page) if block.info == "console")
    return re.findall(r"^\$ (.*)\n((?:[^$].*\n|\n)*)", shown, re.MULTILINE)


def environment(directory: Path) -> dict[str, str]:
    """Return an environment with this package alone, where files that are left are noticed."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory)}


def run(arguments: list[str], directory: Path, **variables: str) -> str:
    """Run Python with warnings as errors; gives what it prints."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=directory,
        env={**environment(directory), **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@contextlib.contextmanager
def feeder(configuration: str, directory: Path) -> Iterator[str]:
    """Run the daemon of a page on free ports; gives the address that stands for the page's."""
    path = directory / "page.toml"  # whose relative paths are those of the page
    path.write_text(re.sub(r"(127\.0\.0\.1):\d+", r"\1:0", configuration))
    command = [sys.executable, "-m", "streamrec", "serve", str(path), "--json", "--until-eof"]
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment(directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["listen"][0]
        finally:
            process.terminate()


@contextlib.contextmanager
def store(shown: str, directory: Path) -> Iterator[str]:
    """Run a tutorial's store; gives the address that stands for the page's."""
    command = [sys.executable, "-m", "streamrec.devstore", "--until-eof"]
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment(directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            printed, expected = json.loads(process.stdout.readline()), json.loads(shown)
            assert (printed.keys(), STORE) == (expected.keys(), expected["endpoint"])
            yield printed["endpoint"]
        finally:
            process.terminate()


def in_a_shell(commands: list[str], directory: Path) -> list[str]:
    """Run the commands in one shell, as a reader does; gives what each prints."""
    programs = directory.parent / "bin"
    programs.mkdir()
    for name, module in ("python", ""), ("streamrec", "-m streamrec"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -W error {module} "$@"\n')
        program.chmod(0o755)
    inherited = environment(directory)
    finished = subprocess.run(
        ["/bin/bash", "-e"],
        input="".join(f"{command}\nprintf '\\0'\n" for command in commands),
        cwd=directory,
        env={**inherited, "PATH": f"{programs}:{inherited['PATH']}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split("\0")[:-1]


def section(page: Path, heading: str) -> str:
    """Return the text below a heading, up to the next one of its level."""
    level = heading.partition(" ")[0]
    _, _, rest = f"\n{page.read_text()}".partition(f"\n{heading}\n")
    assert rest, f"{name_of(page)} has no {heading!r}"
    return re.split(rf"^{level} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of all table rows that begin with a name in backquotes, by that name."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        name = re.fullmatch(r"`(\w+)`", cells[0])
        if name:
            found[name[1]] = cells[1:]
    return found


def defaults_of(
    model: type[BaseModel | LazySettings], table: dict[str, list[str]]
) -> dict[str, Any]:
    """Return the table's defaults as plain values; required settings have none."""
    written = {name: cells[0].strip("`") for name, cells in table.items()}
    assert {name for name, text in written.items() if not text} == {
        name for name, field in model.model_fields.items() if field.is_required()
    }
    return {name: ast.literal_eval(text) for name, text in written.items() if text}


# -- code ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    alone, with_feeder = scripts(page)
    for name in re.findall(r"^(?:import|from) (jax|keras|orbax|torch)\b", alone, re.MULTILINE):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    work = tmp_path / "work"
    work.mkdir()
    copy = tmp_path / page.with_suffix(".py").name
    copy.write_text(alone)
    printed = run([str(copy)], work) if alone else ""
    for arguments, output in [] if page in TUTORIALS else commands(page):
        if arguments[0] != "serve":
            ours = output.replace("kernel       native", f"kernel       {kernel.implementation}")
            assert run(["-m", "streamrec", *arguments], work) == ours
    if with_feeder:
        (configuration,) = [block.body for block in blocks(page) if block.info == "toml"]
        with feeder(configuration, work) as address:
            copy.write_text(with_feeder.replace(FEEDER, address))
            printed += run([str(copy)], work)
    assert printed == shown_output(page)


def is_left_out(command: str, programs: Mapping[str, str]) -> bool:
    """Return whether a program needs a framework: by day it takes too long, or it is missing."""
    body = programs.get(command.removeprefix("python "), "")
    names = re.findall(r"^import (jax|keras|torch)\b", body, re.MULTILINE)
    return bool(names) and (is_day() or any(find_spec(name) is None for name in names))


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_every_command_of_a_tutorial_prints_what_is_shown(page: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name, body in files(page).items():
        (work / name).write_text(body)
    lines = [line for line in transcript(page) if not is_left_out(line[0], files(page))]
    with contextlib.ExitStack() as stack:
        endpoint = STORE
        if lines[0][0] == START_STORE:
            endpoint = stack.enter_context(store(lines.pop(0)[1], work))
        printed = in_a_shell([line.replace(STORE, endpoint) for line, _ in lines], work)
    ours = f"kernel       {kernel.implementation}"
    shown = [output.replace("kernel       native", ours) for _, output in lines]
    assert printed == shown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_toml_of_a_page_is_a_configuration(page: Path, tmp_path: Path) -> None:
    for block in (block for block in blocks(page) if block.info == "toml"):
        path = tmp_path / f"line-{block.line}.toml"
        path.write_text(block.body)
        load(str(path))


def test_the_container_s_configuration_is_one() -> None:
    settings = load(str(ROOT / "deploy" / "feeder.toml"))
    assert list(settings.datasets) == ["train"]


# -- tables ----------------------------------------------------------------------------------------


def test_every_setting_of_open_is_explained() -> None:
    table = rows(section(REFERENCE / "settings.md", "## sr.open"))
    assert table.keys() == StreamSettings.model_fields.keys()
    written = defaults_of(StreamSettings, table)
    assert StreamSettings(source="x", **written) == StreamSettings(source="x")


def test_every_argument_of_connect_is_explained() -> None:
    table = rows(section(REFERENCE / "settings.md", "## sr.connect"))
    arguments = dict(inspect.signature(connect).parameters)
    del arguments["others"]  # which refuses all others by name
    assert list(table) == list(arguments)
    for name, argument in arguments.items():
        text = table[name][0].strip("`")
        given = ast.literal_eval(text) if text else argument.empty
        assert given == argument.default, name


def test_every_setting_of_the_daemon_is_explained() -> None:
    table = rows(section(REFERENCE / "feeder.md", "## Configuration"))
    server = ServerSettings
    assert table.keys() == server.model_fields.keys()
    assert server(**defaults_of(server, table)) == server()


def test_what_determines_the_order_is_marked() -> None:
    table = rows(section(REFERENCE / "settings.md", "## sr.open"))
    marked = {name for name, cells in table.items() if cells[1] == "order"}
    assert marked == {
        *("source", "batch_size", "shuffle", "seed", "shuffle_window", "lanes"),
        *("filter", "map", "pack", "length_buckets", "index", "ordered", "weights", "exhausted"),
        *("split", "window"),
    }


def test_every_metric_and_path_is_listed() -> None:
    feeder = Feeder({})
    registry = CollectorRegistry()
    snapshot = feeder.snapshot()
    registry.register(SnapshotCollector({**snapshot, "budget": {"used": 0, "lent": 1, "limit": 1}}))
    there = set(re.findall(r"# TYPE (\S+)", generate_latest(registry).decode()))
    listed = rows(section(REFERENCE / "metrics.md", "## Health and metrics"))
    assert listed.keys() == there
    routes = status.application(feeder, Samples()).router.resources()
    for path in (route.canonical for route in routes):
        assert f"| `{path}` |" in (REFERENCE / "metrics.md").read_text()


def test_every_stage_is_explained() -> None:
    text = section(REFERENCE / "metrics.md", "## Where the time goes")
    lines = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$", text, re.MULTILINE)
    told = [(name, box, re.sub(r"\[(\w+)\]\([^)]*\)", r"\1", words)) for name, box, words in lines]
    assert told == [(name, stage.box, stage.meaning) for name, stage in TABLE.items()]


def test_a_page_of_stages_names_those_of_the_table() -> None:
    """Of the rows by which a reader looks up what to do, and of the ceilings behind a verdict."""
    watching = section(DOCS / "how-to/watch-a-feeder.md", "## Read what limits it")
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]+)\|", watching, re.MULTILINE)))
    assert {*BOXES} <= {*named} <= {*BOXES, *TABLE}
    ceilings = (DOCS / "explanation/verdict.md").read_text()
    assert [resource for resource in RESOURCES if resource not in ceilings] == []


def test_every_message_is_listed_with_its_fields() -> None:
    text = section(REFERENCE / "wire.md", "## Messages")
    for kind in messages.Kind:
        (line,) = re.findall(rf"^\| {kind.value} \| `{kind.name}` \|.*$", text, re.MULTILINE)
        for field in messages._TABLE.get(kind.name.capitalize(), ()):
            assert f"`{field.name}` {field.number}" in line


def test_every_error_is_listed() -> None:
    table = rows(section(REFERENCE / "errors.md", "# Errors"))
    named = {name: getattr(errors, name) for name in errors.__all__}
    classes: dict[str, type[errors.StreamrecError]] = {
        name: kind for name, kind in named.items() if isinstance(kind, type)
    }
    assert table.keys() == classes.keys() - {"StreamrecError"}
    for name, cells in table.items():
        builtins = [base.__name__ for base in classes[name].__bases__ if base.__module__[0] == "b"]
        assert cells[0] == " ".join(f"`{base}`" for base in builtins), name
        own = classes[name].retryable
        assert cells[1].startswith("retryable") == own, name


@pytest.mark.parametrize(
    "verb", ["demo", "serve", "cat", "info", "index", "reshard", "top", "verify", "write"]
)
def test_every_verb_is_named_in_the_changelog(verb: str) -> None:
    assert f"`{verb}`" in (ROOT / "CHANGELOG.md").read_text()


def test_the_changelog_s_names_exist() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    for name in re.findall(r"`streamrec\.(\w+)`", text):
        assert name in streamrec.__all__ or (ROOT / "streamrec" / name).is_dir(), name


def commands_beneath(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield each command, and those beneath it, with the words by which it is called."""
    for name, verb in verbs_of(group).items():
        yield f"{path}{name}", verb
        if isinstance(verb, click.Group):
            yield from commands_beneath(verb, f"{path}{name} ")


def test_every_verb_is_explained_with_its_options() -> None:
    page = REFERENCE / "cli.md"
    for name, verb in commands_beneath(program):
        listed = re.findall(r"^\| (`-.*?) \|", section(page, f"## {name}"), re.MULTILINE)
        options = {option.split()[0] for cell in listed for option in re.findall(r"`(.+?)`", cell)}
        flags = [option for option in verb.params if isinstance(option, click.Option)]
        assert options == {name for flag in flags for name in (*flag.opts, *flag.secondary_opts)}


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^::: streamrec\.(\w+)$", (REFERENCE / "api.md").read_text(), re.MULTILINE)
    others = {"__version__", *errors.__all__} - {"StreamrecError"}  # they have a page
    assert sorted(listed) == sorted(set(streamrec.__all__) - others)


# -- links -----------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_reached_from_another() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in _LINK.findall(page.read_text())
        if link.partition("#")[0]
    }
    assert {page for page in PAGES if page.is_relative_to(DOCS)} <= linked


# -- this test's own tools -------------------------------------------------------------------------


PAGE = """\
# A

```python
a = 1
```
text
```python no-run
b
```
```python
open('gs://x')
```

```python
print(a)
```

```
1
```
So that:
```
not printed
```

```console
$ streamrec info 'x y'
one

two
$ streamrec serve x.toml
```

```python
connect("tcp://127.0.0.1:7070/x")
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_the_scripts_of_a_page_have_the_page_s_lines(page: Path) -> None:
    alone, with_feeder = (script.splitlines() for script in scripts(page))
    assert [line for line in alone if line] == ["a = 1", "print(a)"]
    for code in (alone, with_feeder):
        assert all(line in ("", PAGE.splitlines()[i]) for i, line in enumerate(code))
    assert with_feeder[-1].startswith("connect(")


def test_only_what_follows_code_is_its_output(page: Path) -> None:
    assert shown_output(page) == "1\n"


def test_the_commands_of_a_page(page: Path) -> None:
    shown = [(["info", "x y"], "one\n\ntwo\n"), (["serve", "x.toml"], "")]
    assert commands(page) == shown


def test_a_tutorial_s_files_and_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("""\
```python
# train.py
a = 1
```
```python
# no file
b = 2
```
```console
$ export A=1
$ python train.py
one

two
```
""")
    assert files(page) == {"train.py": "# train.py\na = 1\n"}
    assert [block.body for block in blocks(page) if runs(block)] == ["# no file\nb = 2\n"]
    assert transcript(page) == [("export A=1", ""), ("python train.py", "one\n\ntwo\n")]


def test_links_of_both_forms_are_followed() -> None:
    text = "[a](x.md#b) [b][c] [d](https://e)\n\n[c]: ../y.md 'title'\n[f]: <z.md>\n[g]: http://h\n"
    assert _LINK.findall(text) == ["x.md#b", "../y.md", "z.md"]


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# sr.open\n\n## `[server]`: what, and why\n\n```sh\n# none\n```\n")
    assert anchors(page) == {"sropen", "server-what-and-why"}
