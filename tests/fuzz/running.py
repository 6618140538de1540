"""Runs a fuzz target, and reads what libFuzzer says of it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.fuzz.building import HERE

__all__ = ["CORPUS", "DICTIONARY", "LONGEST", "Report", "Settings", "run_target"]

CORPUS = HERE / "corpus"
DICTIONARY = HERE / "wire.dict"

LONGEST = 1024
"""Bytes of an input: enough for blocks of 64 bytes and several records, few enough for speed."""
LIMITS = ("-timeout=60", "-rss_limit_mb=4096", "-malloc_limit_mb=512")
"""An input that takes a minute, or half a gigabyte at once, is a finding as well."""

# A stack for every allocation costs more than the rest; to reproduce a finding there is one.
FASTER = "malloc_context_size=0:quarantine_size_mb=4"


@dataclass(frozen=True)
class Settings:
    """The settings of a target's run."""

    runs: int
    """Executions; those of the corpus are among them."""
    seed: int = 1
    """Seed of the mutations; the same seed gives the same run."""
    findings: Path = Path()
    """Directory of inputs with findings."""
    work: Path | None = None
    """Directory of inputs that reach something new, or ``None`` to keep none."""


@dataclass(frozen=True)
class Report:
    """The results of a target's run."""

    target: str
    executions: int
    seconds: float
    edges: int
    """Edges of the kernel's control flow that some input took."""
    finding: str | None
    """Fault that was found, and its input, or ``None``."""

    @property
    def rate(self) -> float:
        """Executions a second."""
        return self.executions / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        told = self.finding or "no finding"
        return (
            f"{self.target:10} {self.executions:>11,} executions {self.rate:>8,.0f}/s "
            f"{self.edges:>5} edges  {told}"
        )


def run_target(built: Path, target: str, settings: Settings) -> Report:
    """Run one target over its corpus and what becomes of it."""
    settings.findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as nowhere:
        # What reaches something new is written to the first of them.
        corpora = (str(settings.work or nowhere), str(CORPUS / target))
        command = [str(built / target), *LIMITS, *_options(target, settings), *corpora]
        begin = monotonic()
        finished = subprocess.run(command, env=_environment(), capture_output=True, check=False)
        seconds = monotonic() - begin
    output = finished.stderr.decode(errors="replace")
    finding = _finding(output) if finished.returncode else None
    executions = _last(r"stat::number_of_executed_units: +(\d+)", output)
    return Report(target, executions, seconds, _last(r"cov: (\d+)", output), finding)


def _environment() -> dict[str, str]:
    return {**os.environ, "ASAN_OPTIONS": FASTER}


def _options(target: str, settings: Settings) -> list[str]:
    return [
        f"-runs={settings.runs}",
        f"-seed={settings.seed}",
        f"-max_len={LONGEST}",
        "-len_control=20",  # long inputs sooner than by default
        f"-dict={DICTIONARY}",
        f"-artifact_prefix={settings.findings}/{target}-",
        "-print_final_stats=1",
    ]


def _last(pattern: str, output: str) -> int:
    found = re.findall(pattern, output)
    return int(found[-1]) if found else 0


def _finding(output: str) -> str:
    """Return the lines that name the fault and the input, else the whole output."""
    what = re.findall(r"^.*(?:violated: |runtime error: |ERROR: ).*$", output, re.MULTILINE)
    where = re.findall(r"Test unit written to (\S+)", output)
    return f"{what[0]}; input: {where[-1]}" if what and where else output[-2000:]
