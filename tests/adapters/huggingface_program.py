"""Trains a tiny model with transformers' Trainer, for test_huggingface.py; prints what it read."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, TrainingArguments

import streamrec as sr
from streamrec.adapters.huggingface import as_dataset, collate, feed

if TYPE_CHECKING:
    from collections.abc import Callable

FEATURES = {
    "id": sr.FixedLenFeature((), "int64"),
    "x": sr.FixedLenFeature((2,), "float32"),
}
SIZE, EPOCHS, STEPS = 4, 2, 6
"""Records a batch; epochs; batches an epoch."""


def opened(source: str, **values: Any) -> sr.Stream:
    order: dict[str, Any] = {"lanes": 2, "shuffle": True, "shuffle_window": 300, "engine": "thread"}
    return sr.open(
        source, FEATURES, **{**order, "index": True, "rank": 0, "world_size": 1, **values}
    )


class Model(torch.nn.Module):
    """Notes the ids of the batches that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: A002
        self.seen.append(id.tolist())
        return {"loss": self.layer(x).square().mean()}


def trained(
    dataset: Any,
    place: str,
    resume: str | None = None,
    collator: Any = None,
    stream: sr.Stream | None = None,
    **values: Any,
) -> Any:
    """Train, saving after each step, and return the ids of each batch, or the error."""
    arguments = TrainingArguments(
        place,
        per_device_train_batch_size=SIZE,
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
        log_level="error",
        **values,
    )
    model = Model()
    trainer = Trainer(model, arguments, train_dataset=dataset, data_collator=collator)
    try:
        if stream is not None:
            feed(trainer, stream)
        trainer.train(resume_from_checkpoint=resume)
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return f"{type(error).__name__}: {error}"
    return model.seen


def main(source: str, place: str) -> None:
    """Train in one process, stopped and resumed."""
    cases: dict[str, Any] = {}
    numbers = itertools.count()

    def new() -> str:
        return f"{place}/{next(numbers)}"

    alone = as_dataset(opened(source))
    for epoch in range(EPOCHS):
        alone.set_epoch(epoch)
        ids = [record["id"].item() for record in alone]
        cases[f"epoch {epoch}"] = [ids[i : i + SIZE] for i in range(0, len(ids), SIZE)]
    whole = new()
    cases["whole"] = trained(as_dataset(opened(source)), whole)
    for k in (1, 5, 6, 8):
        checkpoint = f"{whole}/checkpoint-{k}"
        cases[f"resumed {k}"] = trained(as_dataset(opened(source)), new(), checkpoint)
    again = as_dataset(opened(source))
    first = new()
    head = trained(again, first, max_steps=3)
    # A Trainer reads a batch ahead; the same dataset goes on exactly all the same.
    cases["same dataset"] = [head, trained(again, new(), f"{first}/checkpoint-3")]
    cases["worker"] = trained(as_dataset(opened(source)), new(), dataloader_num_workers=1)
    cases["collated"] = trained(as_dataset(opened(source)), new(), collator=collate)
    unknown = as_dataset(opened(source, index=None))
    cases["steps"] = trained(unknown, new(), max_steps=8)
    cases |= fed(source, whole, new)
    cases["batches"] = trained(as_dataset(opened(source, batch_size=2)), new(), max_steps=1)
    print(json.dumps(cases))


def fed(source: str, other: str, new: Callable[[], str]) -> dict[str, Any]:
    """Let the Trainer train on the batches of a stream, stopped and resumed."""
    place = new()
    cases = {"fed": trained(None, place, stream=opened(source, batch_size=SIZE))}
    for k in (1, 5, 6, 8):
        with opened(source, batch_size=SIZE) as stream:
            restores = {"restore_callback_states_from_checkpoint": k == 5}
            tail = trained(None, new(), f"{place}/checkpoint-{k}", stream=stream, **restores)
            cases[f"fed, resumed {k}"] = [tail, stream.statistics()["batches"]]
    place = new()
    fours: dict[str, Any] = {
        "gradient_accumulation_steps": 4
    }  # the last step of an epoch has two batches
    trained(None, place, stream=opened(source, batch_size=SIZE), **fours)
    stream = opened(source, batch_size=SIZE)
    cases["fed, accumulated"] = trained(
        None, new(), f"{place}/checkpoint-3", stream=stream, **fours
    )
    stream = opened(source, batch_size=SIZE)
    cases["fed, no state"] = trained(None, new(), f"{other}/checkpoint-2", stream=stream)
    cases["fed, dataset"] = trained(as_dataset(opened(source)), new(), stream=stream)
    return cases


def ranks(source: str, place: str) -> None:
    """Train as one of several processes, with the environment of torchrun."""
    own = f"{place}/{os.environ['RANK']}"
    cases = {"whole": trained(as_dataset(opened(source)), own, save_total_limit=1)}
    part = opened(source, rank="auto", world_size="auto")
    cases["part"] = trained(as_dataset(part), own, max_steps=2)
    print(json.dumps(cases), flush=True)
    os._exit(0)


if __name__ == "__main__":
    ranks(sys.argv[2], os.environ["MEETING"])
