"""Programs that train with the loader, for test_torch_training.py; as torch_programs.py."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

import streamrec as sr
from streamrec.adapters.torch import as_loader
from tests.adapters.torch_programs import RANKS, kept, leave, run
from tests.adapters.torch_shards import FEATURES, FEW
from tests.by_day import is_day, stops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

METHODS = ("fork",) if is_day() else ("fork", "forkserver", "spawn")
STEPS = 4


def loader_of(source: str, *, device: Any = None, pairs: Any = (), **values: Any) -> Any:
    """Make a loader of the examples, in four batches of the one rank; the last one is padded."""
    order = {"lanes": 2, "index": True, "shuffle": True, "shuffle_window": 300}
    ends = {"batch_size": 7, "remainder": "pad", "engine": "thread"}
    settings = {"features": FEATURES, **order, **ends, "rank": 0, "world_size": 1, **values}
    return as_loader(sr.open(source, **settings), device, None, *pairs)


def part_of(source: str, **values: Any) -> Any:
    """Make a loader of this rank's part, two batches."""
    return loader_of(source, rank="auto", world_size="auto", batch_size=6, **values)


def plain(batch: Any) -> dict[str, Any]:
    """Return all of a batch as plain values."""
    return {
        "ids": batch["id"].tolist(),
        "x": batch["x"].tolist(),
        "names": [name.decode() for name in batch["name"]],
        "tokens": [row.tolist() for row in batch["tokens"].unbind()],
        "hot": batch["hot"].to_dense().tolist(),
        "mask": batch.mask.tolist(),
        "epoch": batch.epoch,
        "origin": [numbers.tolist() for numbers in batch.origin],
        "step": batch.next_position.step,
    }


def plain_pair(pair: Any) -> list[Any]:
    """Return a pair of two features and one, and its mask, as plain values."""
    inputs, targets, mask = pair
    columns = {name: column.tolist() for name, column in inputs.items()}
    return [columns, targets.tolist(), mask.tolist()]


def outcome(batches: Callable[[], Iterable[Any]] | Iterable[Any], most: int | None = None) -> Any:
    """Return the ids of the batches that arrive, or the error."""
    try:
        kept.append(iter(batches() if callable(batches) else batches))
        return [batch["id"].tolist() for batch in islice(kept[-1], most)]
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return f"{type(error).__name__}: {error}"


def workers(loader: Any, count: int = 1, method: str = "fork", **values: Any) -> Any:
    context = method if count else None
    values = {"batch_size": None, **values}
    return DataLoader(loader, num_workers=count, multiprocessing_context=context, **values)


# -- one process, and its workers ------------------------------------------------------------------


def run_workers(source: str) -> None:
    multiprocessing.set_forkserver_preload(["torch", "streamrec.streams.opening"])
    cases: dict[str, Any] = {"direct": list(map(plain, loader_of(source)))}
    for method in METHODS:
        cases[method] = list(map(plain, workers(loader_of(source), method=method)))
    cases["0"] = list(map(plain, workers(loader_of(source), 0)))
    for method in ("fork",) if is_day() else ("fork", "spawn"):
        two = workers(loader_of(source), 2, method)
        cases[f"2 {method}"] = outcome(two)
    cases["collated"] = outcome(lambda: workers(loader_of(source), 0, batch_size=2))
    pairs = ("x", "id"), "id"
    cases["pairs"] = list(map(plain_pair, loader_of(source, pairs=pairs)))
    cases["pairs, 1"] = list(map(plain_pair, workers(loader_of(source, pairs=pairs))))
    cases["pairs, collated"] = outcome(
        lambda: workers(loader_of(source, pairs=pairs), 0, batch_size=2)
    )
    cases["device"] = outcome(lambda: workers(loader_of(source, device="meta")))
    cases |= epochs(source)
    leave(cases)


