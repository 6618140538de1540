"""Eight processes of a mesh, for test_meshes.py; prints what each of them found, as JSON.

Run as ``python -m tests.adapters.mesh_programs PROGRAM ADDRESS``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import traceback
from contextlib import aclosing, suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

import streamrec as sr
from streamrec.feeder.client.client import AsyncFeed
from streamrec.flow.channel import EndOfStream
from tests.forked_children import PATIENCE

if TYPE_CHECKING:
    from streamrec.streams.ranks import Rank

SIZE = 8
MESHES: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "dp pp tp": ((2, 2, 2), ("dp", "pp", "tp")),
    "tp dp": ((2, 4), ("tp", "dp")),
    "hsdp": ((2, 2, 2), ("dp_replicate", "dp_shard", "cp")),
    "fsdp": ((8,), ("fsdp",)),
    "expert": ((2, 2, 2), ("dp_shard_mod_ep", "dp_shard_in_ep", "tp")),
    "no data": ((2, 4), ("pp", "tp")),
}
MEGATRON = {
    "tp pp": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    "cp": {"context_parallel_size": 2},
    "tp": {"tensor_model_parallel_size": 4},
}


def refusal(call: Any) -> str:
    try:
        return repr(call())
    except sr.ConfigError as error:
        return str(error)


async def read(address: str, rank: Rank) -> list[list[int]]:
    """Read as `connect` does, but a batch at a time: all have joined before one is at the end."""
    async with aclosing(
        await AsyncFeed.open(address, **rank._asdict(), replicas=True, credit_bytes=1)
    ) as feed:
        batches = [await feed.receive()]
        distributed.barrier()
        with suppress(EndOfStream):
            while True:
                batches.append(await feed.receive())
    return [batch["id"].tolist() for batch in batches]


def ranks_of_torch() -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, (shape, names) in MESHES.items():
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        said[name] = sr.rank_of(mesh)
        said[f"{name}, {names[0]}"] = sr.rank_of(mesh, data=names[:1])
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "stages", "tp"))
    said["strange"] = refusal(lambda: sr.rank_of(mesh))
    said["strange, given"] = sr.rank_of(mesh, data=("dp", "stages"))
    said["missing"] = refusal(lambda: sr.rank_of(mesh, data=("data",)))
    said["part"] = sr.rank_of(mesh["dp"])
    said["no names"] = refusal(lambda: sr.rank_of(init_device_mesh("cpu", (8,))))
    partly = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", cast("str", None)))
    said["a name missing"] = refusal(lambda: sr.rank_of(partly))
    two = torch.distributed.device_mesh.DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",))
    said["elsewhere"] = refusal(lambda: sr.rank_of(two))
    return said


def ranks_of_megatron() -> dict[str, Any]:
    parallel_state: Any = import_module("megatron.core.parallel_state")
    said: dict[str, Any] = {"too early": refusal(lambda: sr.rank_of(parallel_state))}
    for name, sizes in MEGATRON.items():
        parallel_state.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
        own = parallel_state.get_data_parallel_group()
        said[name] = [sr.rank_of(parallel_state), distributed.get_process_group_ranks(own)]
        parallel_state.destroy_model_parallel()
    return said


def child(program: str, address: str, rank: int, place: Path) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{place}/meeting"
    distributed.init_process_group(
        "gloo", meeting, timedelta(seconds=PATIENCE), rank=rank, world_size=SIZE
    )
    if program == "megatron":
        said = ranks_of_megatron()
    else:
        said = ranks_of_torch()
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "pp", "tp"))
        distributed.barrier()
        said["batches"] = asyncio.run(read(address, sr.rank_of(mesh)))
    distributed.barrier()
    (place / f"{rank}.json").write_text(json.dumps(said))


def main(program: str, address: str) -> None:
    if program == "megatron":
        import_module("megatron.core.parallel_state")
    with tempfile.TemporaryDirectory() as name:
        children = [forked(program, address, rank, Path(name)) for rank in range(SIZE)]
        ends = [os.waitpid(pid, 0)[1] for pid in children]
        if any(ends):
            sys.exit(1)
        texts = [(Path(name) / f"{rank}.json").read_text() for rank in range(SIZE)]
    print(json.dumps({"all": list(map(json.loads, texts))}))


def forked(program: str, address: str, rank: int, place: Path) -> int:
    pid = os.fork()
    if not pid:
        try:
            child(program, address, rank, place)
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


if __name__ == "__main__":
    main(*sys.argv[1:])
