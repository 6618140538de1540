"""Classify pictures with PyTorch, from shards in an object store.

``python examples/images_torch.py 's3://train/photos-*.tfrecord' --checkpoint photos.pt``

Each picture is a square of one of eight photographs, and the model says of which. Kill the program
whenever you like: the same command goes on from the last checkpoint, in the middle of an epoch.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np
import torch
from torch import nn

import streamrec as sr
from streamrec.adapters.torch import as_loader

FEATURES = {"image": sr.Image((32, 32, 3)), "label": sr.FixedLenFeature((), "int64")}


def open_stream(source: str) -> sr.Stream:
    """Open an endless stream of shuffled pictures, which are decoded in its own threads."""
    return sr.open(
        source,
        FEATURES,
        batch_size=32,
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


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    images = batch["image"].permute(0, 3, 1, 2) / 255  # [rows, channels, height, width]
    return nn.functional.cross_entropy(model(images), batch["label"])


def save(path: Path, step: int, **parts: Any) -> None:
    """Save states, so that a program that is killed leaves the old checkpoint or the new one."""
    new = path.with_suffix(".new")
    torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, new)
    new.replace(path)


@click.command()
@click.argument("source")
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True, help="A file.")
@click.option("--steps", default=120, show_default=True, help="Steps of training in all.")
@click.option("--stop-at", type=int, help="End at this step, as if the machine went off.")
@click.option("--history", type=click.File("w"), help="Write a line of JSON after each step.")
def main(
    source: str, checkpoint: Path, steps: int, stop_at: int | None, history: TextIO | None
) -> None:
    """Train on the shards of SOURCE, from the checkpoint on if there is one."""
    model, step = new_model(), 0
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    loader = as_loader(open_stream(source))  # device="cuda" moves the batches, one ahead
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    for batch in islice(loader, steps - step):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if history:
            records = np.stack(batch.origin, axis=1).tolist()
            line = {"step": step, "loss": loss.item(), "records": records}
            print(json.dumps(line), file=history, flush=True)
        if step == stop_at:
            sys.exit(f"stopped at step {step}")
        if step % 10 == 0:
            save(checkpoint, step, model=model, optimizer=optimizer, loader=loader)
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