def epochs(source: str) -> dict[str, Any]:
    alone = loader_of(source)
    cases: dict[str, Any] = {"epochs": [outcome(alone) for _ in range(3)]}
    kinds: dict[str, dict[str, Any]] = {"fresh": {}, "persistent": {"persistent_workers": True}}
    for name, values in kinds.items():
        data = workers(loader_of(source), **values)
        cases[f"epochs, {name}"] = [outcome(data) for _ in range(3)]
        data = workers(loader_of(source), **values)
        cases[f"break, {name}"] = [outcome(data, 2) for _ in range(3)]
        loader = loader_of(source)
        data = workers(loader, **values)
        cases[f"set, {name}"] = []
        for epoch in (2, 0, 1):
            loader.set_epoch(epoch)
            cases[f"set, {name}"].append(outcome(data))
    loader = loader_of(source)
    cases["loaded"] = [outcome(loader, 2), outcome(lambda: workers(loader))]
    cases["state"] = outcome(loader.state_dict)
    loader = loader_of(source)
    data = workers(loader, persistent_workers=True)
    outcome(data)
    loader.load_state_dict({"version": 3})
    cases["loaded late"] = outcome(data)
    return cases


def run_stateful(source: str) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def stateful(count: int) -> Any:
        context = {"multiprocessing_context": "fork"} if count else {}
        return StatefulDataLoader(loader_of(source), batch_size=None, num_workers=count, **context)

    whole = loader_of(source)
    cases: dict[str, Any] = {"epochs": [outcome(whole) for _ in range(3)]}
    for count in (0, 1):
        for epoch in range(2):
            for k in stops(range(1, STEPS + 1)):
                first, second = stateful(count), stateful(count)
                head = [outcome(first) for _ in range(epoch)]
                head.append(outcome(first, k))
                second.load_state_dict(json.loads(json.dumps(first.state_dict())))
                cases[f"{count} {epoch} {k}"] = [head, outcome(second)]
        first, second = stateful(count), stateful(count)
        outcome(first)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        cases[f"{count} ended"] = [outcome(second) for _ in range(2)]
    leave(cases)


# -- several ranks ---------------------------------------------------------------------------------


def run_ranks(source: str) -> None:
    """Run one of several ranks, with the environment of torchrun."""
    before = part_of(source)
    distributed.init_process_group("gloo")
    cases: dict[str, Any] = {"made before": outcome(before)}
    cases["made after"] = outcome(lambda: part_of(source))
    cases["worker"] = outcome(lambda: workers(part_of(source)))
    cases["other seed"] = outcome(lambda: part_of(source, seed=distributed.get_rank()))
    cases["fsdp"] = outcome(lambda: trained_in_shards(part_of(source)))
    cases |= checkpoints(source)
    distributed.barrier()
    leave(cases)


