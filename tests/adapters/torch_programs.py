"""Programs that train with PyTorch, for test_torch_workers.py: each prints what it read, as JSON.

They run in processes of their own, and each has many cases: to import torch takes a second or more.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from functools import partial
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import streamrec as sr
from tests.by_day import covering, is_day, stops
from tests.forked_children import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

COUNTS = (1, 2) if is_day() else (1, 2, 4)
METHODS = {"fork": COUNTS, "spawn": (1,) if is_day() else COUNTS}
METHODS |= {} if is_day() else {"forkserver": COUNTS}
"""Ways to start workers, and their numbers; a server of forks, and each worker of "spawn", imports
torch."""
DIVISIONS: tuple[tuple[Any, ...], ...] = ((False, True), (None, True, False), (0, 1))
"""Accelerate's split_batches and dispatch_batches, and numbers of workers."""
RANKS = 2


def opened(source: str, **values: Any) -> sr.Stream:
    """Open a stream of single records, each a number."""
    return sr.open(source, lanes=2, index=True, engine="thread", **values)


def whole(source: str) -> sr.Stream:
    return opened(source, rank=0, world_size=1)


class Numbers(IterableDataset[Any]):
    """Forwards its state, as torchdata's loader asks for."""

    def __init__(self, stream: sr.Stream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[torch.Tensor]:
        for record in self.stream:
            yield number(record)

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)


class Plain(IterableDataset[Any]):
    """A dataset without state that iterates over a stream."""

    def __init__(self, stream: sr.Stream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.stream)


class Divided(IterableDataset[Any]):
    """Makes the stream in the worker: of this worker alone, or of whatever is found there."""

    def __init__(self, source: str, *, is_given: bool) -> None:
        self.source, self.is_given = source, is_given

    def __iter__(self) -> Iterator[torch.Tensor]:
        info: Any = get_worker_info()
        share = {"rank": info.id, "world_size": info.num_workers} if self.is_given else {}
        return iter(Numbers(opened(self.source, **share)))


def number(record: bytes) -> torch.Tensor:
    return torch.tensor(int.from_bytes(record, "little"))


def numbers(records: list[bytes]) -> torch.Tensor:
    return torch.stack(list(map(number, records)))


def loader(dataset: Any, workers: int, method: str | None = None, **values: Any) -> Any:
    values = {"batch_size": 2, **values}
    context = method if workers else None
    return DataLoader(dataset, num_workers=workers, multiprocessing_context=context, **values)


kept: list[Any] = []
"""Iterators: torch takes seconds to end workers of which one failed; :func:`leave` kills them."""


def outcome(batches: Iterable[torch.Tensor]) -> list[int] | str:
    """Return the numbers that arrive, or the error."""
    try:
        kept.append(iter(batches))
        return [int(value) for batch in kept[-1] for value in batch.reshape(-1)]
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return f"{type(error).__name__}: {error}"


def leave(cases: dict[str, Any]) -> None:
    """Say it, and end at once."""
    os.write(1, f"{json.dumps(cases)}\n".encode())  # in one piece: two ranks may share the output
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler minds workers that are killed
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)


def run(programs: Mapping[str, Callable[[str], None]], names: str, source: str) -> None:
    """Run programs, whose names have commas between, in forks that need not import torch anew."""
    ports = os.environ.get("PORTS", "").split(",")
    outputs = []
    for name, port in zip_longest(names.split(","), ports, fillvalue=""):
        # The ranks of one program must not meet those of another, which may be slower.
        os.environ["MASTER_PORT"] = port
        outputs.append(_forked(partial(programs[name], source)))
    os.write(1, b"".join(outputs))


