"""Reports the kernel's lines that the fuzz targets execute: ``python -m tests.fuzz.coverage``.

Needs ``llvm-profdata`` and ``llvm-cov`` of clang's own version.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.building import TARGETS, build, find_clang, kernel_sources
from tests.fuzz.running import Settings, run_target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.coverage", description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000, help="executions a target [20000]")
    parser.add_argument("--show", action="store_true", help="print the lines, not a table")
    given = parser.parse_args()
    built = build(find_clang(), coverage=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        for target in TARGETS:
            os.environ["LLVM_PROFILE_FILE"] = str(work / f"{target}.profraw")
            run_target(built, target, Settings(given.runs, findings=work))
        sys.exit(_report(built, work, "show" if given.show else "report"))


def _report(built: Path, work: Path, what: str) -> int:
    merged = str(work / "merged.profdata")
    profiles = [str(work / f"{target}.profraw") for target in TARGETS]
    subprocess.run(["llvm-profdata", "merge", "-o", merged, *profiles], check=True)
    others = [f"-object={built / target}" for target in TARGETS[1:]]
    files = [str(path) for path in kernel_sources()]
    command = ["llvm-cov", what, str(built / TARGETS[0]), *others, f"-instr-profile={merged}"]
    return subprocess.run([*command, *files], check=False).returncode


if __name__ == "__main__":
    main()
