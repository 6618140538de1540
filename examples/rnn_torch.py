"""Train a recurrent network over SequenceExamples with PyTorch.

``python examples/rnn_torch.py 's3://train/lines-*.tfrecord' --checkpoint lines.pt``

Each SequenceExample is a line of a file, one character a step, and the network says whether it is
Markdown, Python or C. Batches are of lines of like length, so there is little padding, and
``characters/length`` says where each line ends.
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

CONTEXT = {"label": sr.FixedLenFeature((), "int64")}
SEQUENCE = {"characters": sr.FixedLenSequenceFeature((), "int64")}


def open_stream(source: str) -> sr.Stream:
    """Open an endless stream of shuffled lines; the lines of a batch are of like length."""
    return sr.open(
        source,
        (CONTEXT, SEQUENCE),
        batch_size=32,
        index=True,
        shuffle=True,
        seed=7,
        shuffle_window="4MiB",
        length_buckets=4,
        epochs=None,
    )


class Network(nn.Module):
    """A GRU over characters, whose last state tells the language."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        self.gru = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, characters: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the languages' scores ``[rows, 3]``, of characters ``[rows, longest]``."""
        steps = nn.utils.rnn.pack_padded_sequence(
            self.embedding(characters), lengths, batch_first=True, enforce_sorted=False
        )
        _, last = self.gru(steps)
        return self.head(last[0])


def save(path: Path, step: int, **parts: Any) -> None:
    """Save states, so that a program that is killed leaves the old checkpoint or the new one."""
    new = path.with_suffix(".new")
    torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, new)
    new.replace(path)


@click.command()
@click.argument("source")
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True, help="A file.")
@click.option("--steps", default=80, show_default=True, help="Steps of training in all.")
@click.option("--stop-at", type=int, help="End at this step, as if the machine went off.")
@click.option("--history", type=click.File("w"), help="Write a line of JSON after each step.")
def main(
    source: str, checkpoint: Path, steps: int, stop_at: int | None, history: TextIO | None
) -> None:
    """Train on the shards of SOURCE, from the checkpoint on if there is one."""
    model, step = Network(), 0
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loader = as_loader(open_stream(source))
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    for batch in islice(loader, steps - step):
        scores = model(batch["characters"], batch["characters/length"])
        loss = nn.functional.cross_entropy(scores, batch["label"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
