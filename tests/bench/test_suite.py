from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from bench.__main__ import how_long, main, run
from bench.harness import digests
from bench.suite import TABLES, Table

if TYPE_CHECKING:
    from pathlib import Path

INTERPRETERS = {"peers": sys.executable, "dlio": sys.executable}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
@pytest.mark.parametrize("quick", [False, True])
def test_each_command_takes_its_options(table: Table, quick: bool, tmp_path: Path) -> None:
    name = "bench.dlio.__main__" if table.module == "bench.dlio" else table.module
    try:
        command: Any = import_module(name).main
    except ImportError as missing:
        pytest.skip(f"{missing}")
    _, module, *options = table.command(tmp_path, INTERPRETERS, quick=quick)
    assert module == table.module
    assert isinstance(command, click.Command)
    command.make_context(table.name, options)


def test_the_list_names_every_table_and_runs_none() -> None:
    done = CliRunner().invoke(main, ["--list"])
    assert done.exit_code == 0
    assert [table.name for table in TABLES] == [
        line.split()[0] for line in done.output.splitlines()[::2]
    ]


def test_a_table_is_made_by_its_command(tmp_path: Path) -> None:
    arguments = ["--only", "start", "--quick", "--list", "--output", str(tmp_path)]
    done = CliRunner().invoke(main, arguments)
    assert done.output.splitlines()[1].split() == [
        *("python", "-m", "bench.start", "--repeat", "3", "--repeat", "1"),
        *("--output", str(tmp_path)),
    ]


def test_nothing_is_made_unless_it_is_asked_for() -> None:
    done = CliRunner().invoke(main, ["--quick"])
    assert done.exit_code == 0
    assert "Tables: remote, " in done.output


def test_how_tables_were_made_stands_beside_the_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = [Table(name, "nothing", "bench.none") for name in ("start", "index")]
    monkeypatch.setattr("bench.__main__.TABLES", tables)
    done = CliRunner().invoke(main, ["all", "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert "Failed: start, index." in done.output
    path = tmp_path / "all.json"
    first = json.loads(path.read_text())["tables"]
    assert list(first) == ["start", "index"]
    assert first["index"]["failed"]
    assert first["index"]["seconds"] > 0
    CliRunner().invoke(main, ["--only", "index", "--output", str(tmp_path)])
    again = json.loads(path.read_text())
    assert list(again["tables"]) == ["start", "index"]
    assert again["tables"]["start"] == first["start"]
    assert again["digests"] == digests(path)


def test_it_says_first_how_long_it_takes() -> None:
    text = how_long(["start", "index", "tokens"], {"start": 90.0, "index": 30.0, "other": 600.0})
    assert "| start " in text
    assert text.endswith("It takes about 2 minutes, and what tokens take.")


def test_a_quick_look_says_nothing_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.__main__.TABLES", [])
    assert CliRunner().invoke(main, ["all", "--quick"]).output == ""


def test_a_table_that_never_ends_has_failed() -> None:
    assert not run(["-c", "import signal; signal.pause()"], patience=0.01)
    assert run(["-c", ""])
    assert not run(["-c", "raise SystemExit(1)"])
