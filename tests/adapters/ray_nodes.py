"""Writes and reads a dataset on two simulated nodes of Ray, one of which is killed in the middle.

``python -m tests.adapters.ray_nodes DIRECTORY START``: the node is killed while it runs the task
that begins there as number START, from 1 on. Prints ``done`` where every record is there once.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import streamrec as sr
from streamrec.adapters.ray import TFRecordDatasink, read_tfrecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

RECORDS, SHARDS = 6000, 12
PAYLOAD = 1000
"""Bytes of a record. A block is then too large to travel beside Ray's messages, and dies with the
node that holds it."""
FEATURES: dict[str, Any] = {
    "id": sr.FixedLenFeature((), "int64"),
    "payload": sr.FixedLenFeature((), bytes),
}


class Hold:
    """A hook in tasks: on one node, the task that begins there as a given number never goes on.

    It leaves a file when it holds. Tasks on other nodes wait until then, so that they do not take
    all the work while the node starts its processes. Nodes share the directory.
    """

    def __init__(self, directory: Path, node: str, start: int) -> None:
        directory.mkdir()
        self._directory, self._node, self._start = directory, node, start

    def __call__(self) -> None:
        """Hold the task, if it is the one."""
        never = threading.Event()
        if ray.get_runtime_context().get_node_id() != self._node:
            while not self.held.exists():
                never.wait(0.02)
            return
        (self._directory / ray.get_runtime_context().get_task_id()).touch()
        if len(list(self._directory.iterdir())) >= self._start:
            self.held.touch()
            never.wait()

    @property
    def held(self) -> Path:
        """The file that is there when a task holds."""
        return self._directory.with_suffix(".held")


class HeldSink(TFRecordDatasink):
    """A sink whose tasks can be held when half of their records are written."""

    def __init__(self, hold: Hold, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._hold = hold

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Write half of the records, maybe hold, and write the others."""

        def halves() -> Iterator[Any]:
            for block in blocks:
                yield block.slice(0, len(block) // 2)
                self._hold()
                yield block.slice(len(block) // 2)

        return super().write(halves(), ctx)


def record(given: dict[str, Any]) -> dict[str, Any]:
    return {"id": given["id"], "payload": payload(int(given["id"]))}


def payload(number: int) -> bytes:
    return number.to_bytes(4, "little") * (PAYLOAD // 4)


def killing(cluster: Cluster, node: Any, held: Path, run: Callable[[], Any]) -> Any:
    """Run something in this thread; kill the node as soon as a task of it holds."""
    over = threading.Event()
    killed = []

    def watch() -> None:
        while not over.wait(0.02):
            if held.exists():
                cluster.remove_node(node, allow_graceful=False)
                killed.append(node)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return run()
    finally:
        over.set()
        watcher.join()
        assert killed, "too few tasks ran on the node"


def write(cluster: Cluster, directory: Path, start: int) -> None:
    node = cluster.add_node(num_cpus=1)
    hold = Hold(directory / "writes", node.node_id, start)
    sink = HeldSink(hold, directory / "data/x.tfrecord", SHARDS, shards=SHARDS, source="numbers")
    data = ray.data.range(RECORDS, override_num_blocks=8).map(record).repartition(SHARDS)
    spread = {"scheduling_strategy": "SPREAD"}
    killing(cluster, node, hold.held, lambda: data.write_datasink(sink, ray_remote_args=spread))


def read(cluster: Cluster, directory: Path, start: int, index: bool) -> Any:
    node = cluster.add_node(num_cpus=1)
    hold = Hold(directory / f"reads-{index}", node.node_id, start)

    def held(columns: Any) -> Any:
        hold()
        return columns

    data = read_tfrecords(
        directory / "data/x-*", FEATURES, index=index, map=held, override_num_blocks=8,
        ray_remote_args={"scheduling_strategy": "SPREAD"},
    )  # fmt: skip
    return killing(cluster, node, hold.held, data.take_all)


def check_objects(directory: Path) -> None:
    shards = [f"x-{number:05}-of-{SHARDS:05}.tfrecord" for number in range(SHARDS)]
    beside = ["x.streamrec-index", "x.streamrec-manifest.json"]
    assert sorted(path.name for path in directory.iterdir()) == [*shards, *beside]
    with sr.open(
        directory / "x-*", FEATURES, batch_size=100, index=True, engine="thread"
    ) as stream:
        batches = list(stream)
    check(
        np.concatenate([b["id"] for b in batches]).tolist(),
        [p for b in batches for p in b["payload"]],
    )


def check(ids: list[int], payloads: list[bytes]) -> None:
    assert sorted(ids) == list(range(RECORDS))
    assert payloads == [payload(number) for number in ids]


def main(directory: Path, start: int) -> None:
    (directory / "data").mkdir()
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        ray.init(cluster.address)
        ray.data.DataContext.get_current().enable_progress_bars = False
        write(cluster, directory, start)
        check_objects(directory / "data")
        for index in (False, True):
            rows = read(cluster, directory, start, index)
            check([row["id"] for row in rows], [row["payload"] for row in rows])
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    print("done")
