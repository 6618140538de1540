"""Trains on a changing number of ranks, for test_elastic_training.py; prints what each step had.

``CHAIN=2:3,4:7,1:20 PLACE=... python -m tests.adapters.elastic_programs TRAINERS SOURCE`` trains on
two ranks up to step 3, on four up to step 7, and on one up to step 20. Each part of a chain has
processes of its own, which know nothing but the last checkpoint.

All numbers are halves of whole numbers, so that sums over ranks are exact, and a curve of losses is
the same to the last bit for any number of ranks.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

import streamrec as sr
from streamrec.adapters.torch import as_loader
from tests.adapters.torch_shards import ELASTIC, RATE
from tests.forked_children import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Part:
    """One rank's part of a part of the chain."""

    source: str
    place: Path
    trainer: str
    rank: int
    ranks: int
    begin: int
    end: int
    seen: list[Any] = field(default_factory=list)
    """The ids and the loss of each batch of this rank."""

    @property
    def before(self) -> str:
        """The checkpoint to go on from; empty at the beginning."""
        return str(self.place / f"{self.trainer}-{self.begin}") if self.begin else ""

    @property
    def after(self) -> str:
        """The checkpoint to write."""
        return str(self.place / f"{self.trainer}-{self.end}")

    def stream(self, **order: Any) -> sr.Stream:
        """Open this rank's part of the stream."""
        size = ELASTIC["batch_size"] // self.ranks
        return sr.open(self.source, **{**ELASTIC, "batch_size": size, **order})

    def note(self, batch: Any, loss: torch.Tensor) -> None:
        self.seen.append([batch["id"].tolist(), loss.item()])


class Model(torch.nn.Module):
    """A sum of products, whose gradient is the sum of the inputs."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part
        self.weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, batch: Any) -> torch.Tensor:
        loss = (batch["x"].double() @ self.weight).sum()
        self.part.note(batch, loss)
        scaled: torch.Tensor = loss * self.part.ranks  # DDP takes the mean of the ranks' gradients
        return scaled


def train(part: Part, model: Model, loader: Any) -> None:
    """Train with DDP up to the end of the part."""
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for batch in islice(loader, part.end - part.begin):
        optimizer.zero_grad()
        parallel(batch).backward()
        optimizer.step()


def dcp(part: Part, **order: Any) -> None:
    """``torch.distributed.checkpoint``, with the loader as a ``Stateful``."""
    checkpoint: Any = import_module("torch.distributed.checkpoint")
    loader, model = as_loader(part.stream(**order), gather=True), Model(part)
    if part.before:
        state: dict[str, Any] = {"model": model.state_dict(), "loader": loader}
        checkpoint.load(state, checkpoint_id=part.before)
        model.load_state_dict(state["model"])
    train(part, model, loader)
    state = {"model": model.state_dict(), "loader": loader}
    checkpoint.save(state, checkpoint_id=part.after)


def dcp_by_shard(part: Part) -> None:
    """Without an index each rank's state counts."""
    dcp(part, index=None)


def megatron(part: Part) -> None:
    """The states of all ranks in one file, as Energon's ``save_state_global`` gives them."""
    from streamrec.adapters.megatron import SavableStream

    loader, model = SavableStream(part.stream(index=None)), Model(part)
    if part.before:
        saved = torch.load(part.before) if part.rank == 0 else {"model": None, "loader": None}
        loader.restore_state_global(saved["loader"], src_rank=0)
        load_from_rank_0(model, saved["model"])
    train(part, model, loader)
    states = loader.save_state_global(0)
    if part.rank == 0:
        torch.save({"model": model.state_dict(), "loader": states}, part.after)


def load_from_rank_0(model: Model, state: Any) -> None:
    if state is not None:
        model.load_state_dict(state)
    distributed.broadcast(model.weight.data, 0)


def torchtitan(part: Part) -> None:
    """The dataloader and the checkpoints of torchtitan."""
    manager: Any = import_module("torchtitan.components.checkpointer.dcp").CheckpointManager
    from streamrec.adapters.torchtitan import StreamDataLoader

    size = ELASTIC["batch_size"]
    config = StreamDataLoader.Config(
        open=part.stream, inputs={"x": "x"}, targets="id", global_batch_size=size
    )
    # Whatever the number of ranks, a rank takes a row at once.
    loader = config.build(dp_world_size=part.ranks, dp_rank=part.rank, local_batch_size=1)
    pieces = size // part.ranks
    model = Model(part)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    checkpoints = manager.Config(
        enable=True, interval=1, folder="checkpoint", last_save_model_only=False
    ).build(
        dataloader=loader, model_parts=[model], optimizers=optimizer, lr_schedulers=Nothing(),
        states={}, sd_adapter=None, base_folder=str(part.place / "torchtitan"),
    )  # fmt: skip
    if part.before:
        assert checkpoints.load(step=part.begin)
    batches = iter(loader)

    def whole() -> Any:
        """Yield a batch of the pieces of a step."""
        for _ in range(part.begin, part.end):
            pairs = [(y, x["x"]) for x, y in islice(batches, pieces)]
            ids, x = (torch.cat(columns) for columns in zip(*pairs, strict=True))
            yield {"id": ids, "x": x}

    train(part, model, whole())
    checkpoints.save(part.end, last_step=True)
    checkpoints.close()


class Nothing:
    """What has no state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Do nothing."""


