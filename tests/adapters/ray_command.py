"""Writes a dataset by ``streamrec write --engine ray``; a node is killed in the middle.

``python -m tests.adapters.ray_command DIRECTORY``: prints ``done`` where the bytes are those of
tasks that were run by hand.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.cluster_utils import Cluster

import streamrec as sr
from streamrec.cli.program import run
from tests.adapters.ray_nodes import killing
from tests.datasets.datasets import contents

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS, TASKS = 3000, 4
HOLD = "STREAMREC_TEST_HOLD"
"""The variable that names a file with the name of the node to kill, if there is one."""


def records() -> Iterator[dict[str, Any]]:
    """Yield records; on the node to kill, never yield the last ones."""
    for number in range(RECORDS):
        if number == RECORDS * 2 // 3 and HOLD in os.environ:
            hold(Path(os.environ[HOLD]))
        yield {"id": number, "name": f"record {number}"}


def hold(named: Path) -> None:
    node = ray.get_runtime_context().get_node_id()
    mark = named.with_suffix(".held")
    if node == named.read_text():
        mark.touch()
        threading.Event().wait()
    while not mark.exists():  # else this node may take all the work
        threading.Event().wait(0.02)


def write(into: str, *options: str) -> int:
    form = ["--shard-size", "9kB", "--shuffle", "--split", "train=0.9,test=0.1"]
    place = ["tests.adapters.ray_command:records", into, "--source-version", "1"]
    return run(["write", *place, *form, *options])


def main(directory: Path) -> None:
    for name in ("hand", "ray"):
        (directory / name).mkdir()
    for task in range(TASKS):
        assert write(f"{directory}/hand/", "--task", f"{task}/{TASKS}") == 0
    for split in ("train", "test"):
        sr.merge_index(directory / "hand" / f"{split}.tfrecord")
    named = directory / "hold"
    os.environ[HOLD] = str(named)  # for all processes of Ray
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        ray.init(cluster.address)
        node = cluster.add_node(num_cpus=1)
        named.write_text(node.node_id)
        on_ray = ["--engine", "ray", "--tasks", str(TASKS)]
        mark = named.with_suffix(".held")
        assert killing(cluster, node, mark, lambda: write(f"{directory}/ray/", *on_ray)) == 0
        assert contents(directory / "ray") == contents(directory / "hand")
        assert write(f"{directory}/ray/", *on_ray) == 0
        assert write(f"{directory}/ray/", *on_ray, "--seed", "2") == 2
        assert contents(directory / "ray") == contents(directory / "hand")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print("done")
