"""The programs of the page about clusters write the dataset, on the engines that are installed."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import streamrec as sr
from tests.by_day import at_night
from tests.pages import DOCS, ROOT, blocks
from tests.test_docs import files

PAGE = DOCS / "how-to" / "write-on-a-cluster.md"
TASKS = 4
PATIENCE = 250
"""Seconds for a program, on a machine that has much else to do."""


class Work:
    """A directory with the page's programs, and texts to write."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.texts = directory, directory / "texts"
        self.texts.mkdir()
        (directory / "out").mkdir()
        for name, body in files(PAGE).items():
            (directory / name).write_text(body)
        pages = sorted(DOCS.glob("reference/*.md"))[: 2 * TASKS]
        self.content = {f"{n:02}.md": page.read_text() for n, page in enumerate(pages)}
        for name, text in self.content.items():
            (self.texts / name).write_text(text)
        python = directory / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{directory}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "RAY_ADDRESS": "local",  # not the cluster of another test
            "RAY_USAGE_STATS_ENABLED": "0",
            "SOURCE": str(self.texts),
            "TEMPLATE": str(directory / "out/lines.tfrecord"),
        }

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str, **variables: str) -> str:
        """Run a program to its end; return what it prints."""
        with self.start(*command, **variables) as process:
            printed, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        return printed

    def check(self) -> int:
        """Check that each line is there once, and nothing else; return the number of lines."""
        shards = sr.shards(self.directory / "out/lines-*.tfrecord")
        names = {path.name for path in (self.directory / "out").iterdir()}
        beside = {"lines.streamrec-index", "lines.streamrec-manifest.json"}
        assert names == {Path(shard).name for shard in shards} | beside
        spec: dict[str, Any] = {
            "file": sr.FixedLenFeature((), bytes),
            "number": sr.FixedLenFeature((), "int64"),
            "line": sr.FixedLenFeature((), bytes),
        }
        records = [record for shard in shards for record in sr.read_records(shard)]
        found = sr.parse_example(records, spec)
        lines = zip(
            found["file"].to_list(), found["number"].tolist(), found["line"].to_list(), strict=True
        )
        assert sorted(lines) == [
            (name.encode(), number, line.encode())
            for name, text in self.content.items()
            for number, line in enumerate(text.splitlines())
        ]
        return len(records)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def slurm(work: Work) -> tuple[list[str], str]:
    """Return the command of Slurm's script, and the variable with the task's number."""
    (script,) = [block.body for block in blocks(PAGE) if "#SBATCH" in block.body]
    (work.directory / "write.sh").write_text(script)
    assert f"--array=0-{TASKS - 1}\n" in script
    return ["sh", "write.sh"], "SLURM_ARRAY_TASK_ID"


def kubernetes(work: Work) -> tuple[list[str], str]:
    """Return the command of the Job's container, and the variable with the task's number."""
    (block,) = [block.body for block in blocks(PAGE) if block.info == "yaml"]
    spec = yaml.safe_load(block)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (tasks,) = [entry["value"] for entry in container["env"] if entry["name"] == "TASKS"]
    assert int(tasks) == spec["completions"] == TASKS
    work.environment["TASKS"] = tasks
    return container["command"], "JOB_COMPLETION_INDEX"


@pytest.mark.parametrize("scheduler", [slurm, at_night(kubernetes)])
def test_tasks_as_processes_some_of_which_are_killed(scheduler: Any, work: Work) -> None:
    command, variable = scheduler(work)
    for task in (1, 2):
        # The task's second file is a pipe, at which it waits.
        pipe = work.texts / f"{TASKS + task:02}.md"
        text = pipe.read_text()
        pipe.unlink()
        os.mkfifo(pipe)
        with work.start(*command, **{variable: str(task)}) as process:
            with pipe.open("w"):  # waits until the task opens the other end
                process.send_signal(signal.SIGKILL)
                process.communicate()
        pipe.unlink()
        pipe.write_text(text)
    for task in (2, 0, 3):
        work.run(*command, **{variable: str(task)})
    merge = ["python", "write_task.py", "merge"]
    with work.start(*merge) as process:
        assert "1 of 4 tasks are not complete (1)" in process.communicate(timeout=PATIENCE)[1]
    work.run(*command, **{variable: "1"})
    work.run(*merge)
    work.check()


@pytest.mark.night
@pytest.mark.timeout(PATIENCE + 10)
@pytest.mark.xdist_group("ray")  # each engine takes all cores
@pytest.mark.parametrize(
    ("program", "library", "tool"),
    [
        ("with_ray.py", "ray", "python3"),
        ("with_spark.py", "pyspark", "java"),
        ("with_beam.py", "apache_beam", "python3"),
    ],
)
def test_tasks_on_an_engine(program: str, library: str, tool: str, work: Work) -> None:
    if find_spec(library) is None or shutil.which(tool) is None:
        pytest.skip(f"{library} or {tool} is not installed")
    printed = work.run("python", program)
    assert printed.splitlines()[-1] == f"{work.check()} records"


@pytest.mark.night
@pytest.mark.timeout(PATIENCE + 10)
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_dataset_of_ray_data(work: Work) -> None:
    assert work.run("python", "with_ray_data.py").splitlines()[-1] == str(sum(range(1000)))


def test_the_job_is_submitted_with_the_last_step() -> None:
    (block,) = [block.body for block in blocks(PAGE) if "sbatch" in block.body]
    assert shlex.split(block.splitlines()[-1])[-1] == "python write_task.py merge"