def accelerate(part: Part) -> None:
    """Accelerate's ``save_state``, with the loader registered."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader, model = as_loader(part.stream(index=None), gather=True), Model(part)
    prepared, loader = accelerator.prepare(model, loader)
    accelerator.register_for_checkpointing(loader)
    if part.before:
        accelerator.load_state(part.before)
    train(part, model, loader)
    del prepared
    accelerator.save_state(part.after)


def trainer(part: Part) -> None:
    """Train with transformers' Trainer, fed by a stream."""
    from transformers import Trainer, TrainingArguments

    from streamrec.adapters.huggingface import feed

    arguments = TrainingArguments(
        str(part.place / "trainer"), num_train_epochs=2, save_strategy="steps", save_steps=1,
        save_total_limit=2, max_grad_norm=0, report_to=[], disable_tqdm=True, use_cpu=True,
        logging_strategy="no", log_level="error",
    )  # fmt: skip
    model = TrainerModel(part)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    run = Trainer(
        model, arguments, optimizers=(optimizer, steady), callbacks=[stopping_callback()(part.end)]
    )
    feed(run, part.stream(epochs=1))
    last = f"{arguments.output_dir}/checkpoint-{part.begin}" if part.begin else None
    run.train(resume_from_checkpoint=last)


class TrainerModel(torch.nn.Module):
    """The model, as the Trainer calls it."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.model = Model(part)

    def forward(self, id: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: A002
        return {"loss": self.model({"id": id, "x": x})}


def stopping_callback() -> Any:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Ends a training after a step."""

        def __init__(self, step: int) -> None:
            self.step = step

        def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            control.should_training_stop = state.global_step >= self.step

    return Stop


def lightning(part: Part) -> None:
    """A data module of Lightning, with the state of its loader.

    Lightning saves the loader too, but passes over it where it takes the epoch for complete.
    """
    import lightning

    class Data(lightning.LightningDataModule):  # type: ignore[misc, unused-ignore]
        saved: Any = None

        def train_dataloader(self) -> Any:
            self.loader = as_loader(part.stream(epochs=1), gather=True)
            if self.saved:
                self.loader.load_state_dict(self.saved)
            return self.loader

        def state_dict(self) -> dict[str, Any]:
            return self.loader.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.saved = state_dict

    class Module(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(part)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(batch)

        def on_train_batch_end(self, *_: Any) -> None:
            if self.trainer.global_step == part.end:
                self.trainer.save_checkpoint(part.after)
                self.trainer.should_stop = True

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), RATE)

    run = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=part.ranks, logger=False,
        strategy="ddp" if part.ranks > 1 else "auto", enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    run.fit(Module(), datamodule=Data(), ckpt_path=part.before or None)


TRAINERS: dict[str, Callable[[Part], None]] = {
    "dcp": dcp,
    "dcp by shard": dcp_by_shard,
    "megatron": megatron,
    "torchtitan": torchtitan,
    "accelerate": accelerate,
    "trainer": trainer,
    "lightning": lightning,
}


def child(parts: list[Part]) -> None:
    """Train one rank's part with each trainer."""
    rank, ranks = parts[0].rank, parts[0].ranks
    meeting = f"file://{parts[0].place}/meeting-{parts[0].begin}"
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", meeting, timedelta(seconds=PATIENCE), rank=rank, world_size=ranks
    )
    for part in parts:
        TRAINERS[part.trainer](part)
        # Nobody leaves, and nobody reads a checkpoint, before all have written theirs.
        distributed.barrier()
    seen = {part.trainer: part.seen for part in parts}
    (parts[0].place / f"seen-{parts[0].begin}-{rank}.json").write_text(json.dumps(seen))


SHARED = ("torch._dynamo", "torch.distributed.checkpoint")
"""What all parts import, and take seconds for: once, before they are forked."""
IMPORTS = {
    "accelerate": "accelerate",
    "lightning": "lightning",
    "torchtitan": "torchtitan.components.checkpointer.dcp",
    "trainer": "transformers.trainer",
}
"""What a trainer imports."""


def main(trainers: str, source: str) -> None:
    begin, names = 0, trainers.split(",")
    for module in (*SHARED, *(IMPORTS[name] for name in names if name in IMPORTS)):
        import_module(module)
    steps: dict[str, list[Any]] = {name: [] for name in names}
    for link in os.environ["CHAIN"].split(","):
        ranks, end = map(int, link.split(":"))
        place = Path(os.environ["PLACE"])
        children = [
            forked([Part(source, place, name, rank, ranks, begin, end) for name in names])
            for rank in range(ranks)
        ]
        ends = [os.waitpid(pid, 0)[1] for pid in children]
        if any(ends):
            sys.exit(1)
        for name in names:
            steps[name] += together(place, name, begin, ranks)
        begin = end
    print(json.dumps(steps))


def forked(parts: list[Part]) -> int:
    """Start the process of a rank, and return its number."""
    pid = os.fork()
    if not pid:
        try:
            child(parts)
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def together(place: Path, name: str, begin: int, ranks: int) -> list[Any]:
    """Return the ids and the loss of each global batch."""
    texts = [(place / f"seen-{begin}-{rank}.json").read_text() for rank in range(ranks)]
    seen = [json.loads(text)[name] for text in texts]
    return [
        [sorted(number for ids, _ in step for number in ids), sum(loss for _, loss in step).hex()]
        for step in zip(*seen, strict=True)
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
