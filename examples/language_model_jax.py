"""Train a small language model with JAX, on texts that are packed into rows of one length.

``python examples/language_model_jax.py 's3://train/text-*.tfrecord' --checkpoint text-model``

The model reads bytes and says what the next one is. A row holds the paragraphs that fit into 128
bytes; ``tokens_segment_ids`` tells them apart, so that no byte looks at another paragraph.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import click
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.nn import standardize
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import streamrec as sr
from streamrec.adapters.jax import GlobalBatches, as_arrays, rank_of
from streamrec.adapters.orbax import StreamRestore, StreamSave

LENGTH, WIDTH, RATE = 128, 64, 0.004


def open_arrays(source: str, sharding: NamedSharding) -> GlobalBatches:
    """Open an endless stream of packed texts, whose rows are divided over all devices."""
    rank, world_size = rank_of(sharding)
    stream = sr.open(
        source,
        {"tokens": sr.RaggedFeature("int64")},
        batch_size=16,
        pack=sr.Pack(LENGTH, split=True),
        index=True,
        shuffle=True,
        seed=7,
        shuffle_window="4MiB",
        epochs=None,
        rank=rank,
        world_size=world_size,
    )
    return as_arrays(stream, sharding)


def new_model() -> dict[str, Any]:
    """Return random parameters, and a momentum of zero for each."""
    shapes = {"bytes": (256, WIDTH), "places": (LENGTH, WIDTH), "look": (WIDTH, 3 * WIDTH)}
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH), "out": (WIDTH, 256)}
    keys = jax.random.split(jax.random.key(1), len(shapes))
    pairs = zip(keys, shapes.items(), strict=True)
    parameters = {name: 0.05 * jax.random.normal(key, shape) for key, (name, shape) in pairs}
    return {"parameters": parameters, "momentum": jax.tree.map(jnp.zeros_like, parameters)}


def scores(parameters: dict[str, jax.Array], batch: sr.Batch) -> jax.Array:
    """Return the scores ``[rows, LENGTH, 256]`` of each next byte: one layer of a transformer."""
    x = parameters["bytes"][batch["tokens"]] + parameters["places"][batch["tokens_positions"]]
    segments = batch["tokens_segment_ids"]
    may_look = jnp.tril(segments[:, :, None] == segments[:, None, :])
    query, key, value = jnp.split(standardize(x) @ parameters["look"], 3, axis=-1)
    weights = jnp.where(may_look, query @ key.mT / WIDTH**0.5, -1e9)
    x += jax.nn.softmax(weights) @ value
    x += jax.nn.gelu(standardize(x) @ parameters["up"]) @ parameters["down"]
    return standardize(x) @ parameters["out"]


def loss_of(parameters: dict[str, jax.Array], batch: sr.Batch) -> jax.Array:
    """Return the mean of -log p of the bytes that follow another one of their paragraph."""
    tokens, segments = batch["tokens"], batch["tokens_segment_ids"]
    chances = jax.nn.log_softmax(scores(parameters, batch)[:, :-1])
    true = jnp.take_along_axis(chances, tokens[:, 1:, None], axis=-1)[:, :, 0]
    counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return -jnp.mean(true, where=counts)


@partial(jax.jit, donate_argnums=0)
def train(model: Any, batch: sr.Batch) -> tuple[Any, jax.Array]:
    """Take a step along the sign of the momentum; return the new model and the loss."""
    parameters, momentum = model["parameters"], model["momentum"]
    loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, momentum, gradients)
    parameters = jax.tree.map(lambda p, m: p - RATE * jnp.sign(m), parameters, momentum)
    return {"parameters": parameters, "momentum": momentum}, loss


@click.command()
@click.argument("source")
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True, help="A directory.")
@click.option("--steps", default=80, show_default=True, help="Steps of training in all.")
@click.option("--stop-at", type=int, help="End at this step, as if the machine went off.")
@click.option("--history", type=click.File("w"), help="Write a line of JSON after each step.")
def main(
    source: str, checkpoint: Path, steps: int, stop_at: int | None, history: TextIO | None
) -> None:
    """Train on the shards of SOURCE, from the checkpoint on if there is one."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    arrays = open_arrays(source, NamedSharding(mesh, PartitionSpec("data")))
    # Every device has all of the model from the start, so that `train` is compiled once.
    model = jax.jit(new_model, out_shardings=NamedSharding(mesh, PartitionSpec()))()
    with ocp.CheckpointManager(checkpoint.absolute()) as manager:
        done = manager.latest_step() or 0
        if done:
            restore = ocp.args.StandardRestore(model)
            kept = ocp.args.Composite(model=restore, stream=StreamRestore(arrays))
            model = manager.restore(done, args=kept)["model"]
        for step, batch in enumerate(islice(arrays, steps - done), done + 1):
            model, loss = train(model, batch)
            if history:
                records = np.stack(batch.origin, axis=1).tolist()
                line = {"step": step, "loss": loss.item(), "records": records}
                print(json.dumps(line), file=history, flush=True)
            if step == stop_at:
                sys.exit(f"stopped at step {step}")
            if step % 10 == 0:
                kept = ocp.args.Composite(
                    model=ocp.args.StandardSave(model), stream=StreamSave(arrays)
                )
                manager.save(step, args=kept)
                print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
