"""Measures what clients of pictures that come, leave and are killed do to the others of a feeder.

``streamrec serve``, with one and with two workers, serves a dataset of pictures and one of plain
records. One client reads the plain records, as a trainer that computes for some milliseconds after
each batch. It is alone; then a hundred clients of pictures
come beside it and leave in the middle of a batch, or are killed, or take a batch; then it is alone
again. It has the options that a user has by default. The table has its rates, and the delays of the
daemon's event loops meanwhile.

A trainer sleeps and wakes, and on a machine whose cores are all taken it wakes late, whatever the
feeder does. So another process computes just as long, again and again, and reads nothing
(:func:`bench.crowd.beat`); the table has the part of its rate that is left beside the clients of
pictures, and the trainer's part of that.

The clients of pictures are processes of this machine at the idle priority, so that it is the
feeder which is measured, and not what they take of the cores. What else the machine does is shown:
the load before a measurement, the part of the cores' time that went to other programs, and the
delays of the event loop of the plain client's process, which does next to nothing.
"""

from __future__ import annotations

import asyncio
import io
import os
import resource
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image

import streamrec as sr
from bench import datasets
from bench.cases import say
from bench.crowd import beating, program, reading
from bench.feeder_connections import write_shards
from bench.harness import Column, Report, Run, benchmark, run_async, table_of
from bench.machine import ROOT, title
from bench.services import Daemon, daemon
from bench.stopwatch import TICKS, tree, usage
from streamrec.config.machine import usable_cores
from streamrec.feeder.client.session import Options
from streamrec.flow.timings import BOUNDS, LoopDelay, watching
from streamrec.formats.examples.descriptions import describe

SESSION = 64 << 20
"""Bytes of memory of the plain client's session."""
SIZES = {"216 MB": 1500, "5 MB": 224}
"""Pixels of a picture's side, by the size of a batch of 32; it takes 700 or 20 ms of a core."""
BATCH = 64
"""Plain records of a batch."""
TRAINER = 10_000.0
"""Records a second that the plain client computes."""
LATE = 0.1
"""Seconds: the largest delay of an event loop that is aimed at."""
SETTLE = 1.0
COLUMNS = (
    Column("workers", "workers", str),
    Column("batches", "size", str),
    Column("taken", "batches"),
    Column("records/s alone", "alone"),
    Column("beside", "beside"),
    Column("part", "part"),
    Column("part without data", "without_data"),
    Column("part of that", "of_that"),
    Column("largest delay, s", "largest_delay"),
    Column("part above 0.1 s", "late"),
    Column("of another loop", "control_delay"),
    Column("part above 0.1 s", "control_late"),
    Column("load before", "load"),
    Column("cores to others", "others"),
)


@benchmark("feeder_leaving", only=True)
@click.option("--visitors", default=100, show_default=True, help="Clients of pictures.")
@click.option("--together", default=8, show_default=True, help="How many are there at a time.")
@click.option("--seconds", default=4.0, show_default=True, help="Time of the plain client alone.")
def main(run: Run, *, visitors: int, together: int, seconds: float) -> Report:
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for workers, size in product((1, 2), SIZES):
            name = f"{workers} workers, {size}"
            if run.selects(name):
                say(name)
                with serving(Path(directory), workers, together, size) as running:
                    found = run_async(measure(running, visitors, together, seconds))
                rows.append({"workers": workers, "size": size, **found})
    settings = {"visitors": visitors, "together": together, "trainer": TRAINER}
    text = f"{title()}\n\n{table_of(COLUMNS, rows)}"
    return Report(text, {"settings": settings, "rows": rows})