def _forked(program: Callable[[], None]) -> bytes:
    """Return what a program says; if it fails, end as it does."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            faulthandler.dump_traceback_later(6 * PATIENCE, exit=True)
            os.dup2(output.fileno(), 1)
            program()
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
        output.seek(0)
        return output.read()


# -- one process, and its workers ------------------------------------------------------------------


def run_workers(source: str) -> None:
    multiprocessing.set_forkserver_preload(["torch", "streamrec.streams.opening"])
    cases: dict[str, Any] = {"0": outcome(loader(Numbers(whole(source)), 0))}
    for method, counts in METHODS.items():
        for count in counts:
            cases[f"{count} {method}"] = outcome(loader(Numbers(whole(source)), count, method))
    records = {"batch_size": None, "collate_fn": number}
    for count in (1, 2):
        dataset = Plain(whole(source))
        cases[f"records, {count} fork"] = outcome(loader(dataset, count, "fork", **records))
    for method in ("fork",) if is_day() else ("fork", "forkserver"):
        cases[f"own, {method}"] = outcome(loader(Divided(source, is_given=True), 2, method))
    cases["auto"] = outcome(loader(Divided(source, is_given=False), 2, "fork"))
    for engine in ("thread", "process"):
        cases[f"open, {engine}"] = beside_a_worker(source, engine)
    cases |= epochs(source)
    leave(cases)


def epochs(source: str) -> dict[str, Any]:
    """Two epochs each: of the stream itself, of a worker that stays, and of one for each epoch."""

    def shuffled() -> sr.Stream:
        return opened(source, rank=0, world_size=1, shuffle=True, shuffle_window=100)

    alone, anew = shuffled(), shuffled()
    staying = loader(Numbers(shuffled()), 1, "fork", persistent_workers=True)
    cases: dict[str, Any] = {"epochs": [], "epochs, persistent": [], "epochs, set": []}
    for epoch in range(2):
        cases["epochs"].append(outcome(map(number, alone)))
        cases["epochs, persistent"].append(outcome(staying))
        anew.set_epoch(epoch)
        cases["epochs, set"].append(outcome(loader(Numbers(anew), 1, "fork")))
    return cases


def beside_a_worker(source: str, engine: Literal["thread", "process"]) -> list[Any]:
    """Read a stream in the trainer, then in a forked worker, then in the trainer again."""
    with sr.open(source, lanes=2, index=True, engine=engine, rank=0, world_size=1) as stream:
        head = outcome(number(next(stream)) for _ in range(5))
        inside = outcome(loader(Numbers(stream), 1, "fork"))
        return [head, inside, outcome(map(number, stream))]


def run_stateful(source: str) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def stateful(workers: int) -> Any:
        context = {"multiprocessing_context": "fork"} if workers else {}
        dataset = Numbers(whole(source))
        return StatefulDataLoader(dataset, batch_size=4, num_workers=workers, **context)

    cases: dict[str, Any] = {"2": outcome(stateful(2))}
    for workers in (0, 1):
        for k in stops(range(1, 7)):
            first = stateful(workers)
            head = outcome(batch for _, batch in zip(range(k), first, strict=False))
            state = json.loads(json.dumps(first.state_dict()))
            second = stateful(workers)
            second.load_state_dict(state)
            cases[f"{workers} {k}"] = [head, outcome(second)]
    leave(cases)


# -- several ranks ---------------------------------------------------------------------------------


def run_rank(source: str) -> None:
    """Run one of several ranks, with the environment of torchrun."""
    before = opened(source)
    distributed.init_process_group("gloo")
    cases = {"made before": outcome(loader(Numbers(before), 1, "fork"))}
    for method in ("fork",) if is_day() else ("fork", "spawn"):
        cases[f"made after, {method}"] = outcome(loader(Numbers(opened(source)), 1, method))
    distributed.barrier()
    leave(cases)


def run_spawn(source: str) -> None:
    """Ranks by ``mp.spawn``, of which the environment says nothing."""
    multiprocess: Any = torch.multiprocessing
    multiprocess.spawn(_spawned, (source, opened(source)), RANKS)


def _spawned(rank: int, source: str, before: sr.Stream) -> None:
    place = f"file://{os.environ['MEETING']}"
    early = opened(source)
    distributed.init_process_group("gloo", place, rank=rank, world_size=RANKS)
    cases: dict[str, Any] = {"rank": rank}
    cases["made before, elsewhere"] = outcome(loader(Numbers(before), 0))
    cases["made before"] = outcome(loader(Numbers(early), 0))
    for workers, method in ((0, "fork"), (1, "fork"), *(() if is_day() else ((1, "spawn"),))):
        case = f"made after, {workers} {method}"
        cases[case] = outcome(loader(Numbers(opened(source)), workers, method))
    distributed.barrier()
    leave(cases)


# -- Accelerate ------------------------------------------------------------------------------------


def run_accelerate(source: str) -> None:
    """Run one of several ranks, whose loaders Accelerate prepares."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    cases: dict[str, Any] = {}

    def prepared(
        stream: sr.Stream, dispatch: bool | None, workers: int, method: str = "fork"
    ) -> Any:
        accelerator.dataloader_config.dispatch_batches = dispatch
        own = {"batch_size": 2, "collate_fn": numbers}
        return accelerator.prepare(loader(Plain(stream), workers, method, **own))

    some = covering(*DIVISIONS)
    for split, dispatch, workers in product(*DIVISIONS):
        accelerator.dataloader_config.split_batches = split
        case = f"dispatch {dispatch}, split {split}, workers {workers}"
        if not is_day() or (split, dispatch, workers) in some:
            cases[f"whole, {case}"] = outcome(prepared(whole(source), dispatch, workers))
        if not workers or dispatch is False:
            cases[case] = outcome(prepared(opened(source), dispatch, workers))
    accelerator.dataloader_config.split_batches = False
    for dispatch in (True,) if is_day() else (True, False):
        case = f"dispatch {dispatch}, spawned"
        cases[case] = outcome(prepared(opened(source), dispatch, 1, "spawn"))
    cases["not prepared"] = outcome(loader(Numbers(opened(source)), 1, "fork"))
    # Only the rank that reads is refused, and goes; the other waits for it, and notices that.
    cases["dispatch True, forked"] = outcome(prepared(opened(source), True, 1))
    leave(cases)


PROGRAMS: dict[str, Callable[[str], None]] = {
    "workers": run_workers,
    "stateful": run_stateful,
    "rank": run_rank,
    "spawn": run_spawn,
    "accelerate": run_accelerate,
}

if __name__ == "__main__":
    run(PROGRAMS, *sys.argv[1:])
