"""JAX, each time in processes of its own; with_jax*.py and jax_processes.py are what they run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import streamrec as sr
from tests.adapters.test_elastic_training import alone
from tests.adapters.torch_shards import write_examples

ROOT = Path(__file__).parents[2]
PATIENCE = 400
"""Seconds for a program, on a machine that has much else to do."""

pytestmark = [
    pytest.mark.xdist_group("jax"),  # its programs run once, in one worker
    pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed"),
    pytest.mark.skipif(find_spec("orbax") is None, reason="orbax-checkpoint is not installed"),
    pytest.mark.timeout(2 * PATIENCE),
]


def start(devices: int, *arguments: object) -> subprocess.Popen[str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_tests_on_eight_devices_pass() -> None:
    files = [f"tests/adapters/{name}.py" for name in ("with_jax", "with_jax_placement")]
    tests = start(8, "pytest", "-q", "-p", "no:cacheprovider", *files)
    said, errors = tests.communicate(timeout=PATIENCE)
    assert tests.returncode == 0, said + errors


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("jax")
    for shard in range(2):
        with sr.TFRecordWriter(f"{directory}/part-{shard}.tfrecord") as writer:
            writer.write_many({"id": 100 * shard + number} for number in range(16))
    return f"{directory}/part-*.tfrecord"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints") / "run"


@pytest.fixture(scope="module")
def said(source: str, directory: Path) -> list[dict[str, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    program = "tests.adapters.jax_processes"
    processes = [start(2, program, source, directory, address, rank) for rank in range(2)]
    ends = [process.communicate(timeout=PATIENCE) for process in processes]
    for process, (_, errors) in zip(processes, ends, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(said.splitlines()[-1]) for said, _ in ends]


@pytest.fixture(scope="module")
def batches(source: str) -> list[list[int]]:
    features = {"id": sr.FixedLenFeature((), "int64")}
    stream = sr.open(source, features, batch_size=8, lanes=2, engine="thread")
    return [batch["id"].tolist() for batch in stream]


class TestTwoProcesses:
    @pytest.mark.parametrize(
        ("name", "ranks"),
        [
            ("rows", ([0, 2], [1, 2])),
            ("reverse", ([1, 2], [0, 2])),
            ("data, model", ([0, 2], [1, 2])),
            ("replicas", ([0, 1], [0, 1])),
            ("model", ([0, 1], [0, 1])),
        ],
    )
    def test_the_rank_follows_from_the_sharding(
        self, said: list[dict[str, Any]], name: str, ranks: tuple[list[int], list[int]]
    ) -> None:
        assert tuple(process["ranks"][name] for process in said) == ranks

    @pytest.mark.parametrize("name", ["rows", "reverse", "data, model", "model"])
    def test_the_rank_of_a_mesh_is_that_of_rows_over_its_data(
        self, said: list[dict[str, Any]], name: str
    ) -> None:
        for process in said:
            assert process["meshes"][name] == process["ranks"][name]

    @pytest.mark.parametrize(
        "name", ["rows", "reverse", "data, model", "replicas", "model", "auto"]
    )
    def test_a_global_batch_has_the_records_of_a_process_alone(
        self, said: list[dict[str, Any]], batches: list[list[int]], name: str
    ) -> None:
        assert said[0][name] == said[1][name]
        assert [sorted(rows) for rows in said[0][name]] == [sorted(rows) for rows in batches]

    def test_rows_are_in_the_order_of_the_ranks(self, said: list[dict[str, Any]]) -> None:
        assert said[0]["rows"][0] == [0, 1, 2, 3, 100, 101, 102, 103]
        assert said[0]["rows"] == said[0]["reverse"] == said[0]["data, model"]

    def test_streams_that_differ_are_refused(self, said: list[dict[str, Any]]) -> None:
        assert said[0]["seeds"] == said[1]["seeds"]
        assert "seed is 0 in process 0 and 1 in process 1" in said[0]["seeds"]

    def test_a_rank_that_the_sharding_does_not_give_is_refused(
        self, said: list[dict[str, Any]]
    ) -> None:
        for process in range(2):
            expected = f"the stream is rank {process} of 2, but by the sharding this process has"
            assert expected in said[process]["ranks the wrong way"]

    def test_a_process_alone_goes_on_from_their_checkpoint(
        self, said: list[dict[str, Any]], source: str, directory: Path, batches: list[list[int]]
    ) -> None:
        states = sorted((directory / "1" / "stream").glob("*.json"))
        assert [path.name for path in states] == ["process_0-of-2.json", "process_1-of-2.json"]
        features = {"id": sr.FixedLenFeature((), "int64")}
        stream = sr.open(
            source, features, batch_size=8, lanes=2, steps_per_epoch=4, engine="thread"
        )
        stream.load_state_dict([json.loads(path.read_text()) for path in states])
        assert [batch["id"].tolist() for batch in stream] == batches[1:]


@pytest.mark.night  # each process imports JAX, which takes seconds
def test_a_training_on_a_changing_number_of_processes(tmp_path: Path) -> None:
    """As test_elastic_training.py: from two processes to one, to three, and to two again."""
    source = write_examples(tmp_path, 120)
    seen: list[Any] = []
    for processes, end in (2, 3), (1, 5), (3, 14), (2, 20):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        about = source, tmp_path / "run", address
        ranks = [
            start(2, "tests.adapters.jax_elastic", *about, rank, processes, end)
            for rank in range(processes)
        ]
        ends = [rank.communicate(timeout=PATIENCE) for rank in ranks]
        for rank, (_, errors) in zip(ranks, ends, strict=True):
            assert rank.returncode == 0, errors
        parts = [json.loads(said.splitlines()[-1]) for said, _ in ends]
        assert all(part == parts[0] for part in parts)
        seen += parts[0]
    assert seen == alone(source)
