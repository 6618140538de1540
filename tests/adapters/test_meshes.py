"""The ranks of meshes: eight processes of PyTorch or Megatron; JAX's are in with_jax.py.

The programs are in mesh_programs.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

import streamrec as sr
from streamrec.adapters.meshes import DATA, REPLICAS, data_dimensions
from streamrec.config import DatasetSettings
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.service import SharedBudget
from streamrec.pipeline.dataset import Dataset
from tests.adapters.test_torch_workers import PATIENCE, cases_of, start
from tests.pipeline.small_datasets import write_index

pytestmark = [pytest.mark.xdist_group("meshes"), pytest.mark.timeout(2 * PATIENCE)]
has_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
LANES, RECORDS = 12, 10
ORDER: dict[str, Any] = {
    "batch_size": LANES // 2, "lanes": LANES, "index": True, "shuffle": True, "shuffle_window": 300,
}  # fmt: skip
"""The stream of two ranks."""


def place(rank: int, sizes: tuple[int, ...]) -> list[int]:
    """Return the coordinates of a process in a mesh."""
    found = []
    for size in reversed(sizes):
        rank, at = divmod(rank, size)
        found.append(at)
    return found[::-1]


class TestDimensions:
    def test_their_names_tell(self) -> None:
        assert data_dimensions(["dp_replicate", "tp", "DP_Shard"], None) == [
            "dp_replicate",
            "DP_Shard",
        ]
        assert not DATA & REPLICAS

    def test_a_strange_name_needs_an_explicit_answer(self) -> None:
        with pytest.raises(sr.ConfigError, match=r"'rows', and its name .* data=\('dp',\)"):
            data_dimensions(["rows", "tp"], None)
        assert data_dimensions(["rows", "tp"], ("rows",)) == ["rows"]

    def test_a_name_that_is_not_there(self) -> None:
        with pytest.raises(sr.ConfigError, match="no dimension 'x', but dp, tp; name some"):
            data_dimensions(["dp", "tp"], ("x",))

    def test_any_form_of_names(self) -> None:
        """One that can be read once must not leave all processes in one rank."""
        assert data_dimensions(["dp", "tp"], iter(["dp"])) == ["dp"]
        assert data_dimensions(["d", "p", "dp"], "dp") == ["dp"]
        for wrong in (5, [5], [None]):
            with pytest.raises(sr.ConfigError, match="data= takes the names of dimensions"):
                data_dimensions(["dp", "tp"], wrong)  # type: ignore[arg-type]


def test_something_else_is_refused() -> None:
    with pytest.raises(sr.ConfigError, match="takes a mesh, not SimpleNamespace; give it a Dev"):
        sr.rank_of(SimpleNamespace())


def test_no_framework_is_imported_for_it() -> None:
    program = "import streamrec, sys; streamrec.rank_of; print({'torch', 'jax'} & {*sys.modules})"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert said.stdout.strip() == b"set()"


class Watched(SharedBudget):
    """Knows how many readings there were at once."""

    most = 0

    def lend(self, *numbers: Any) -> Any:
        lent = super().lend(*numbers)
        self.most = max(self.most, self.sessions)
        return lent


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve shards, each of them the whole of a lane."""
    directory = tmp_path_factory.mktemp("examples")
    for shard in range(LANES):
        with sr.TFRecordWriter(f"{directory}/part-{shard:02}.tfrecord") as writer:
            writer.write_many({"id": shard * RECORDS + record} for record in range(RECORDS))
    write_index(f"{directory}/part-*.tfrecord", 1 << 20)
    return f"{directory}/part-*.tfrecord"


@pytest.fixture(scope="module")
def found(source: str) -> dict[str, Any]:
    """What eight processes say, of which four are replicas of each rank, and what it took."""

    async def main() -> dict[str, Any]:
        features = {"id": {"dtype": "int64"}}
        dataset = await Dataset.open(DatasetSettings(source=source, features=features, **ORDER))
        budget = Watched(1 << 30)
        async with Feeder({"train": dataset}, budget=budget) as feeder:
            address = f"{await feeder.listen('tcp://127.0.0.1:0')}/train"
            program = start("torch", address, "mesh_programs")
            (said,) = await asyncio.to_thread(cases_of, program)
            read = feeder.snapshot()["datasets"]["train"]["fetch"]["bytes_read"]
        stored = dataset.stored_bytes
        await dataset.aclose()
        return {"said": said["all"], "read": read, "stored": stored, "readings": budget.most}

    return asyncio.run(main())


