from __future__ import annotations

import compileall
import json
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.cases import Case, Result, measure, without_folders
from bench.harness import Aim, Column, Report, Run, benchmark, rows_of, shorten, spread
from bench.machine import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping


CHECKOUT = Path("/home/someone/check out")


@pytest.fixture(autouse=True)
def as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip compiling the package, which only timings need."""
    monkeypatch.setattr(compileall, "compile_dir", lambda *_, **__: True)


def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    return {"records": report["records"]}


def failed(program: str) -> Result:
    [result] = measure([Case("group", "name", program, {})], judge, 1, lambda _: None)
    assert not result.measurements
    return result


def test_a_failed_reader_is_kept_without_folders_of_the_machine(tmp_path: Path) -> None:
    result = failed("readers.streams memory")
    [failure] = result.failures
    assert failure.startswith("exit code 1: Traceback")
    assert 'File "bench/readers/streams.py"' in failure
    assert failure.endswith("KeyError: 'source'")
    Report("", {"rows": rows_of([result])}).write(tmp_path, "results")
    kept = (tmp_path / "results.json").read_text()
    assert json.loads(kept)["rows"][0]["failures"] == [failure]
    assert str(ROOT) not in kept
    assert sys.prefix not in kept
    assert sys.base_prefix + "/lib" not in kept


def test_an_interpreter_that_finds_no_module() -> None:
    [failure] = failed("readers.none x").failures
    program = sys.executable.rpartition("/")[2]
    assert failure == f"exit code 1: {program}: No module named bench.readers.none"


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/home/someone/check out/bench/readers/stream.py", "bench/readers/stream.py"),
        ("/usr/lib/python3.12/asyncio/runners.py", "asyncio/runners.py"),
        ("/opt/python/lib/python3.14t/asyncio/runners.py", "asyncio/runners.py"),
        ("/usr/lib64/python3.11/lib-dynload/x.so", "lib-dynload/x.so"),
        ("/usr/lib/python3/dist-packages/numpy/x.py", "numpy/x.py"),
        ("/a b/venv/lib/python3.12/site-packages/numpy/core/x.py", "numpy/core/x.py"),
        ("/home/someone/check out/.venv/lib/python3.12/site-packages/a/b.py", "a/b.py"),
        ("/a/lib/python3.12/site-packages/a/site-packages/b.py", "b.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("s3://bucket/key.tfrecord", "s3://bucket/key.tfrecord"),
    ],
)
def test_a_frame_names_no_folder_of_the_machine(path: str, left: str) -> None:
    frame = '  File "{}", line 3, in main\n    raise ValueError("x")\n'
    assert without_folders(frame.format(path), CHECKOUT) == frame.format(left)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("/bin/sh: x: not found", "sh: x: not found"),
        ("/a/venv/bin/python3: No module named x", "python3: No module named x"),
        (
            "/a/lib/python3.12/site-packages/b.py:3: UserWarning: see /usr/bin/c",
            "b.py:3: UserWarning: see c",
        ),
        (
            "ImportError: /a/site-packages/b.so: undefined symbol",
            "ImportError: b.so: undefined symbol",
        ),
        ("OSError: '/a/bin/b' and '/a/lib/c'", "OSError: 'b' and '/a/lib/c'"),
    ],
)
def test_paths_without_quotes(line: str, left: str) -> None:
    assert without_folders(line, CHECKOUT) == left


def test_a_checkout_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    text = f'File "{link}/bench/a.py"\nFile "{tmp_path.resolve()}/real/bench/b.py"\n'
    assert without_folders(text, link) == 'File "bench/a.py"\nFile "bench/b.py"\n'


@given(st.text())
def test_what_names_no_folder_stays(text: str) -> None:
    assert without_folders(text.replace("/", ""), CHECKOUT) == text.replace("/", "")


@given(st.text(), st.text())
def test_done_twice_is_done_once(before: str, behind: str) -> None:
    text = f"{before}{CHECKOUT}/bench/a.py /usr/lib/python3.12/{behind}"
    once = without_folders(text, Path("/nowhere"))
    assert without_folders(once, Path("/nowhere")) == once


def test_a_traceback_of_this_interpreter() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    text = without_folders("".join(traceback.format_exception(caught.value)), Path.cwd())
    assert 'File "json/decoder.py"' in text
    assert sysconfig.get_path("stdlib") not in text
    assert sysconfig.get_path("purelib") not in text
    assert sys.prefix not in text


def command(report: Report, **options: Any) -> click.Command:
    """Return a benchmark that has found what a report says."""

    @benchmark("example", **options)
    @click.option("--size", default=1.0)
    def main(run: Run, *, size: float) -> Report:
        case = Case("group", "name", "none x", {})
        if run.choose([case]):
            run.results.append(Result(case, [{"size": size}]))
        run.skipped += ["a peer is missing."] * 2
        report.facts["rounds"] = run.repeat
        return report

    return main


def test_a_report_is_printed_and_written(tmp_path: Path) -> None:
    report = Report("| 1.5 |", {"libraries": {"peer": "1.0"}}, [Aim("fast", "s", 2.0, 1.5)])
    arguments = ["--output", str(tmp_path), "--size", "3", "--repeat", "5"]
    done = CliRunner().invoke(command(report, repeat=2), arguments)
    assert done.exit_code == 0, done.output
    assert done.output.count("Skipped: a peer is missing.") == 1
    text = (tmp_path / "example.md").read_text()
    assert text in done.output
    assert "| fast | at least 2 s |     1.50 |  no |" in text
    content = json.loads((tmp_path / "example.json").read_text())
    assert (content["benchmark"], content["rounds"]) == ("example", 5)
    assert content["machine"]["libraries"]["peer"] == "1.0"
    assert [aim["met"] for aim in content["aims"]] == [False]
    assert content["rows"][0]["summary"] == {"size": {"median": 3.0, "min": 3.0, "max": 3.0}}


def test_what_was_not_measured_is_no_aim(tmp_path: Path) -> None:
    report = Report("text", aims=[Aim("fast", "s", 2.0, None)])
    done = CliRunner().invoke(command(report), ["--output", str(tmp_path)])
    assert "aims" not in done.output
    assert "aims" not in json.loads((tmp_path / "example.json").read_text())


@pytest.mark.parametrize(("failed", "code"), [(None, 0), (False, 0), (True, 1)])
def test_the_exit_code(failed: bool | None, code: int) -> None:
    assert CliRunner().invoke(command(Report("text", failed=failed)), []).exit_code == code


def test_a_failed_case_is_shown_on_a_line() -> None:
    report, run = Report("text"), Run()
    run.results.append(
        Result(Case("a", "b", "none x", {}), failures=["exit code 1: x\ny\nError: z"])
    )
    assert not run.finish(report, "example")
    assert shorten(run.results[0].failures[0]) == "exit code 1: Error: z"


@pytest.mark.parametrize("option", ["--repeat", "--only", "--data"])
def test_a_benchmark_has_the_options_that_it_asks_for(option: str) -> None:
    assert CliRunner().invoke(command(Report("text")), [option, "1"]).exit_code == 2
    all_of_them = command(Report("text"), repeat=1, only=True, data=True)
    value = "name" if option == "--only" else "1"
    assert CliRunner().invoke(all_of_them, [option, value]).exit_code == 0


def test_only_selects_by_a_part_of_the_title() -> None:
    cases = [Case("store", name, "none x", {}) for name in ("for", "async for", "download")]
    assert [case.name for case in Run(only=["e: for", "load"]).choose(cases)] == ["for", "download"]
    assert Run().choose(cases) == cases


def test_what_only_selects_must_exist() -> None:
    arguments = ["--only", "name", "--only", "nmae"]
    result = CliRunner().invoke(command(Report("text"), only=True), arguments)
    assert result.exit_code == 2
    assert "'nmae'" in result.stderr
    assert "  group: name" in result.stderr


def test_columns_of_results_are_medians_and_of_mappings_their_values() -> None:
    result = Result(Case("group", "name", "none x", {}), [{"x": 1.0}, {"x": 30.0}, {"x": 2.0}])
    columns = (
        Column("name", lambda row: getattr(row, "case", result.case).name, str),
        Column("x", "x"),
        Column("least", spread("x", " to "), str),
        Column("y", "y", "{:.1f}"),
    )
    assert [column.cell(result) for column in columns] == ["name", "2.00", "1.00 to 30.0", "-"]
    assert [column.cell({"y": 0.25}) for column in columns[1::2]] == ["-", "0.2"]
    assert spread("y")(result) == "-"
    assert spread("x")(Result(Case("group", "name", "none x", {}), [{"x": 1.0}])) == "-"
