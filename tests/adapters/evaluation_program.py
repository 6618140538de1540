"""Evaluates with Lightning, Accelerate and transformers, for test_evaluation.py; prints the ids."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import lightning
import torch
from accelerate import Accelerator
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import streamrec as sr
from streamrec.adapters.huggingface import as_dataset, collate
from streamrec.adapters.torch import as_loader
from tests.adapters.huggingface_program import FEATURES, Model

if TYPE_CHECKING:
    from collections.abc import Callable


def loader(source: str, restart: bool | None = None, **values: Any) -> Any:
    settings: dict[str, Any] = {"batch_size": 6, "lanes": 2, "index": True, "engine": "thread"}
    stream = sr.open(source, FEATURES, **{**settings, "rank": 0, "world_size": 1, **values})
    return as_loader(stream, restart=restart)


class Module(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    """Notes the ids of each loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.trained: list[int] = []
        self.loops: dict[str, list[list[int]]] = {}
        self.ids: list[int] = []

    def training_step(self, batch: Any, _: int) -> Any:
        self.trained += batch["id"].tolist()
        return self.layer(batch["x"]).square().mean()

    def validation_step(self, batch: Any, _: int) -> None:
        self.ids += batch["id"].tolist()

    test_step = predict_step = validation_step

    def on_validation_epoch_end(self) -> None:
        name = "sanity" if self.trainer.sanity_checking else self.trainer.state.stage.value
        self.loops.setdefault(name, []).append(self.ids)
        self.ids = []

    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


def evaluated(source: str, **values: Any) -> dict[str, Any]:
    """Return the ids of each loop of Lightning, with its defaults and with limits."""
    quiet: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 3,
    }  # fmt: skip
    whole = Module()
    lightning.Trainer(**quiet).fit(whole, loader(source, shuffle=True), loader(source, **values))
    part = Module()
    limits = dict.fromkeys(("limit_val_batches", "limit_test_batches", "limit_predict_batches"), 2)
    trainer = lightning.Trainer(**quiet, **limits, num_sanity_val_steps=0)
    validation = loader(source, **values)
    trainer.fit(part, loader(source), validation)
    for loop in (trainer.validate, trainer.test, trainer.predict):
        loop(part, validation)
        loop(part, validation)
    return {"whole": whole.loops, "part": part.loops, "trained": whole.trained}


def endless(source: str, place: str) -> dict[str, str]:
    """Return how evaluations of a stream without an end are refused, or the limited loop's ids."""
    quiet: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1,
    }  # fmt: skip
    run, module = lightning.Trainer(**quiet), Module()
    endless = [loader(source, epochs=None) for _ in range(5)]
    refusals = {
        "fit": refusal(lambda: run.fit(module, loader(source), endless[0])),
        "test": refusal(lambda: run.test(Module(), endless[1], verbose=False)),
        "predict": refusal(lambda: run.predict(Module(), endless[2])),
        "trainer": refusal(lambda: of_trainer(source, place, epochs=None)),
    }
    limited = Part()
    lightning.Trainer(**quiet, limit_val_batches=2).validate(limited, endless[3], verbose=False)
    pair = CombinedLoader({"a": endless[4], "b": loader(source)}, "min_size")
    side = SideBySide()
    run.validate(side, pair, verbose=False)
    return {**refusals, "trained": str(module.trained), "limited": str(len(limited.ids)),
            "side by side": str(len(side.ids))}  # fmt: skip


class Part(Module):
    """Keeps the ids after its loop."""

    def on_validation_epoch_end(self) -> None:
        pass


class SideBySide(Part):
    """Takes two loaders at once."""

    def validation_step(self, batch: Any, number: int) -> None:
        super().validation_step(batch["a"], number)


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except sr.errors.ConfigError as error:
        return str(error)
    return ""


def accelerated(source: str) -> list[list[int]]:
    """Return the ids of a loop that is broken off, and of a whole one, prepared in two ways."""
    accelerator = Accelerator(cpu=True)
    alone = accelerator.prepare(loader(source, restart=True))
    shards = accelerator.prepare(DataLoader(loader(source, restart=True), batch_size=None))
    return [loop for each in (alone, shards) for loop in (first(each, 2), first(each, 99))]


def first(batches: Any, most: int) -> list[int]:
    ids: list[int] = []
    for number, batch in enumerate(batches, 1):
        ids += batch["id"].tolist()
        if number == most:
            break
    return ids


def of_trainer(source: str, place: str, **values: Any) -> list[list[int]]:
    """Return the ids of two evaluations of transformers' Trainer."""
    settings: dict[str, Any] = {"index": True, "lanes": 2, "engine": "thread", **values}
    stream = sr.open(source, FEATURES, rank=0, world_size=1, **settings)
    model = Model()
    arguments = TrainingArguments(
        place, per_device_eval_batch_size=6, use_cpu=True, report_to=[], disable_tqdm=True,
        prediction_loss_only=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, eval_dataset=as_dataset(stream), data_collator=collate)
    next(iter(as_dataset(stream)))  # somebody has looked at it
    loops = []
    for _ in range(2):
        model.seen.clear()
        trainer.evaluate()
        loops.append([number for batch in model.seen for number in batch])
    return loops


def main(source: str, place: str) -> None:
    warnings.simplefilter("ignore")
    cases = {
        "known": evaluated(source),
        "unknown": evaluated(source, index=None),
        "accelerate": accelerated(source),
        "trainer": of_trainer(source, place),
        "endless": endless(source, place),
    }
    print(json.dumps(cases))
