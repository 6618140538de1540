from __future__ import annotations

import compileall
import json
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness import Case, Report, Result, measure, rows_of, without_folders
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
