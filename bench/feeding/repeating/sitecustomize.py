"""Makes every stream of a process, and of its children, repeat its first batches for ever.

Python imports it at each start where its directory is on ``PYTHONPATH``. What is measured then is
the way from a ready batch to the client: nothing is read, checked or decoded after these batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.feeding import KEPT
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.run import Run

read_on = Run.take
enter_of = Run.__aenter__
run_of = Dataset.run


async def enter(run: Run) -> Run:
    """Start a run; one whose batches were kept before reads nothing.

    Its reading ahead would go on beside the first batches of a turn, and clear new memory for each
    client.
    """
    await enter_of(run)
    if len(run.__dict__["kept"]) >= KEPT:
        await halt(run)
    return run


async def take(run: Run) -> Batch:
    """Return one of the first batches, with the number that is due."""
    kept: list[Batch] = run.__dict__["kept"]
    if len(kept) < KEPT:
        kept.append(await read_on(run))
        return kept[-1]
    await halt(run)
    kept.append(kept.pop(0))
    run.position = replace(run.position, step=run.position.step + 1)
    return replace(kept[-1], next_position=run.position)


async def halt(run: Run) -> None:
    """Stop reading, once."""
    if not run.__dict__.get("is_halted"):
        run.__dict__["is_halted"] = True
        await run.halt()


def run(dataset: Dataset, *args: Any, allocate: object = None, **settings: Any) -> Run:  # noqa: ARG001 - kept batches lie in memory of their own
    """Return a run whose batches lie in no memory that is shared with a client."""
    made = run_of(dataset, *args, **settings)
    made.__dict__["kept"] = dataset.__dict__.setdefault("kept", [])
    return made


of_run: Any = Run
of_run.__aenter__ = enter
of_run.take = take
of_dataset: Any = Dataset
of_dataset.run = run
