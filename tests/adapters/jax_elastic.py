"""One process of a training by JAX whose number of processes changes; test_jax.py starts them.

Run as ``python -m tests.adapters.jax_elastic SOURCE DIRECTORY ADDRESS PROCESS PROCESSES END``: it
goes on from the last checkpoint in the directory, up to a step. The loop is like MaxText's, with a
mesh, a sharding of batches, and checkpoints of Orbax with the model and the state of the data.
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
from streamrec.adapters.jax import as_arrays
from streamrec.adapters.orbax import StreamRestore, StreamSave
from tests.adapters.torch_shards import ELASTIC, RATE

ocp: Any = import_module("orbax.checkpoint")
PartitionSpec: Any = import_module("jax.sharding").PartitionSpec


def step(weight: Any, batch: Any) -> tuple[Any, Any]:
    """Return the next weight, and the loss: exact, since all numbers are halves."""
    x = batch["x"].astype("float64")
    return weight - RATE * x.sum(axis=0), (x @ weight).sum()


def main(source: str, directory: str, address: str, process: str, processes: str, end: str) -> None:
    config: Any = jax.config
    config.update("jax_enable_x64", True)
    jax.distributed.initialize(address, int(processes), int(process))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    rank = sr.rank_of(mesh)
    size = ELASTIC["batch_size"] // rank.world_size
    arrays = as_arrays(sr.open(source, **{**ELASTIC, "batch_size": size, "rank": rank}), rows)
    weight = jax.device_put(np.ones(2), everywhere)
    train = jax.jit(step, out_shardings=everywhere)
    told = jax.jit(lambda ids: ids, out_shardings=everywhere)
    seen = []
    with ocp.CheckpointManager(directory) as manager:
        last = manager.latest_step() or 0
        if last:
            args = ocp.args.Composite(
                model=ocp.args.StandardRestore({"weight": weight}), stream=StreamRestore(arrays)
            )
            weight = manager.restore(last, args=args)["model"]["weight"]
        for _ in range(last, int(end)):
            batch = next(arrays)
            weight, loss = train(weight, batch)
            ids = np.asarray(told(batch["id"]).addressable_data(0))
            seen.append([sorted(ids.tolist()), float(loss.addressable_data(0)).hex()])
        args = ocp.args.Composite(
            model=ocp.args.StandardSave({"weight": weight}), stream=StreamSave(arrays)
        )
        manager.save(int(end), args=args)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