def trained_in_shards(loader: Any) -> Iterator[Any]:
    """Yield the batches on which a model of fully sharded parameters has been trained."""
    fsdp: Any = import_module("torch.distributed.fsdp")
    mesh = import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (RANKS,))
    model = fsdp.fully_shard(torch.nn.Linear(2, 1), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader:
        model(batch["x"]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield batch


def checkpoints(source: str) -> dict[str, Any]:
    """Save after each batch with torch.distributed.checkpoint, and load into a new loader."""
    checkpoint: Any = import_module("torch.distributed.checkpoint")
    cases = {}
    for by in (True, None):
        values = {"index": by, "epochs": None, **FEW}
        first: Any = part_of(source, **values)
        whole = outcome(first, 6)
        for k in (1, 2, 3) if by is None else (2,):
            first, second = part_of(source, **values), part_of(source, **values)
            head = outcome(first, k)
            place = str(Path(os.environ["MEETING"]) / f"{by}-{k}")
            checkpoint.save({"loader": first}, checkpoint_id=place)
            checkpoint.load({"loader": second}, checkpoint_id=place)
            cases[f"checkpoint, {by}, {k}"] = [head + outcome(second, 6 - k), whole]
    return cases


def run_spawn(source: str) -> None:
    """Ranks by ``mp.spawn``, of which the environment says nothing."""
    multiprocess: Any = torch.multiprocessing
    multiprocess.spawn(_spawned, (source, part_of(source)), RANKS)


def _spawned(rank: int, source: str, before: Any) -> None:
    place = f"file://{os.environ['MEETING']}/spawned"
    distributed.init_process_group("gloo", place, rank=rank, world_size=RANKS)
    cases: dict[str, Any] = {"rank": rank, "made before": outcome(before)}
    cases["made after"] = outcome(lambda: part_of(source))
    method = "fork" if is_day() else "spawn"
    cases["worker"] = outcome(workers(part_of(source), method=method))
    distributed.barrier()
    leave(cases)


# -- Accelerate and Lightning ----------------------------------------------------------------------


def run_accelerate(source: str) -> None:
    """Run one of several ranks, whose loaders Accelerate prepares."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = part_of(source)
    cases: dict[str, Any] = {"same": accelerator.prepare(loader) is loader}
    cases["loader"] = [outcome(loader) for _ in range(2)]
    for dispatch in (None, False):
        accelerator.dataloader_config.dispatch_batches = dispatch
        for count in (0, 1) if dispatch is False else (0,):
            data = accelerator.prepare(workers(part_of(source), count))
            cases[f"dispatch {dispatch}, workers {count}"] = outcome(data)
    accelerator.dataloader_config.dispatch_batches = None
    numbers = {name: FEATURES[name] for name in ("id", "x")}
    data = accelerator.prepare(workers(loader_of(source, batch_size=6, features=numbers), 0))
    cases["whole"] = outcome(data)
    leave(cases)


def run_accelerate_alone(source: str) -> None:
    """Prepare a DataLoader in one process: Accelerate sets its epochs, and moves its batches."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    accelerator.dataloader_config.dispatch_batches = False
    direct, loader = loader_of(source), loader_of(source)
    data = accelerator.prepare(workers(loader, 0))
    cases: dict[str, Any] = {"direct": [list(map(plain, direct)) for _ in range(2)]}
    cases["prepared"] = [list(map(plain, data)) for _ in range(2)]
    outcome(direct, 1)
    resumed = loader_of(source)
    resumed.load_state_dict(direct.state_dict())
    cases["later"] = outcome(accelerator.prepare(workers(resumed, 0)))
    leave(cases)


def run_lightning(source: str) -> None:
    """Stop and resume behind each batch, where the length is known and where it is not."""
    cases: dict[str, Any] = {}
    directory = Path(os.environ["MEETING"])
    for name, values in ("known", {}), ("unknown", {"index": None, "remainder": "keep"}):
        whole = cases[name] = trained(loader_of(source, **values), 3)
        for k in stops(range(1, 2 * STEPS + 1)):
            path = directory / f"{name}-{k}.ckpt"
            head = trained(loader_of(source, **values), 3, save=(k, path))
            tail = trained(loader_of(source, **values), 3, resume=path)
            cases[f"{name} {k}"] = [head + tail, whole]
    leave(cases)


def trained(
    loader: Any, epochs: int, save: tuple[int, Path] | None = None, resume: Path | None = None
) -> list[list[int]]:
    """Train, and return the ids of each batch that was trained on."""
    import lightning

    seen: list[list[int]] = []

    class Model(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            seen.append(batch["id"].tolist())
            return self.layer(batch["x"]).sum()

        def on_train_batch_end(self, *_: Any) -> None:
            if save is not None and self.trainer.global_step == save[0]:
                self.trainer.save_checkpoint(save[1])
                self.trainer.should_stop = True

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=os.environ.get("WORLD_SIZE", "1"),
        strategy="ddp" if "WORLD_SIZE" in os.environ else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader, ckpt_path=resume)
    return seen


def run_lightning_ranks(source: str) -> None:
    """Run one of several ranks, whose environment Lightning finds."""
    leave({"loader": trained(part_of(source), 2)})


PROGRAMS: dict[str, Callable[[str], None]] = {
    "workers": run_workers,
    "stateful": run_stateful,
    "ranks": run_ranks,
    "spawn": run_spawn,
    "accelerate": run_accelerate,
    "accelerate alone": run_accelerate_alone,
    "lightning": run_lightning,
    "lightning ranks": run_lightning_ranks,
}

if __name__ == "__main__":
    run(PROGRAMS, *sys.argv[1:])
