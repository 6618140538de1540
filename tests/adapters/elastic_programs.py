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


TRAINERS: dict[str, Callable[[Part], None]] = {"dcp": dcp, "dcp by shard": dcp_by_shard}


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


def main(trainers: str, source: str) -> None:
    for module in SHARED:
        import_module(module)
    begin, names = 0, trainers.split(",")
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
