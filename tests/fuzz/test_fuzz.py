"""A short run of every fuzz target, over the corpus and some thousand inputs made of it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.building import LINKED, TARGETS, CannotBuildError, build, find_clang, sources
from tests.fuzz.running import CORPUS, LONGEST, Report, Settings, run_target
from tests.fuzz.seeds import SEEDS, dictionary

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("fuzz")  # the targets are compiled once, in one worker

RUNS = 10_000
"""A target: about a second for the slowest."""
VARIABLE = "STREAMREC_TEST_FUZZ"
"""``require`` makes these tests fail, not skip, where there is no clang with libFuzzer."""


@pytest.fixture(scope="session")
def built() -> Path:
    try:
        clang = find_clang()
    except CannotBuildError as error:
        if os.environ.get(VARIABLE) == "require":
            raise
        pytest.skip(str(error))
    return build(clang)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(built: Path, target: str, tmp_path: Path) -> None:
    report = run_target(built, target, Settings(RUNS, findings=tmp_path / "findings"))
    assert report.finding is None
    assert report.executions >= RUNS
    assert report.edges > 20


def test_a_finding_is_reported(built: Path, tmp_path: Path) -> None:
    source = (
        "int LLVMFuzzerTestOneInput(const char *data, long size) { return size ? data[size] : 0; }"
    )
    (tmp_path / "faulty.c").write_text(source)
    target = str(tmp_path / "rows")
    command = [find_clang(), *LINKED, str(tmp_path / "faulty.c"), "-o", target]
    subprocess.run(command, check=True)
    report = run_target(tmp_path, "rows", Settings(RUNS, findings=tmp_path / "findings"))
    assert report.finding is not None
    assert "heap-buffer-overflow" in report.finding
    (written,) = (tmp_path / "findings").iterdir()
    assert report.finding.endswith(f"input: {written}")


def test_building_again_takes_what_was_built(built: Path) -> None:
    before = (built / "scan").stat().st_mtime_ns
    assert build(find_clang()) == built
    assert (built / "scan").stat().st_mtime_ns == before


def test_a_report_tells_everything_in_a_line() -> None:
    report = Report("scan", executions=20_000, seconds=2.0, edges=56, finding=None)
    told = "scan 20,000 executions 10,000/s 56 edges no finding"
    assert " ".join(str(report).split()) == told


class TestCorpus:
    def test_the_glue_is_not_among_the_sources(self) -> None:
        names = {path.name for path in sources()}
        assert {"crc32c.c", "measure.c", "parsing.c", "input.h"} <= names
        assert not any(name.startswith("module") for name in names)

    @pytest.mark.parametrize("target", TARGETS)
    def test_it_is_what_the_script_writes(self, target: str) -> None:
        written = {path.read_bytes() for path in (CORPUS / target).iterdir()}
        assert written == set(SEEDS[target]())

    def test_no_seed_is_cut_and_all_are_small(self) -> None:
        sizes = [path.stat().st_size for path in CORPUS.glob("*/*")]
        assert max(sizes) <= LONGEST
        assert sum(sizes) < 200_000

    def test_the_dictionary_is_what_the_script_writes(self) -> None:
        assert (CORPUS.parent / "wire.dict").read_text() == dictionary()