@has_torch
class TestEightProcesses:
    @pytest.mark.parametrize(
        ("name", "sizes", "data"),
        [
            ("dp pp tp", (2, 2, 2), (0,)),
            ("tp dp", (2, 4), (1,)),
            ("hsdp", (2, 2, 2), (0, 1)),
            ("fsdp", (8,), (0,)),
            ("expert", (2, 2, 2), (0, 1)),
            ("no data", (2, 4), ()),
            ("tp dp, tp", (2, 4), (0,)),
            ("no data, pp", (2, 4), (0,)),
        ],
    )
    def test_the_rank_is_the_place_among_the_data(
        self, found: dict[str, Any], name: str, sizes: tuple[int, ...], data: tuple[int, ...]
    ) -> None:
        for number, said in enumerate(found["said"]):
            rank, world_size = 0, 1
            for dimension in data:
                rank = rank * sizes[dimension] + place(number, sizes)[dimension]
                world_size *= sizes[dimension]
            assert said[name] == [rank, world_size]

    def test_a_part_of_a_mesh(self, found: dict[str, Any]) -> None:
        assert [said["part"] for said in found["said"]] == [[n // 4, 2] for n in range(8)]

    def test_names_that_are_not_known(self, found: dict[str, Any]) -> None:
        for number, said in enumerate(found["said"]):
            assert "dimension 'stages'" in said["strange"]
            assert said["strange, given"] == [number // 2, 4]
            assert "no dimension 'data', but dp, stages, tp" in said["missing"]
            assert "mesh_dim_names=" in said["no names"]
            assert "mesh_dim_names=" in said["a name missing"]

    def test_a_process_outside(self, found: dict[str, Any]) -> None:
        assert "this process is not in the mesh" in found["said"][7]["elsewhere"]

    def test_replicas_get_the_same_batches(self, found: dict[str, Any], source: str) -> None:
        batches = [said["batches"] for said in found["said"]]
        assert batches[:4] == [batches[0]] * 4
        assert batches[4:] == [batches[4]] * 4
        features = {"id": sr.FixedLenFeature((), "int64")}
        for rank in range(2):
            with sr.open(source, features, **ORDER, rank=(rank, 2), engine="thread") as stream:
                assert batches[4 * rank] == [batch["id"].tolist() for batch in stream]

    def test_the_feeder_reads_the_dataset_once(self, found: dict[str, Any]) -> None:
        """As if there were no replicas: one reading for each rank, and so its memory once."""
        assert found["read"] == found["stored"]
        assert found["readings"] == 2


@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
class TestMegatron:
    def test_the_rank_is_that_of_the_data_parallel_group(self) -> None:
        (said,) = cases_of(start("megatron", "", "mesh_programs"))
        for number, own in enumerate(said["all"]):
            assert "initialize_model_parallel" in own["too early"]
            for name, size in ("tp pp", 2), ("cp", 4), ("tp", 2):
                (rank, world_size), members = own[name]
                assert world_size == size == len(members)
                assert members[rank] == number


class TestARankAndAWorldSizeTogether:
    def test_sets_both(self) -> None:
        assert repr(sr.open("x", rank=(1, 4))._assignment.rank) == "Rank(rank=1, world_size=4)"
        stream = sr.connect("tcp://127.0.0.1:7070/x", rank=(1, 4), world_size=4)
        assert stream._assignment.rank == (1, 4)

    def test_a_contradiction_is_refused(self) -> None:
        with pytest.raises(sr.ConfigError, match=r"says that there are 4 ranks, .* there are 8;"):
            sr.open("x", rank=(1, 4), world_size=8)

    def test_a_rank_beyond_the_ranks_is_refused(self) -> None:
        with pytest.raises(sr.ConfigError, match="rank must be from 0 to 3, not 4"):
            sr.open("x", rank=(4, 4))
