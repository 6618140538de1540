"""Measures what clients of pictures that come, leave and are killed do to the others of a feeder.

::

    python -m bench.feeder_leaving --output bench/results

``streamrec serve``, with one and with two workers, serves a dataset of pictures and one of plain
records. One client reads the plain records: a trainer that computes for some milliseconds after
each batch, or one that reads as fast as it can. It is alone; then a hundred clients of pictures
come beside it and leave in the middle of a batch, or are killed, or take a batch; then it is alone
again. The table has its rates, and the delays of the daemon's event loops meanwhile.

A trainer sleeps and wakes, and on a machine whose cores are all taken it wakes late, whatever the
feeder does. So another process computes just as long, again and again, and reads nothing
(:mod:`bench.crowding.beat`); the table has the part of its rate that is left beside the clients of
pictures, and the trainer's part of that.

The clients of pictures are processes of this machine at the lowest priority, so that it is the
feeder which is measured, and not what they take of the cores. What else the machine does is shown:
the load before a measurement, the part of the cores' time that went to other programs, and the
delays of the event loop of the plain client's process, which does next to nothing.
"""

from __future__ import annotations

import asyncio
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from PIL import Image

import streamrec as sr
from bench.console import output_option
from bench.crowding.beat import beating
from bench.crowding.clients import reading
from bench.feeder_connections import write_shards
from bench.machine import ROOT, title
from bench.markdown import number, table
from bench.progress import say
from bench.results import facts, write
from bench.services import daemon
from bench.usage import TICKS, tree, usage
from streamrec.config.cores import usable_cores
from streamrec.flow.bridge import new_event_loop
from streamrec.flow.loop_delay import LoopDelay, watching
from streamrec.flow.timings import BOUNDS
from streamrec.formats.examples.descriptions import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.services import Daemon

SESSION = 64 << 20
"""Bytes of memory of the plain client's session."""
SIZES = {"216 MB": 1500, "25 MB": 512}
"""Pixels of a picture's side, by the size of a batch of 32; it takes 700 or 90 ms of a core."""
CLIENTS: dict[str, float | None] = {"a trainer": 10_000.0, "as fast as it can": None}
"""Records a second that a client computes, by its name; ``None``: it computes nothing."""
LATE = 0.1
"""Seconds: the largest delay of an event loop that is aimed at."""
SETTLE = 1.0
BATCH = 64
"""Plain records of a batch."""
SHOWN = (
    *("batches", "alone", "beside", "part", "without_data", "of_that", "largest_delay", "late"),
    *("control_delay", "control_late", "load", "others"),
)


@click.command()
@output_option
@click.option("--visitors", default=100, show_default=True, help="Clients of pictures.")
@click.option("--together", default=8, show_default=True, help="How many are there at a time.")
@click.option("--seconds", default=4.0, show_default=True, help="Time of the plain client alone.")
@click.option("--only", multiple=True, help="Text in the names of the cases; all by default.")
def main(
    *, output: Path | None, visitors: int, together: int, seconds: float, only: tuple[str, ...]
) -> None:
    """Let the clients come and leave, print a table, and write JSON and Markdown."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for workers, size, client in product((1, 2), SIZES, CLIENTS):
            name = f"{workers} workers, {size}, {client}"
            if only and not any(part in name for part in only):
                continue
            say(name)
            loop = asyncio.Runner(loop_factory=new_event_loop)
            with serving(Path(directory), workers, together, size) as running, loop as runner:
                found = runner.run(measure(running, visitors, together, seconds, CLIENTS[client]))
            rows.append({"workers": workers, "size": size, "client": client, **found})
    text = as_markdown(rows)
    click.echo(text)
    if output is not None:
        settings = {"visitors": visitors, "together": together, "trainer": CLIENTS["a trainer"]}
        content = facts("feeder_leaving", settings=settings, rows=rows)
        write(output, "feeder_leaving", content, text)


def serving(directory: Path, workers: int, together: int, size: str) -> Any:
    """Run a feeder of both datasets."""
    pictures, plain = directory / size, directory / "plain"
    if not plain.exists():
        plain.mkdir()
        write_shards(plain)
    if not pictures.exists():
        pictures.mkdir()
        write_pictures(pictures, SIZES[size])
    datasets = {
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
    return daemon(datasets, workers=workers, memory_budget=(together + 1) << 30)


def write_pictures(directory: Path, side: int) -> None:
    """Write shards of one picture, many times."""
    pixels = np.random.default_rng(1).integers(0, 255, (side // 50, side // 50, 3), np.uint8)
    picture = Image.fromarray(pixels).resize((side, side))
    held = io.BytesIO()
    picture.save(held, "JPEG")
    for shard in range(2):
        with sr.TFRecordWriter(str(directory / f"{shard}.tfrecord")) as writer:
            for _ in range(128):
                writer.write({"image": held.getvalue()})


async def measure(
    running: Daemon, visitors: int, together: int, seconds: float, pace: float | None
) -> dict[str, float]:
    """Return the plain client's rates, and the delays of the daemon's loops."""
    load = os.getloadavg()[0]
    loop = asyncio.get_running_loop()
    async with (
        reading(f"{running.listen}/plain", 1, pace=pace) as readers,
        beating(BATCH / (pace or CLIENTS["a trainer"])) as beat,
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
            batches = await visited(f"{running.listen}/pictures", visitors, together)
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


async def visited(address: str, count: int, together: int) -> int:
    """Let the clients of pictures come; return the number of batches that they have taken."""
    command = [sys.executable, "-m", "bench.crowding.visitors", address, str(count), str(together)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
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


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the machine, and a table of the rates and the delays."""
    head = (
        *("workers", "batches", "the other client", "taken", "records/s alone", "beside", "part"),
        *("part without data", "part of that"),
        *("largest delay, s", "part above 0.1 s", "of another loop", "part above 0.1 s"),
        *("load before", "cores to others"),
    )
    cells = [
        (str(row["workers"]), row["size"], row["client"], *(number(row[name]) for name in SHOWN))
        for row in rows
    ]
    return f"{title()}\n\n{table(head, cells)}"


if __name__ == "__main__":
    main()
