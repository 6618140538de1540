"""One of two processes of JAX, with two devices each; test_jax.py reads what it says.

Run as ``python -m tests.adapters.jax_processes SOURCE DIRECTORY ADDRESS PROCESS``.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

import streamrec as sr
from streamrec.adapters.jax import as_arrays, rank_of
from streamrec.adapters.orbax import StreamSave

ocp: Any = import_module("orbax.checkpoint")
PartitionSpec: Any = import_module("jax.sharding").PartitionSpec

FEATURES = {"id": sr.FixedLenFeature((), "int64")}


def shardings() -> dict[str, NamedSharding]:
    """Return what the processes may hold of a batch: by rows, in reverse, all of it, half a row."""
    devices = np.array(jax.devices())
    rows, both = PartitionSpec("data"), devices.reshape(2, 2)
    return {
        "rows": NamedSharding(Mesh(devices, ("data",)), rows),
        "reverse": NamedSharding(Mesh(devices[::-1], ("data",)), rows),
        "replicas": NamedSharding(Mesh(devices, ("data",)), PartitionSpec()),
        "model": NamedSharding(Mesh(both, ("model", "data")), rows),
        "data, model": NamedSharding(Mesh(both, ("data", "model")), rows),
    }


def opened(source: str, sharding: NamedSharding | None = None, **settings: Any) -> sr.Stream:
    if sharding is not None:
        rank, world_size = rank_of(sharding)
        settings |= {"rank": rank, "world_size": world_size, "batch_size": 8 // world_size}
    return sr.open(source, FEATURES, lanes=2, steps_per_epoch=4, engine="thread", **settings)


def rows(batch: sr.Batch) -> list[int]:
    """Return the rows of all processes."""
    everywhere = NamedSharding(batch["id"].sharding.mesh, PartitionSpec())
    whole = jax.jit(lambda x: x, out_shardings=everywhere)(batch["id"])
    return [int(row) for row in np.asarray(whole.addressable_data(0))]


def refusal(source: str, sharding: NamedSharding, **settings: Any) -> str:
    try:
        next(as_arrays(opened(source, **settings), sharding))
    except sr.ConfigError as error:
        return str(error)
    return "none"


def main(source: str, directory: str, address: str, process: str) -> None:
    jax.distributed.initialize(address, 2, int(process))
    by_name = shardings()
    ranks = {name: list(rank_of(sharding)) for name, sharding in by_name.items()}
    meshes = {name: list(sr.rank_of(sharding.mesh)) for name, sharding in by_name.items()}
    said: dict[str, Any] = {"ranks": ranks, "meshes": meshes}
    for name, sharding in by_name.items():
        said[name] = [rows(batch) for batch in as_arrays(opened(source, sharding), sharding)]
    by_rows = by_name["rows"]
    said["auto"] = [rows(b) for b in as_arrays(opened(source, batch_size=4), by_rows)]
    said["seeds"] = refusal(source, by_rows, batch_size=4, shuffle=True, seed=int(process))
    said["ranks the wrong way"] = refusal(source, by_name["reverse"], batch_size=4)
    arrays = as_arrays(opened(source, batch_size=4), by_rows)
    next(arrays)
    with ocp.CheckpointManager(directory) as manager:
        manager.save(1, args=ocp.args.Composite(stream=StreamSave(arrays)))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
