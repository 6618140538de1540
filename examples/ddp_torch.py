"""Train on two ranks with PyTorch's DDP; kill one, and go on from the checkpoint.

``torchrun --standalone --nproc-per-node 2 examples/ddp_torch.py 's3://train/photos-*.tfrecord'
--checkpoint photos-ddp.pt --kill-at 33``

Without ``--kill-at`` the same command goes on with the batches behind the last checkpoint. Rank and
world size are those of ``torch.distributed``, and before the first batch the ranks compare what
they are about to read. It needs no GPU: the ranks are processes that talk by gloo.
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
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import streamrec as sr
from streamrec.adapters.torch import as_loader

FEATURES = {"image": sr.Image((32, 32, 3)), "label": sr.FixedLenFeature((), "int64")}
GLOBAL_BATCH = 32


def open_stream(source: str) -> sr.Stream:
    """Open this rank's part of an endless stream: half of each global batch on two ranks."""
    return sr.open(
        source,
        FEATURES,
        batch_size=GLOBAL_BATCH // distributed.get_world_size(),
        index=True,
        shuffle=True,
        seed=7,
        shuffle_window="16MiB",
        epochs=None,
    )


def new_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 8),
    )


def save(path: Path, step: int, **parts: Any) -> None:
    """Save rank 0's states, in one step. With an index its stream's state serves every rank."""
    if distributed.get_rank() == 0:
        new = path.with_suffix(".new")
        torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, new)
        new.replace(path)


def append(history: Path | None, step: int, loss: torch.Tensor, batch: Any) -> None:
    """Write a line of JSON into this rank's log."""
    if history is not None:
        records = np.stack(batch.origin, axis=1).tolist()
        with history.with_suffix(f".rank{distributed.get_rank()}").open("a") as file:
            print(json.dumps({"step": step, "loss": loss.item(), "records": records}), file=file)


@click.command()
@click.argument("source")
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True, help="A file.")
@click.option("--steps", default=60, show_default=True, help="Steps of training in all.")
@click.option("--kill-at", type=int, help="Kill the last rank by SIGKILL at this step.")
@click.option(
    "--history", type=click.Path(path_type=Path), help="Files .rank0, .rank1 of JSON lines."
)
def main(
    source: str, checkpoint: Path, steps: int, kill_at: int | None, history: Path | None
) -> None:
    """Train on the shards of SOURCE, from the checkpoint on if there is one."""
    distributed.init_process_group("gloo")
    rank, step = distributed.get_rank(), 0
    model = DistributedDataParallel(new_model())
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    loader = as_loader(open_stream(source))
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    for batch in islice(loader, steps - step):
        scores = model(batch["image"].permute(0, 3, 1, 2) / 255)
        loss = nn.functional.cross_entropy(scores, batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        append(history, step, loss, batch)
        if step == kill_at and rank == distributed.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 10 == 0:
            save(checkpoint, step, model=model, optimizer=optimizer, loader=loader)
            print(f"step {step}, rank {rank}: loss {loss.item():.3f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
