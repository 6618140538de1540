"""The batch script of Slurm, with real feeders and clients, in a shim of Slurm's environment.

The shim runs the steps of ``srun`` as processes of this machine: a feeder on each of two loopback
addresses, and the ranks, with the variables that Slurm gives them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from socket import create_server
from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from tests.deploy.dockerfile import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = ROOT / "deploy" / "slurm" / "train.sbatch"
RANKS = 4
SRUN = """#!/bin/bash
# srun --het-group=N [options] command: its tasks as processes here.
trap 'kill -TERM $(jobs -p) 2>/dev/null; wait; exit 143' TERM
group=${1#--het-group=}; shift
while [[ $1 == --* ]]; do shift; done
if [ "$group" = 0 ]; then
    for host in 127.0.0.1 127.0.0.2; do
        mkdir -p "$SHIM/$host"
        printf '#!/bin/sh\\necho %s\\n' "$host" > "$SHIM/$host/hostname"
        chmod +x "$SHIM/$host/hostname"
        PATH="$SHIM/$host:$PATH" "$@" &
    done
else
    for rank in 0 1 2 3; do
        SLURM_PROCID=$rank SLURM_NTASKS=4 SLURM_LOCALID=$rank SLURM_STEP_NUM_TASKS=4 \\
            SLURM_STEP_ID=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0 "$@" &
        ranks+=($!)
    done
    for one in "${ranks[@]}"; do wait "$one" || failed=1; done
    exit "${failed:-0}"
fi
wait
"""
SCONTROL = """#!/bin/bash
[ "$1 $2 $3" = "show hostnames cpu[1-2]" ] && printf '127.0.0.1\\n127.0.0.2\\n'
"""
TRAIN = """
import os
import streamrec as sr
with sr.connect(os.environ["FEEDERS"], rank="auto") as stream:
    ids = [int(number) for batch in stream for number in batch["id"]]
with open(f"{os.environ['SHIM']}/rank-{os.environ['SLURM_PROCID']}", "w") as file:
    print(os.environ["FEEDERS"], *ids, file=file)
raise SystemExit(int(os.environ.get("FAILS", "0")))
"""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def run(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    with sr.ShardedWriter(directory / "train.tfrecord", shards=4) as writer:
        writer.write_many({"id": number} for number in range(400))
    configuration = directory / "feeder.toml"
    configuration.write_text(
        f'[server]\ngrace = 1.0\n[datasets.train]\nsource = "{directory}/train-*.tfrecord"\n'
        'index = true\nlanes = 4\nbatch_size = 10\nfeatures.id = { dtype = "int64" }\n'
    )
    program(directory / "srun", SRUN)
    program(directory / "scontrol", SCONTROL)
    program(directory / "streamrec", f'#!/bin/sh\nexec {sys.executable} -m streamrec "$@"\n')
    program(directory / "train", f"#!{sys.executable}\n{TRAIN}")
    with closing(create_server(("127.0.0.1", 0))) as free:
        port = str(free.getsockname()[1])
    return subprocess.run(
        ["bash", str(SCRIPT)],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("SLURM_")},
            "PATH": f"{directory}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SHIM": str(directory),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST_HET_GROUP_0": "cpu[1-2]",
            "CONFIG": str(configuration),
            "DATASET": "train",
            "TRAIN": str(directory / "train"),
            "PORT": port,
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("fails", [3, pytest.param(0, marks=pytest.mark.night)])
def test_ranks_read_each_record_once_and_decide_how_the_job_ends(
    fails: int, tmp_path: Path
) -> None:
    done = run(tmp_path, FAILS=str(fails))
    assert bool(done.returncode) == bool(fails), done.stdout + done.stderr
    told = [(tmp_path / f"rank-{rank}").read_text().split() for rank in range(RANKS)]
    assert sorted(int(number) for _, *ids in told for number in ids) == [*range(400)]
    (address,) = {address for address, *_ in told}
    assert re.fullmatch(r"tcp://127\.0\.0\.1:(\d+),127\.0\.0\.2:\1/train", address)


def test_a_job_without_its_arguments_ends_at_once(tmp_path: Path) -> None:
    done = run(tmp_path, CONFIG="")
    assert done.returncode
    assert "CONFIG" in done.stderr


def test_it_asks_for_two_components() -> None:
    lines = re.findall(r"^#SBATCH (.*)$", SCRIPT.read_text(), re.MULTILINE)
    before, after = lines[: lines.index("hetjob")], lines[lines.index("hetjob") + 1 :]
    assert not any("gpus" in line for line in before)
    assert any("gpus" in line for line in after)
