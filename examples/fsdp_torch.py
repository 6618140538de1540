"""Train a model that PyTorch's FSDP shards over the ranks, and go on with another number of ranks.

``torchrun --standalone --nproc-per-node 2 examples/fsdp_torch.py 's3://train/photos-*.tfrecord'
--checkpoint photos-fsdp --kill-at 33``

The same command with ``--nproc-per-node 4`` and without ``--kill-at`` goes on behind the last
checkpoint, with the same global batches: torch.distributed.checkpoint divides the parameters anew,
and the state of the loader holds those of all ranks. It needs no GPU.
"""

from __future__ import annotations

import json
import os
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import streamrec as sr
from streamrec.adapters.torch import as_loader

FEATURES = {"image": sr.Image((32, 32, 3)), "label": sr.FixedLenFeature((), "int64")}
GLOBAL_BATCH = 32


def open_loader(source: str, mesh: Any) -> Any:
    """Open this rank's part of an endless stream; its state holds those of all ranks."""
    stream = sr.open(
        source,
        FEATURES,
        batch_size=GLOBAL_BATCH // mesh.size(),
        rank=sr.rank_of(mesh),
        index=True,
        shuffle=True,
        seed=7,
        shuffle_window="16MiB",
        epochs=None,
    )
    return as_loader(stream, gather=True)


def new_model(mesh: Any) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 8))
    fully_shard(model, mesh=mesh)
    return model


def state_of(model: nn.Module, optimizer: Any, loader: Any) -> dict[str, Any]:
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments, "loader": loader}


def latest(directory: Path) -> int:
    """Return the step of the last whole checkpoint; 0: there is none."""
    # PyTorch writes this file last.
    return max((int(found.parent.name) for found in directory.glob("*/.metadata")), default=0)


def append(history: Path | None, step: int, loss: torch.Tensor, batch: Any) -> None:
    """Write a line of JSON into this rank's log."""
    if history is not None:
        records = np.stack(batch.origin, axis=1).tolist()
        with history.with_suffix(f".rank{distributed.get_rank()}").open("a") as file:
            print(json.dumps({"step": step, "loss": loss.item(), "records": records}), file=file)


@click.command()
@click.argument("source")
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True, help="A directory.")
@click.option("--steps", default=60, show_default=True, help="Steps of training in all.")
@click.option("--kill-at", type=int, help="Kill the last rank by SIGKILL at this step.")
@click.option(
    "--history", type=click.Path(path_type=Path), help="Files .rank0, .rank1 of JSON lines."
)
def main(
    source: str, checkpoint: Path, steps: int, kill_at: int | None, history: Path | None
) -> None:
    """Train on the shards of SOURCE, from the last checkpoint on if there is one."""
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("fsdp",))
    model, loader = new_model(mesh), open_loader(source, mesh)
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    step = latest(checkpoint)
    if step:
        state = state_of(model, optimizer, loader)
        dcp.load(state, checkpoint_id=checkpoint / str(step))
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
    for batch in islice(loader, steps - step):
        loss = nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        append(history, step, loss, batch)
        if step == kill_at and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 10 == 0:
            dcp.save(state_of(model, optimizer, loader), checkpoint_id=checkpoint / str(step))
            print(f"step {step}, rank {rank}: loss {loss.item():.3f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
