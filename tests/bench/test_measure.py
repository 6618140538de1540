from __future__ import annotations

import compileall
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench.machine import ROOT
from bench.measure import Case, Result, measure
from bench.results import rows, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture(autouse=True)
def as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip compiling the package, which only timings need."""
    monkeypatch.setattr(compileall, "compile_dir", lambda *_, **__: True)


def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    return {"records": report["records"]}


def failed(module: str) -> Result:
    [result] = measure([Case("group", "name", module, {})], judge, 1, lambda _: None)
    assert not result.measurements
    return result


def test_a_failed_reader_is_kept_without_folders_of_the_machine(tmp_path: Path) -> None:
    result = failed("bench.readers.memory")
    [failure] = result.failures
    assert failure.startswith("exit code 1: Traceback")
    assert 'File "bench/readers/memory.py"' in failure
    assert failure.endswith("KeyError: 'source'")
    write_json(tmp_path / "results.json", {"rows": rows([result])})
    kept = (tmp_path / "results.json").read_text()
    assert json.loads(kept)["rows"][0]["failures"] == [failure]
    assert str(ROOT) not in kept
    assert sys.prefix not in kept
    assert sys.base_prefix + "/lib" not in kept


def test_an_interpreter_that_finds_no_module() -> None:
    [failure] = failed("bench.readers.none").failures
    program = sys.executable.rpartition("/")[2]
    assert failure == f"exit code 1: {program}: No module named bench.readers.none"
