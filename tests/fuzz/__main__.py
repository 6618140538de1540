"""Fuzzes the kernel in C: ``python -m tests.fuzz --runs 10000000``.

README.md beside this file says what is fuzzed, and how to reproduce a finding.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.fuzz.building import TARGETS, CannotBuildError, build, find_clang
from tests.fuzz.running import Report, Settings, run_target


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz the kernel in C."
    )
    parser.add_argument(
        "targets", nargs="*", metavar="target", help=f"of {', '.join(TARGETS)} [all]"
    )
    parser.add_argument("--runs", type=int, default=100_000, help="executions a target [100000]")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time [1]")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations [1]")
    parser.add_argument("--work", type=Path, help="keep here what reaches new code, and findings")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}: take {', '.join(TARGETS)}")
    return given


def main() -> int:
    given = arguments()
    try:
        built = build(find_clang())
    except CannotBuildError as error:
        print(error, file=sys.stderr)
        return 2
    work = given.work or Path(tempfile.mkdtemp(prefix="streamrec-fuzz-work-"))
    run = partial(run_and_print, built, work.absolute(), given.runs, given.seed)
    with ThreadPoolExecutor(max(given.jobs, 1)) as pool:
        reports = list(pool.map(run, given.targets or TARGETS))
    print(f"built in {built}; inputs and findings are in {work}")
    return int(any(report.finding for report in reports))


def run_and_print(built: Path, work: Path, runs: int, seed: int, target: str) -> Report:
    corpus = work / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    settings = Settings(runs, seed, findings=work / "findings", work=corpus)
    report = run_target(built, target, settings)
    print(report, flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
