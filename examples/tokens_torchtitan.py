"""torchtitan: its checkpoints hold the stream, and a resumed run goes on at the exact batch.

``python examples/tokens_torchtitan.py`` writes its shards into a temporary directory. It trains
without a stop, then with a stop and from the checkpoint, and compares the tokens and losses.
The dataloader and the checkpoints are those of torchtitan's trainer.
"""

from __future__ import annotations

import tempfile
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import distributed
from torchtitan.components.checkpointer.dcp import CheckpointManager

import streamrec as sr
from streamrec.adapters.torchtitan import StreamDataLoader

TOKENS, LENGTH, ROWS = 96, 12, 8
STEPS, STOP = 40, 17  # an epoch has 12 steps
FEATURES = {"tokens": sr.FixedLenFeature((LENGTH + 1,), "int64")}


def shift(batch: Any) -> dict[str, Any]:
    return {"input": batch["tokens"][:, :-1], "labels": batch["tokens"][:, 1:]}


def train(folder: str, run: str, steps: int, resume: int = 0) -> list[Any]:
    """Train from a checkpoint up to a step; return the tokens and the loss of each step."""

    def open_stream(rank: Any, batch_size: int) -> sr.Stream:
        order = {"rank": rank, "index": True, "shuffle": True, "epochs": None}
        source = f"{folder}/train-*.tfrecord"
        return sr.open(source, FEATURES, batch_size=batch_size, transform=shift, **order)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(TOKENS, 32), torch.nn.Linear(32, TOKENS))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, STEPS)
    config = StreamDataLoader.Config(open=open_stream, global_batch_size=ROWS)
    loader = config.build(dp_world_size=1, dp_rank=0, local_batch_size=ROWS)
    saving = {"enable": True, "last_save_model_only": False, "initial_load_model_only": False}
    checkpoints = CheckpointManager.Config(**saving).build(
        dataloader=loader, model_parts=[model], optimizers=optimizer, lr_schedulers=schedule,
        states={}, sd_adapter=None, base_folder=f"{folder}/{run}",
    )  # fmt: skip
    if resume:
        assert checkpoints.load(step=resume)
    seen = []
    for inputs, labels in islice(loader, steps - resume):
        loss = torch.nn.functional.cross_entropy(model(inputs["input"]).mT, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        seen.append((inputs["input"].tolist(), loss.item()))
    checkpoints.save(steps, last_step=True)
    checkpoints.close()
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        with sr.ShardedWriter(f"{folder}/train.tfrecord", shards=4, index=True) as writer:
            writer.write_many({"tokens": (np.arange(LENGTH + 1) + i) % TOKENS} for i in range(96))
        distributed.init_process_group("gloo", f"file://{folder}/ranks", rank=0, world_size=1)
        whole = train(folder, "whole", STEPS)
        stopped = train(folder, "stopped", STOP)
        resumed = train(folder, "stopped", STEPS, resume=STOP)
        distributed.destroy_process_group()
    print(f"loss {whole[0][1]:.4f} at step 1, {whole[-1][1]:.4f} at step {STEPS}")
    assert stopped + resumed == whole
    print(f"stopped after step {STOP} and resumed: the same tokens and losses")
