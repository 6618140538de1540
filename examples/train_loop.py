"""Write shards, train on them, stop in the middle, and go on from a checkpoint.

Run it with ``python examples/train_loop.py``; it works in a temporary directory.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import streamrec as sr

FEATURES = {
    "x": sr.FixedLenFeature((4,), "float32"),
    "y": sr.FixedLenFeature((), "float32"),
}


def write_shards(directory: Path) -> np.ndarray:
    """Write eight shards of a linear problem, and return its solution."""
    random = np.random.default_rng(1)
    solution = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    for shard in range(8):
        with sr.TFRecordWriter(directory / f"train-{shard:05}-of-00008.tfrecord") as writer:
            for _ in range(500):
                x = random.normal(size=4).astype(np.float32)
                writer.write({"x": x, "y": x @ solution})
    return solution


def open_stream(directory: Path) -> sr.Stream:
    """Open a stream of three shuffled epochs in batches of 32."""
    return sr.open(
        str(directory / "train-*.tfrecord"),
        FEATURES,
        batch_size=32,
        shuffle=True,
        seed=7,
        shuffle_window="128KiB",
        epochs=3,
    )


def step(weights: np.ndarray, batch: sr.Batch) -> np.ndarray:
    """Return the weights after a step of gradient descent."""
    x, y = np.asarray(batch["x"]), np.asarray(batch["y"])
    return weights - 0.05 * x.T @ (x @ weights - y) / len(batch)


def train_until(directory: Path, checkpoint: Path, last_step: int | None) -> np.ndarray:
    """Train from the checkpoint, if there is one, and save another at the end."""
    stream, weights = open_stream(directory), np.zeros(4, np.float32)
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        stream.load_state_dict(saved["stream"])
        weights = np.array(saved["weights"], np.float32)
    with stream:
        for batch in stream:
            weights = step(weights, batch)
            if batch.next_position.step == last_step:
                break
        state = stream.state_dict()
    checkpoint.write_text(json.dumps({"stream": state, "weights": weights.tolist()}))
    print(f"trained to step {state['step']}, epoch {state['epoch']}: {weights.round(3)}")
    return weights


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        solution = write_shards(directory)
        train_until(directory, directory / "stopped.json", last_step=100)
        resumed = train_until(directory, directory / "stopped.json", last_step=None)
        whole = train_until(directory, directory / "whole.json", last_step=None)
    assert np.array_equal(resumed, whole), "a resumed run sees the same batches"
    assert np.allclose(resumed, solution, atol=1e-3)
    print("the resumed run and the uninterrupted one came to the same weights")


if __name__ == "__main__":
    main()
