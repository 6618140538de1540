"""Lightning: a ``fit`` that stops in the middle of an epoch goes on at the exact batch.

``python examples/regression_lightning.py`` writes its shards into a temporary directory. It trains
without a stop, then with a stop and from the checkpoint, and compares the records and losses.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

import streamrec as sr
from streamrec.adapters.torch import as_loader

STEPS, STOP = 40, 17  # an epoch has 12 steps
FEATURES = {name: sr.FixedLenFeature((), "float32") for name in ("id", "x", "y")}


class Data(LightningDataModule):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self.source, self.saved = f"{folder}/train-*.tfrecord", {}

    def train_dataloader(self) -> Any:  # only now Lightning has started the ranks
        stream = sr.open(self.source, FEATURES, batch_size=8, index=True, shuffle=True)
        self.loader = as_loader(stream, gather=True)
        if self.saved:
            self.loader.load_state_dict(self.saved)
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.saved = state_dict


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[Any] = []

    def training_step(self, batch: Any) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layer(batch["x"][:, None])[:, 0], batch["y"])
        self.seen.append((batch["id"].tolist(), loss.item()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.1)


def fit(folder: str, steps: int, resume: str | None = None) -> list[Any]:
    """Train up to a step; return the records and the loss of each step of this run."""
    saving = ModelCheckpoint(f"{folder}/{steps}", "{step}", every_n_train_steps=STOP, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer("cpu", max_steps=steps, max_epochs=-1, callbacks=[saving], **quiet)
    trainer.fit(model := Model(), datamodule=Data(folder), ckpt_path=resume, weights_only=False)
    return model.seen


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # Lightning's hints
    with tempfile.TemporaryDirectory() as folder:
        with sr.ShardedWriter(f"{folder}/train.tfrecord", shards=4, index=True) as writer:
            writer.write_many({"id": float(i), "x": i / 96, "y": 2 * i / 96} for i in range(96))
        whole = fit(folder, STEPS)
        stopped = fit(folder, STOP)
        resumed = fit(folder, STEPS, f"{folder}/{STOP}/step={STOP}.ckpt")
    print(f"loss {whole[0][1]:.4f} at step 1, {whole[-1][1]:.4f} at step {STEPS}")
    assert stopped + resumed == whole
    print(f"stopped after step {STOP} and resumed: the same records and losses")
