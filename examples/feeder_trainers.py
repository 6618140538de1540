"""Two trainers that read from one feeder.

``python examples/feeder_trainers.py 's3://train/photos-*.tfrecord' --checkpoint photos.json``

The feeder reads the store and decodes the pictures. The trainers, two processes, connect to it as
ranks 0 and 1: they need no credentials and no libraries but NumPy. They train one linear model, and
exchange their gradients by a pipe after each step. Kill all of it whenever you like: the feeder
keeps nothing, and the same command goes on from the checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np

import streamrec as sr

CONFIGURATION = """
[server]
listen = ["tcp://127.0.0.1:0"]
status = ""

[datasets.photos]
source = {source}
batch_size = 16
index = true
shuffle = true
seed = 7
shuffle_window = "16MiB"
epochs = inf
features.image = {{ kind = "image", shape = [32, 32] }}
features.label = {{ dtype = "int64" }}
"""


@contextlib.contextmanager
def feeder(source: str) -> Iterator[str]:
    """Run a feeder on a free port; yield the address of its dataset."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "feeder.toml")
        path.write_text(CONFIGURATION.format(source=json.dumps(source)))
        serve = [sys.executable, "-m", "streamrec", "serve", str(path), "--json", "--until-eof"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(serve, **pipes, text=True) as process:
            try:
                yield f"{json.loads(process.stdout.readline())['listen'][0]}/photos"
            finally:
                process.terminate()


def gradient_of(weights: np.ndarray, batch: sr.Batch) -> tuple[np.ndarray, float]:
    """Return the gradient of softmax regression ``[3073, 8]``, and the loss."""
    rows = np.arange(len(batch))
    x = batch["image"].reshape(len(batch), -1) / 255 - 0.5
    x = np.hstack([x, np.ones((len(batch), 1))])
    chances = np.exp(x @ weights)
    chances /= chances.sum(axis=1, keepdims=True)
    loss = -np.log(chances[rows, batch["label"]]).mean()
    chances[rows, batch["label"]] -= 1
    return x.T @ chances / len(batch), float(loss)


def train(address: str, rank: int, peer: Connection, **given: Any) -> None:
    """Train as one of two ranks. Both come to the same weights; rank 0 saves them."""
    checkpoint, weights = given["checkpoint"], np.zeros((32 * 32 * 3 + 1, 8))
    stream = sr.connect(address, rank=rank, world_size=2)
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        weights = np.array(saved["weights"])
        stream.load_state_dict(saved["stream"])  # of rank 0: with an index it serves any rank
    for batch in stream:
        step = batch.next_position.step
        gradient, loss = gradient_of(weights, batch)
        weights -= 0.02 * mean_of_both(gradient, rank, peer)
        if given["history"]:
            append(given["history"].with_suffix(f".rank{rank}"), step, loss, batch)
        if step == given["stop_at"]:
            sys.exit(f"rank {rank} stopped at step {step}")
        if step % 10 == 0 and rank == 0:
            save(checkpoint, weights=weights.tolist(), stream=stream.state_dict())
            print(f"step {step}: loss {loss:.3f}", flush=True)
        if step == given["steps"]:
            break
    stream.close()


def mean_of_both(gradient: np.ndarray, rank: int, peer: Connection) -> np.ndarray:
    if rank == 0:
        peer.send(gradient)
    other = peer.recv()
    if rank == 1:  # it sends second: where both send first, both may wait for ever
        peer.send(gradient)
    return (gradient + other) / 2


def append(history: Path, step: int, loss: float, batch: sr.Batch) -> None:
    records = np.stack(batch.origin, axis=1).tolist()
    with history.open("a") as file:
        print(json.dumps({"step": step, "loss": loss, "records": records}), file=file)


def save(path: Path, **parts: Any) -> None:
    """Save, so that a program that is killed leaves the old checkpoint or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(parts))
    new.replace(path)


@click.command()
@click.argument("source")
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True, help="A file.")
@click.option("--steps", default=120, show_default=True, help="Steps of training in all.")
@click.option("--stop-at", type=int, help="End at this step, as if the machine went off.")
@click.option(
    "--history", type=click.Path(path_type=Path), help="Files .rank0, .rank1 of JSON lines."
)
def main(source: str, **given: Any) -> None:
    """Train on the shards of SOURCE, from the checkpoint on if there is one."""
    processes = get_context("spawn")
    ends = processes.Pipe()
    with feeder(source) as address:
        jobs = [
            processes.Process(target=train, args=(address, rank, ends[rank]), kwargs=given)
            for rank in range(2)
        ]
        for job, end in zip(jobs, ends, strict=True):
            job.start()
            end.close()  # a trainer whose peer has died finds that the pipe has ended
        for job in jobs:
            job.join()
    sys.exit(any(job.exitcode for job in jobs))


if __name__ == "__main__":
    main()
