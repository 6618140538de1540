"""The workloads of MLPerf Storage that read TFRecords, small, and the readers that take part."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases import say
from bench.machine import ROOT

BUCKET = "mlperf"


@dataclass(frozen=True)
class Workload:
    """A workload of DLIO, with less data; all else is as its YAML file says.

    Args:
        name: Name of the YAML file.
        files: Number of files, in place of the file's own.
        samples: Samples in each file, in place of the file's own.
        record_bytes: Mean size of a sample, from the YAML file.
        batch_size: Samples in a batch, from the YAML file.
        step_seconds: Seconds that DLIO sleeps for each batch, from the YAML file.
        passing: Least utilisation in per cent with which MLPerf counts a run, from the YAML file.
    """

    name: str
    files: int
    samples: int
    record_bytes: float
    batch_size: int
    step_seconds: float
    passing: float

    @property
    def folder(self) -> str:
        """Return the name of the data's directory."""
        return f"{self.name}-{self.files}x{self.samples}"

    @property
    def steps(self) -> int:
        """Return the number of steps of an epoch."""
        return self.files * self.samples // self.batch_size

    @property
    def megabytes(self) -> float:
        return self.files * self.samples * self.record_bytes / 1e6

    @property
    def needed(self) -> float:
        """Return the samples a second that a trainer takes which never waits."""
        return self.batch_size / self.step_seconds

    def facts(self) -> dict[str, Any]:
        """Return plain values for the results."""
        keys = ("name", "files", "samples", "record_bytes", "batch_size", "step_seconds", "passing")
        return {
            **{key: getattr(self, key) for key in keys},
            "steps": self.steps,
            "samples_per_second_needed": self.needed,
        }

    def make(self, python: str, root: Path) -> None:
        """Let DLIO write the data, unless they are there; unfinished ones are not kept.

        Args:
            python: Interpreter that has DLIO.
            root: Directory of the bucket.
        """
        target = root / BUCKET / self.folder
        if target.is_dir():
            return
        say(f"DLIO writes {self.folder}: {self.megabytes:,.0f} MB")
        unfinished = root / f".{self.folder}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        steps = {"workflow.generate_data": True, "workflow.train": False}
        plain = overrides(self, {**steps, "dataset.data_folder": unfinished})
        arguments = {"imports": [], "trains": False, "overrides": plain}
        command = [python, "-m", "bench.dlio.launch", "run", json.dumps(arguments)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        unfinished.rename(target)


def overrides(workload: Workload, more: Mapping[str, Any]) -> list[str]:
    """Return DLIO's command line for a workload.

    Args:
        more: More settings than its own, by their path in the YAML file.
    """
    sizes = {
        "dataset.num_files_train": workload.files,
        "dataset.num_samples_per_file": workload.samples,
        "train.epochs": 1,
    }
    plain = [f"++workload.{path}={value}" for path, value in {**sizes, **more}.items()]
    return [f"workload={workload.name}", *plain]


@dataclass(frozen=True)
class Reader:
    """A way to read within DLIO.

    Args:
        settings: DLIO's settings of it, by their path in the YAML file.
        from_store: True where it reads from an object store.
        needs: Distribution that it needs besides DLIO's own.
    """

    name: str
    settings: Mapping[str, Any]
    from_store: bool = True
    needs: str = "dlio-benchmark"


WORKLOADS = (
    Workload("resnet50_h100", 8, 800, 114_660.07, 400, 0.224, 90.0),
    Workload("cosmoflow_h100", 256, 1, 2_828_486, 1, 0.0035, 70.0),
)
READERS = (
    Reader("streamrec", {"reader.reader_classname": "bench.dlio.plugin.StreamrecReader"}),
    Reader(
        'streamrec, engine="thread"',
        {"reader.reader_classname": "bench.dlio.plugin.ThreadReader"},
        from_store=False,
    ),
    Reader("DLIO's own, tf.data", {}),
    Reader(
        "DLIO's own, DALI",
        {"reader.data_loader": "native_dali"},
        from_store=False,
        needs="nvidia-dali-cuda120",
    ),
)