def serving(directory: Path, workers: int, together: int, size: str) -> Any:
    """Run a feeder of both datasets."""
    pictures, plain = directory / size, directory / "plain"
    if not plain.exists():
        write_shards(plain)
    if not pictures.exists():
        write_pictures(pictures, SIZES[size])
    served = {
        "pictures": {
            "source": f"{pictures}/*.tfrecord",
            "batch_size": 32,
            "memory_budget": 1 << 30,
            "features": describe({"image": sr.Image()}),
            "epochs": 1000,
            "lanes": 2,
        },
        "plain": {
            "source": f"{plain}/*.tfrecord",
            "batch_size": BATCH,
            "epochs": 1_000_000,
            "memory_budget": SESSION,
        },
    }
    return daemon(served, workers=workers, memory_budget=(together + 1) << 30)


def write_pictures(directory: Path, side: int) -> None:
    """Write shards of one picture, many times."""
    pixels = np.random.default_rng(1).integers(0, 255, (side // 50, side // 50, 3), np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).resize((side, side)).save(held, "JPEG")
    datasets.write_shards(directory, 2, [{"image": held.getvalue()}] * 128)


async def measure(
    running: Daemon, visitors: int, together: int, seconds: float
) -> dict[str, float]:
    """Return the plain client's rates, and the delays of the daemon's loops."""
    load = os.getloadavg()[0]
    loop = asyncio.get_running_loop()
    async with (
        reading(f"{running.listen}/plain", 1, pace=TRAINER, options=Options()) as readers,
        beating(BATCH / TRAINER) as beat,
    ):
        await readers.all_read(1)
        await asyncio.sleep(SETTLE)
        beats = await beat.count()
        before = await readers.rate(seconds)
        beats_alone = (await beat.count() - beats) / seconds
        counts = (await asyncio.to_thread(running.snapshot))["loop"]["delay"]["counts"]
        beats = await beat.count()
        began, records, others = loop.time(), readers.records, others_seconds(running)
        control = LoopDelay()
        with watching(control):
            batches = await let_visit(f"{running.listen}/pictures", visitors, together)
        took = loop.time() - began
        beside = (readers.records - records) / took
        beats_beside = (await beat.count() - beats) / took
        others = others_seconds(running) - others
        shown = (await asyncio.to_thread(running.snapshot))["loop"]
        await asyncio.sleep(SETTLE)
        after = await readers.rate(seconds)
    for line in running.log.read_text().splitlines():
        if "stood still" in line:
            say(line)
    alone = (before + after) / 2
    looks = [now - then for now, then in zip(shown["delay"]["counts"], counts, strict=True)]
    return {
        "before": before,
        "after": after,
        "alone": alone,
        "beside": beside,
        "part": beside / alone,
        "without_data": beats_beside / beats_alone,
        "of_that": beside / alone / (beats_beside / beats_alone),
        "seconds": took,
        "batches": batches,
        "largest_delay": shown["recent"],
        "late": late_part(looks),
        "control_delay": control.recent,
        "control_late": late_part(control.histogram.counts),
        "load": load,
        "others": others / took / usable_cores(),
    }


def late_part(counts: Sequence[int]) -> float:
    """Return the part of the looks at a loop at which it was late."""
    return sum(counts[BOUNDS.index(LATE) + 1 :]) / max(1, sum(counts))


async def let_visit(address: str, count: int, together: int) -> int:
    """Let the clients of pictures come; return the number of batches that they have taken."""
    command = program("visit", address, str(count), str(together))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE)
    said, _ = await process.communicate()
    return int(said)


def others_seconds(running: Daemon) -> float:
    """Return the seconds of cores that programs have had which are not of this measurement."""
    user, nice, system, _, _, *interrupts = machine_times()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    ours = time.process_time() + children.ru_utime + children.ru_stime
    ours += sum(usage(pid).cpu_seconds for pid in tree(running.pid))
    return user + nice + system + sum(interrupts[:3]) - ours


def machine_times() -> list[float]:
    """Return the seconds that all cores have spent in each of proc_stat(5)'s ways."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    return [int(ticks) / TICKS for ticks in line.split()[1:]]


if __name__ == "__main__":
    main()
