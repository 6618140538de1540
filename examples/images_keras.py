"""Classify pictures with Keras 3, from shards in an object store.

``python examples/images_keras.py 's3://train/photos-*.tfrecord' --checkpoint photos-keras``

Each picture is a square of one of eight photographs, and the model says of which. Kill the program
whenever you like: the same command goes on from the last checkpoint, in the middle of an epoch.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", or "tensorflow"

import keras

import streamrec as sr
from streamrec.adapters.keras import KerasDataset, as_dataset

FEATURES = {"image": sr.Image((32, 32, 3)), "label": sr.FixedLenFeature((), "int64")}
ROUND = 10
"""The steps between two checkpoints, which are one epoch to Keras."""


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


def new_model() -> keras.Model:
    random.seed(1)  # Keras draws the seeds of its initialisers there
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(8),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.005), loss, metrics=["accuracy"])
    return model


class Checkpoints(keras.callbacks.Callback):
    """Saves the model with the state of the data, and prints the loss.

    The file ``checkpoint.json`` names the weights that belong to the state. It is replaced in one
    step, so a program that is killed leaves the old checkpoint or the new one.
    """

    def __init__(self, dataset: KerasDataset, stream: sr.Stream, directory: Path, **given: Any):
        super().__init__()
        self.dataset, self.stream, self.directory = dataset, stream, directory
        self.stop_at, self.history = given["stop_at"], given["history"]

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        if self.dataset.state_dict()["step"] == self.stop_at:
            sys.exit(f"stopped at step {self.stop_at}")

    def on_epoch_end(self, _: int, logs: Any = None) -> None:
        state = self.dataset.state_dict()
        name = f"step-{state['step']:06}.weights.h5"
        self.model.save_weights(self.directory / name)  # with the optimizer's
        new = self.directory / "new.json"
        new.write_text(json.dumps({"weights": name, "stream": state}))
        new.replace(self.directory / "checkpoint.json")
        print(f"step {state['step']}: loss {logs['loss']:.3f}, accuracy {logs['accuracy']:.2f}")
        if self.history:
            (coming,) = self.stream.peek()
            records = np.stack(coming.origin, axis=1).tolist()
            line = {"step": state["step"], "loss": logs["loss"], "coming": records}
            print(json.dumps(line), file=self.history, flush=True)


@click.command()
@click.argument("source")
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True, help="A directory.")
@click.option("--steps", default=120, show_default=True, help="Steps of training in all.")
@click.option("--stop-at", type=int, help="End at this step, as if the machine went off.")
@click.option("--history", type=click.File("w"), help="Write a line of JSON after each ten steps.")
def main(source: str, checkpoint: Path, steps: int, **given: Any) -> None:
    """Train on the shards of SOURCE, from the checkpoint on if there is one."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    with open_stream(source) as stream:
        dataset, model, done = as_dataset(stream, inputs="image", targets="label"), new_model(), 0
        if (checkpoint / "checkpoint.json").exists():
            saved = json.loads((checkpoint / "checkpoint.json").read_text())
            model.optimizer.build(model.trainable_variables)
            model.load_weights(checkpoint / saved["weights"])
            dataset.load_state_dict(saved["stream"])
            done = saved["stream"]["step"] // ROUND
        model.fit(
            dataset,
            steps_per_epoch=ROUND,
            initial_epoch=done,
            epochs=steps // ROUND,
            callbacks=[Checkpoints(dataset, stream, checkpoint, **given)],
            verbose=0,
        )


if __name__ == "__main__":
    main()
